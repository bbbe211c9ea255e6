"""Rules about the topic: its replicas, what it keeps and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from instep.document.showing import counted
from instep.vet.rule import (
    Risk,
    RuleContext,
    Severity,
    TopicContext,
    Violation,
    error_if,
    rule,
    warning_if,
)

REPLICAS_WANTED = 3
SEGMENT_MS_MIN, SEGMENT_BYTES_MIN = 600_000, 2**20
TIMESTAMP_AHEAD_MS_MAX = 24 * 3_600_000
RECORD_BYTES_LOW = 64 * 1024
# Retention deletes whole segments, so a partition keeps a little more than the limit.
SPAN_SLACK = 1.5


@rule(
    "TOPIC_MISSING",
    Risk.STANDSTILL,
    when="the pipeline is started",
    what="The topic does not exist, or this user is not allowed to see it.",
    consequence="There is nothing to read, and a relay cannot publish.",
    remedy="Create the topic, or correct its name.",
    acceptable_when="Before the first deployment.",
)
def missing(case: TopicContext) -> Iterator[Violation]:
    if case.topic_exists:
        return
    topic, similar = case.topic_name, case.snapshot.near_topics.get(case.topic_name)
    brokers = len(case.cluster.brokers)
    evidence = "the cluster has no such topic"
    if similar:
        evidence += f"; it has {similar}"
        fix = f'[{case.kind}s.{case.name}]\ntopic = "{similar}"'
    elif brokers >= REPLICAS_WANTED:
        fix = f"instep topics create {topic} -p 6 -r 3 -c min.insync.replicas=2 --execute"
    else:
        fix = f"instep topics create {topic} -p 6 -r {brokers} --execute"
    yield Violation(Severity.ERROR, f"topic {topic}", (evidence,), fix)


@rule(
    "TOPIC_SINGLE_REPLICA",
    Risk.LOSS,
    when="the disk of the broker that holds a partition is lost",
    what="A partition has only one replica.",
    consequence="acks=all then means one broker: what it acknowledged is lost with its disk, and "
    "while it is down no one can publish to the partition or read from it.",
    remedy="Give the topic three replicas and min.insync.replicas=2.",
    acceptable_when="On a laptop, in tests, and if the source can publish everything again.",
)
def single_replica(case: TopicContext) -> Iterator[Violation]:
    if case.replicas == 1:
        single = sum(len(part.replicas) == 1 for part in case.topic.partitions)
        yield Violation(
            error_if(case.must_not_lose, otherwise=Severity.NOTE),
            f"topic {case.topic.name}",
            (f"{single} of {len(case.topic.partitions)} partitions have 1 replica",),
            _replication_fix(case),
        )


@rule(
    "TOPIC_TWO_REPLICAS",
    Risk.STANDSTILL,
    when="a broker stops",
    what="A partition has only two replicas.",
    consequence="With two replicas there is no good min.insync.replicas: 2 stops publishing as "
    "soon as one broker is down, 1 acknowledges what only one disk has.",
    remedy="Give the topic three replicas and min.insync.replicas=2.",
    acceptable_when="If a standstill during the restart of a broker is acceptable, with "
    "min.insync.replicas=2.",
)
def two_replicas(case: TopicContext) -> Iterator[Violation]:
    if case.replicas == REPLICAS_WANTED - 1:
        yield Violation(
            Severity.WARNING, f"topic {case.topic.name}", ("2 replicas",), _replication_fix(case)
        )


@rule(
    "TOPIC_MIN_INSYNC_REPLICAS_ONE",
    Risk.LOSS,
    when="the leader of a partition dies after the other replicas fell behind",
    what="One in-sync replica is enough to acknowledge a record.",
    consequence="If the other replicas lag or are down, the leader alone answers acks=all. If it "
    "then dies, acknowledged records are lost.",
    remedy="Set min.insync.replicas=2 on the topic.",
    acceptable_when="With the guarantee at-most-once, or if the source can publish everything "
    "again.",
)
def min_insync_replicas_one(case: TopicContext) -> Iterator[Violation]:
    if case.replicas > 1 and case.number("min.insync.replicas") < 2:
        yield Violation(
            error_if(case.must_not_lose, otherwise=Severity.NOTE),
            f"topic {case.topic.name}",
            (case.evidence("min.insync.replicas"), counted(case.replicas, "replica")),
            _replication_fix(case),
        )


@rule(
    "TOPIC_MIN_INSYNC_REPLICAS_ALL",
    Risk.STANDSTILL,
    when="any broker that holds a replica stops",
    what="Every replica must be in sync for a record to be acknowledged.",
    consequence="One broker that is down, even for a planned restart, stops publishing with "
    "acks=all.",
    remedy="Set min.insync.replicas to one less than the number of replicas.",
    acceptable_when="If losing two disks at once must not lose records, and a standstill is "
    "acceptable.",
)
def min_insync_replicas_all(case: TopicContext) -> Iterator[Violation]:
    if case.replicas > 1 and case.number("min.insync.replicas") == case.replicas:
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            (case.evidence("min.insync.replicas"), counted(case.replicas, "replica")),
            _replication_fix(case),
        )


@rule(
    "TOPIC_MIN_INSYNC_REPLICAS_TOO_HIGH",
    Risk.STANDSTILL,
    when="any broker that holds a replica stops",
    what="min.insync.replicas is higher than the number of replicas.",
    consequence="Newer brokers treat it as all replicas, so one broker that is down stops "
    "publishing. Older brokers refuse every record that is sent with acks=all.",
    remedy="Lower min.insync.replicas below the number of replicas, or add replicas.",
    acceptable_when="With one replica on newer brokers, where it changes nothing.",
)
def min_insync_replicas_too_high(case: TopicContext) -> Iterator[Violation]:
    if case.number("min.insync.replicas") > case.replicas:
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            (case.evidence("min.insync.replicas"), counted(case.replicas, "replica")),
            _replication_fix(case),
        )


@rule(
    "TOPIC_UNCLEAN_ELECTION_ALLOWED",
    Risk.LOSS,
    when="all in-sync replicas of a partition are down and another one becomes its leader",
    what="A replica that is not in sync may become the leader.",
    consequence="It lacks acknowledged records, which are then removed from all replicas. A "
    "pipeline that had applied them stops with LOG_DIVERGED; one that had not never sees them.",
    remedy="Set unclean.leader.election.enable=false on the topic.",
    acceptable_when="If availability matters more than records.",
)
def unclean_election_allowed(case: TopicContext) -> Iterator[Violation]:
    if case.setting("unclean.leader.election.enable").value == "true":
        yield Violation(
            error_if(case.must_not_lose),
            f"topic {case.topic.name}",
            (case.evidence("unclean.leader.election.enable"),),
            f"instep topics alter {case.topic.name} -c unclean.leader.election.enable=false"
            " --execute",
        )


@rule(
    "TOPIC_WITHOUT_LEADER",
    Risk.STANDSTILL,
    when="now",
    what="A partition has no leader.",
    consequence="No one can publish to it or read from it.",
    remedy="Start the brokers that hold its in-sync replicas.",
    acceptable_when="For the seconds that an election takes.",
)
def without_leader(case: TopicContext) -> Iterator[Violation]:
    leaderless = [part for part in case.topic.partitions if part.leader is None]
    if leaderless:
        brokers = sorted({node for part in leaderless for node in part.replicas})
        yield Violation(
            Severity.ERROR,
            f"topic {case.topic.name}",
            tuple(
                f"partition {part.partition}: no leader, replicas {_nodes(part.replicas)}"
                for part in leaderless
            ),
            f"start broker {_nodes(brokers)}",
        )


@rule(
    "TOPIC_UNDER_MIN_INSYNC_REPLICAS",
    Risk.STANDSTILL,
    when="now",
    what="A partition has fewer in-sync replicas than min.insync.replicas.",
    consequence="Publishing to it with acks=all is refused until more replicas have caught up.",
    remedy="Start or repair the brokers whose replicas are not in sync.",
    acceptable_when="For the minutes of a restart.",
)
def under_min_insync_replicas(case: TopicContext) -> Iterator[Violation]:
    needed = case.number("min.insync.replicas")
    # A broker requires no more in-sync replicas than the partition has.
    too_few = [
        part
        for part in case.topic.partitions
        if len(part.in_sync) < min(needed, len(part.replicas))
    ]
    if too_few:
        out_of_sync = sorted(
            {node for part in too_few for node in part.replicas if node not in part.in_sync}
        )
        yield Violation(
            Severity.ERROR,
            f"topic {case.topic.name}",
            (
                case.evidence("min.insync.replicas"),
                *(
                    f"partition {p.partition}: in sync {_nodes(p.in_sync)} of {_nodes(p.replicas)}"
                    for p in too_few
                ),
            ),
            f"start broker {_nodes(out_of_sync)}, or find out why it lags",
        )


@rule(
    "TOPIC_UNDER_REPLICATED",
    Risk.LOSS,
    when="the brokers that are still in sync fail before the others catch up",
    what="A partition has replicas that are not in sync.",
    consequence="There are fewer copies than planned.",
    remedy="Start or repair the brokers whose replicas are not in sync.",
    acceptable_when="During a restart, and while a new replica is being filled.",
)
def under_replicated(case: TopicContext) -> Iterator[Violation]:
    behind = [part for part in case.topic.partitions if len(part.in_sync) < len(part.replicas)]
    if behind:
        out_of_sync = sorted(
            {node for part in behind for node in part.replicas if node not in part.in_sync}
        )
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            tuple(
                f"partition {p.partition}: in sync {_nodes(p.in_sync)} of {_nodes(p.replicas)}"
                for p in behind
            ),
            f"start broker {_nodes(out_of_sync)}, or find out why it lags",
        )


@rule(
    "TOPIC_REPLICAS_IN_ONE_RACK",
    Risk.LOSS,
    when="a rack or zone is lost",
    what="All replicas of a partition are in one rack, although the cluster has several.",
    consequence="A rack or zone fails as a whole, and all copies with it.",
    remedy="Spread the replicas: create the topic again, or reassign its partitions.",
    acceptable_when="If racks are only names.",
)
def replicas_in_one_rack(case: TopicContext) -> Iterator[Violation]:
    racks = {broker.node: broker.rack for broker in case.cluster.brokers if broker.rack is not None}
    if len(set(racks.values())) < 2:
        return
    in_one_rack = [
        part
        for part in case.topic.partitions
        if len(part.replicas) > 1
        and all(node in racks for node in part.replicas)
        and len({racks[node] for node in part.replicas}) == 1
    ]
    if in_one_rack:
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            tuple(
                f"partition {part.partition}: all replicas in rack {racks[part.replicas[0]]}"
                for part in in_one_rack
            ),
            f"instep topics replicate {case.topic.name} -r {case.replicas + 1} --execute,"
            " which puts a replica into another rack",
        )


@rule(
    "TOPIC_RETENTION_SHORT",
    Risk.LOSS,
    when="the pipeline is stopped for longer than the log keeps its records",
    what="Records are deleted before the longest planned outage is over.",
    consequence="Records that are deleted before they are applied never reach the table. The "
    "pipeline stops with OFFSETS_EXPIRED.",
    remedy="Raise retention.ms above vet.outage_hours_max, or lower that setting to what you "
    "really plan for.",
    acceptable_when="If the source can publish everything again after an outage.",
)
def retention_short(case: RuleContext) -> Iterator[Violation]:
    if "delete" not in (case.setting("cleanup.policy").value or ""):
        return
    kept_ms = case.number("retention.ms")
    if 0 <= kept_ms < case.outage_ms:
        yield Violation(
            error_if(case.must_not_lose, otherwise=Severity.NOTE),
            f"topic {case.topic.name}",
            (
                f"{case.evidence('retention.ms')}: {_hours(kept_ms)}",
                f"vet.outage_hours_max={case.snapshot.outage_hours_max}: {_hours(case.outage_ms)}",
            ),
            f"instep topics alter {case.topic.name} -c"
            f" retention.ms={max(7 * 86_400_000, 2 * case.outage_ms)} --execute",
        )


@rule(
    "TOPIC_RETENTION_BY_SIZE",
    Risk.LOSS,
    when="more is published during an outage than retention.bytes holds",
    what="Records are deleted when a partition's log gets too large, however new they are.",
    consequence="A burst deletes records that a stopped pipeline has not applied yet.",
    remedy="Set retention.bytes=-1 and limit the log by time, with enough disk space for it.",
    acceptable_when="If the limit is many times what is published during the longest outage.",
)
def retention_by_size(case: RuleContext) -> Iterator[Violation]:
    if (
        "delete" not in (case.setting("cleanup.policy").value or "")
        or case.number("retention.bytes") < 0
    ):
        return
    limit, span_s = case.number("retention.bytes"), case.topic.span_s
    # Only a log from which retention by size has deleted records shows how long they last.
    was_cut = any(
        (part.first or 0) > 0 and (part.size_bytes or 0) > limit / 2
        for part in case.topic.partitions
    )
    is_short = was_cut and span_s is not None and span_s * 1000 < case.outage_ms / SPAN_SLACK
    evidence = [f"{case.evidence('retention.bytes')}: {limit / 2**20:.1f} MiB per partition"]
    if is_short and span_s:
        age = _hours(int(span_s * 1000))
        evidence.append(f"the oldest record is {age} old, and older ones were deleted")
    yield Violation(
        error_if(is_short and case.must_not_lose),
        f"topic {case.topic.name}",
        tuple(evidence),
        f"instep topics alter {case.topic.name} -c retention.bytes=-1 --execute",
    )


@rule(
    "TOPIC_COMPACTED",
    Risk.LOSS,
    when="the pipeline is behind the log cleaner",
    what="The log eventually keeps only the last record of each key.",
    consequence="Statuses in between are removed before a pipeline that is behind reads them: the "
    "history has gaps, and with declared transitions a document that seems to skip a status is "
    "parked.",
    remedy="Set cleanup.policy=delete, or min.compaction.lag.ms above vet.outage_hours_max.",
    acceptable_when="If only the last status matters: history = false and no transitions.",
)
def compacted(case: RuleContext) -> Iterator[Violation]:
    if not case.compacted:
        return
    is_protected = case.number("min.compaction.lag.ms") >= case.outage_ms
    needs_all = []
    if case.pipeline.history:
        needs_all.append("history")
    if case.pipeline.transitions:
        needs_all.append("transitions")
    severity, use = Severity.NOTE, "only the last status counts"
    if needs_all:
        use = f"the pipeline has {' and '.join(needs_all)}"
        if not is_protected:
            severity = error_if(case.pipeline.transitions)
    yield Violation(
        severity,
        f"topic {case.topic.name}",
        (case.evidence("cleanup.policy"), case.evidence("min.compaction.lag.ms"), use),
        f"instep topics alter {case.topic.name} -c cleanup.policy=delete --execute",
    )


@rule(
    "TOPIC_DELETE_RETENTION_SHORT",
    Risk.LOSS,
    when="the pipeline is stopped for longer than deletes are kept",
    what="A compacted log removes deletes before the longest planned outage is over.",
    consequence="A delete that the log no longer has is never applied: the document's row stays "
    "forever.",
    remedy="Raise delete.retention.ms above vet.outage_hours_max.",
    acceptable_when="If the source never deletes documents.",
)
def delete_retention_short(case: RuleContext) -> Iterator[Violation]:
    if not case.compacted:
        return
    kept_ms = case.number("delete.retention.ms")
    if kept_ms < case.outage_ms:
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            (
                f"{case.evidence('delete.retention.ms')}: {_hours(kept_ms)}",
                f"vet.outage_hours_max={case.snapshot.outage_hours_max}",
            ),
            f"instep topics alter {case.topic.name} -c"
            f" delete.retention.ms={2 * case.outage_ms} --execute",
        )


@rule(
    "TOPIC_USES_LOG_APPEND_TIME",
    Risk.DISORDER,
    when="a publisher sends the events of a document in another order than they happened",
    what="The broker sets the timestamp to the time of arrival, and the pipeline uses it as the "
    "event's time.",
    consequence="A later arrival always looks newer: the guard lets an old status that was sent "
    "late overwrite a newer one. Freshness is then measured from the arrival.",
    remedy="Declare a field of the event as order and at, or set "
    "message.timestamp.type=CreateTime.",
    acceptable_when="If the publisher sends the events of each document in order and only once.",
)
def uses_log_append_time(case: RuleContext) -> Iterator[Violation]:
    if case.setting("message.timestamp.type").value == "LogAppendTime":
        ordered_by_it = case.pipeline.order == "@timestamp"
        if ordered_by_it or case.pipeline.at in (None, "@timestamp"):
            yield Violation(
                warning_if(ordered_by_it),
                f"topic {case.topic.name}",
                (
                    case.evidence("message.timestamp.type"),
                    f'event.order="{case.pipeline.order}", event.at="{case.pipeline.at}"',
                ),
                f"instep topics alter {case.topic.name} -c message.timestamp.type=CreateTime"
                " --execute",
            )


@rule(
    "TOPIC_TIMESTAMPS_UNBOUNDED",
    Risk.DISORDER,
    when="a publisher's clock is wrong",
    what="The guard compares record timestamps, and the brokers accept any timestamp.",
    consequence="One event from a clock that is a year ahead makes every later event of its "
    "document look old, so it is skipped.",
    remedy="Set message.timestamp.after.max.ms to an hour, or let the guard compare a version.",
    acceptable_when="If the publishers' clocks are synchronized.",
)
def timestamps_unbounded(case: RuleContext) -> Iterator[Violation]:
    name = "message.timestamp.after.max.ms"
    by_publishers = case.setting("message.timestamp.type").value == "CreateTime"
    if (
        case.pipeline.order == "@timestamp"
        and by_publishers
        and case.number(name) > TIMESTAMP_AHEAD_MS_MAX
    ):
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            (case.evidence(name), 'event.order="@timestamp"'),
            f"instep topics alter {case.topic.name} -c {name}=3600000 --execute",
        )


@rule(
    "TOPIC_REFUSES_OLD_TIMESTAMPS",
    Risk.LOSS,
    when="a publisher sends an event that is older than the brokers accept",
    what="The brokers refuse records whose timestamp is only a little old.",
    consequence="A publisher that was down, or publishes old events again, is refused: those "
    "events never arrive.",
    remedy="Leave message.timestamp.before.max.ms at its default.",
    acceptable_when="If the timestamp of records is the time of sending and never that of the "
    "event.",
)
def refuses_old_timestamps(case: RuleContext) -> Iterator[Violation]:
    name = "message.timestamp.before.max.ms"
    if (
        case.setting("message.timestamp.type").value == "CreateTime"
        and case.number(name) < case.outage_ms
    ):
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            (f"{case.evidence(name)}: {_hours(case.number(name))}",),
            f"instep topics alter {case.topic.name} --unset {name} --execute",
        )


@rule(
    "TOPIC_MAX_RECORD_SIZE_LOW",
    Risk.LOSS,
    when="an event exceeds the limit",
    what="The topic accepts only very small records.",
    consequence="A larger record is refused: its publisher gets an error, and the event never "
    "arrives.",
    remedy="Leave max.message.bytes at its default of 1 MiB.",
    acceptable_when="If the largest event is known to fit.",
)
def max_record_size_low(case: RuleContext) -> Iterator[Violation]:
    if case.number("max.message.bytes") < RECORD_BYTES_LOW:
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            (case.evidence("max.message.bytes"),),
            f"instep topics alter {case.topic.name} --unset max.message.bytes --execute",
        )


@rule(
    "TOPIC_SEGMENTS_TINY",
    Risk.STANDSTILL,
    when="the brokers run out of open files or memory maps",
    what="The topic's log consists of very small segments.",
    consequence="Each segment has three files that a broker keeps open. Thousands of them slow "
    "down its start and may stop it.",
    remedy="Leave segment.ms and segment.bytes at their defaults.",
    acceptable_when="In a test of retention or compaction.",
)
def segments_tiny(case: RuleContext) -> Iterator[Violation]:
    small = []
    for name, least in (("segment.ms", SEGMENT_MS_MIN), ("segment.bytes", SEGMENT_BYTES_MIN)):
        if name in case.topic_settings and case.number(name) < least:
            small.append(name)
    if small:
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            tuple(map(case.evidence, small)),
            f"instep topics alter {case.topic.name}"
            f" {' '.join(f'--unset {name}' for name in small)} --execute",
        )


@rule(
    "TOPIC_TRANSACTION_OPEN",
    Risk.STANDSTILL,
    when="now: pipelines wait behind it",
    what="A transaction has been open for more than a minute.",
    consequence="Pipelines read only committed records. Everything behind the first record of an "
    "open transaction waits, of all publishers, until it is committed, aborted or timed out. A "
    "hanging transaction never times out.",
    remedy="Find out which publisher opened it. Abort it if that publisher no longer exists.",
    acceptable_when="If transactions are long by nature, and waiting for them is right.",
)
def transaction_open(case: TopicContext) -> Iterator[Violation]:
    blocked = [part for part in case.topic.partitions if part.open_from is not None]
    if blocked:
        first = blocked[0]
        servers = ",".join(case.cluster.bootstrap)
        yield Violation(
            Severity.ERROR,
            f"topic {case.topic.name}",
            tuple(
                f"partition {part.partition}: open from offset {part.open_from}, and the log"
                f" ends at {part.end}"
                for part in blocked
            ),
            f"kafka-transactions.sh --bootstrap-server {servers} abort --topic {case.topic.name}"
            f" --partition {first.partition} --start-offset {first.open_from}",
        )


@rule(
    "TOPIC_REPLICATION_THROTTLED",
    Risk.LOSS,
    when="the leader dies before the throttled replicas have caught up",
    what="Replication of the topic is throttled.",
    consequence="A throttle that was left behind by a reassignment keeps replicas from catching "
    "up, so fewer of them are in sync.",
    remedy="Remove both throttles when the reassignment is done.",
    acceptable_when="While partitions are being moved.",
)
def replication_throttled(case: TopicContext) -> Iterator[Violation]:
    names = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
    throttled = [name for name in names if name in case.topic_settings and case.setting(name).value]
    if throttled:
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic.name}",
            tuple(map(case.evidence, throttled)),
            f"instep topics alter {case.topic.name}"
            f" {' '.join(f'--unset {name}' for name in throttled)} --execute",
        )


@rule(
    "TOPIC_LED_BY_ONE_BROKER",
    Risk.STANDSTILL,
    when="that broker stops",
    what="One broker leads every partition of the topic, although others hold replicas.",
    consequence="If it fails, all partitions move at once. Until then it does all the work.",
    remedy="Elect the preferred replicas as leaders.",
    acceptable_when="Right after a broker was down: leaders move back by themselves within "
    "minutes.",
)
def led_by_one_broker(case: TopicContext) -> Iterator[Violation]:
    leaders = {part.leader for part in case.topic.partitions}
    replica_brokers = {node for part in case.topic.partitions for node in part.replicas}
    if (
        len(case.topic.partitions) > 1
        and len(leaders) == 1
        and None not in leaders
        and len(replica_brokers) > 1
    ):
        yield Violation(
            Severity.NOTE,
            f"topic {case.topic.name}",
            (f"broker {leaders.pop()} leads all {len(case.topic.partitions)} partitions",),
            f"kafka-leader-election.sh --election-type preferred --topic {case.topic.name}",
        )


def _replication_fix(case: TopicContext) -> str:
    """Return the change of replicas and min.insync.replicas that all rules about them ask for."""
    replicas = max(case.replicas, REPLICAS_WANTED)
    in_sync = min(max(case.number("min.insync.replicas"), 2), replicas - 1)
    alter = f"instep topics alter {case.topic.name} -c min.insync.replicas={in_sync} --execute"
    steps = [alter] if case.number("min.insync.replicas") != in_sync else []
    if case.replicas < replicas:
        steps.insert(0, f"instep topics replicate {case.topic.name} -r {replicas} --execute")
    if len(case.cluster.brokers) < replicas:
        steps.insert(0, f"add brokers until there are {replicas} (now {len(case.cluster.brokers)})")
    return "; then ".join(steps)


def _nodes(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"


def _hours(ms: int) -> str:
    return f"{timedelta(milliseconds=ms).total_seconds() / 3600:.1f} h"
