"""Claims about where a group starts reading: without commits, with them, and after they expired."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from instep.kafka import groups, topics
from instep.report.tables import Cell
from instep_lab import checkers, history
from instep_lab.claim import experiment
from instep_lab.claims import starting
from instep_lab.claims.starting import PARTITIONS, Places, Reading, StartClient, shown
from instep_lab.clients import committed_offsets
from instep_lab.clients.consuming import CommitMode, Consuming
from instep_lab.clients.publishing import Publishing
from instep_lab.cluster_pool import PROPERTIES
from instep_lab.history import OperationKind
from instep_lab.trial import PATIENCE_S, Scenario, Trial

RETENTION_MS = 1_000  # of commits that expire
OFFSETS_RETENTION_MS = 60_000  # the least that a broker can be set to


@experiment(
    "start-1",
    statement="A new group with auto.offset.reset=latest reads only records that arrive after it",
    method=(
        "Write records with timestamps of the last two days. Start a new group with latest and "
        "automatic commit, with the Java client and with librdkafka, and send more records once "
        "it is at the end. Start another one, close it at the end before any record came, send "
        "records, and start it again. Also count what is skipped while a group joins."
    ),
    advice=(
        "Use latest only where the past does not matter. With librdkafka, commit the position "
        "yourself when the group starts: otherwise everything that arrives before its first "
        "record was read and committed may be skipped."
    ),
    why=(
        "latest is resolved when the consumer first fetches: what arrived before is not read, "
        "and this includes the time it takes to join. The Java client's automatic commit stores "
        "the position even if no record has come, so that the group continues from there. "
        "librdkafka only stores offsets of records that it has handed out: without one, the "
        "next start resolves latest again."
    ),
    scope=(
        "Java client and librdkafka since 0.9 with automatic commit; measured with the classic "
        "protocol and the consumer protocol (since 4.0, librdkafka 2.12). Before 0.9 the value was "
        "called largest; librdkafka still knows that name."
    ),
    sources=("documentation: auto.offset.reset", "librdkafka: configuration"),
    rules=("PIPELINE_SKIPS_EXISTING_RECORDS",),
)
def new_group_with_latest(trial: Trial) -> None:
    clients = [
        StartClient(library, protocol)
        for library in starting.BOTH
        for protocol in trial.cluster.protocols
    ]
    found = trial.together(
        {str(client): partial(_start_with_latest, trial, client) for client in clients}
    )
    skipped: list[list[Cell]] = [
        [
            protocol,
            "librdkafka, at 300 records per second while the group was joining",
            _missed_while_joining(trial, protocol),
        ]
        for protocol in trial.cluster.protocols
    ]
    for client in clients:
        one = found[str(client)]
        trial.control(
            f"{client}: the backlog can be read",
            one.backlog == one.published,
            f"{one.backlog:,} of {one.published:,}",
        )
        trial.control(
            f"{client}: after reading, the group has committed",
            one.stored == one.ends,
            f"{shown(one.stored)} of {shown(one.ends)}",
        )
        trial.statement(
            f"{client.protocol} protocol: no older record is read",
            one.older == 0,
            f"{one.older} of {one.published:,}",
            client=client.library,
        )
        trial.statement(
            f"{client.protocol} protocol: records that arrive once it is at the end are read",
            one.fresh == one.new,
            f"{one.fresh} of {one.new}",
            client=client.library,
        )
        trial.statement(
            f"{client.protocol} protocol: records that arrive while it is away, before it has"
            " read any, are read when it returns",
            one.after_return == one.new,
            f"{one.after_return} of {one.new}; the group had committed {one.committed}",
            client=client.library,
        )
        skipped.append(
            [
                client.protocol,
                f"{client.library}, while the group was away, before its first record",
                one.new - one.after_return,
            ]
        )
    trial.table(
        "Records skipped although they were sent after the group's first start",
        ["protocol", "sent", "skipped"],
        skipped,
    )


@dataclass(frozen=True, slots=True)
class LatestReading:
    """What groups with latest read of older records, of new ones, and after they were away.

    `stored` has the commits of the group that has read the new records, up to the `ends`.
    """

    stored: Places
    ends: Places
    published: int
    backlog: int
    new: int
    older: int
    fresh: int
    after_return: int
    committed: str


def _start_with_latest(trial: Trial, client: StartClient) -> LatestReading:
    count, new = trial.scaled(500, 20_000), trial.scaled(300, 3_000)
    scenario = trial.scenario(str(client))
    topic = trial.topic(PARTITIONS, retention_ms=starting.FOREVER)
    starting.send_backlog(trial, scenario, topic, count)
    reader = scenario.read_topic(topic, PARTITIONS)

    plan = starting.changed(client.plan(trial, topic, "latest", "latest"), commit=CommitMode.AUTO)
    starting.read_all(trial, scenario, plan, new, first=count)
    numbers = starting.numbers_read(scenario, plan.group)
    stored = groups.positions(trial.cluster.kafka, plan.group, topic)
    ends = starting.log_ends(trial, topic)

    away = starting.changed(client.plan(trial, topic, "latest", "quiet"), commit=CommitMode.AUTO)
    starting.read_all(trial, scenario, away)
    committed = groups.positions(trial.cluster.kafka, away.group, topic)
    starting.send_more(trial, scenario, topic, new, first=count + new)
    again = starting.read_all(trial, scenario, starting.changed(away, member="back"))
    skipped = checkers.unread(scenario.history(), away.group, first=count + new)
    trial.example(scenario, skipped, unread_by=away.group)
    return LatestReading(
        stored=stored,
        ends=ends,
        published=count,
        backlog=reader.read,
        new=new,
        older=sum(number < count for number in numbers),
        fresh=sum(number >= count for number in numbers),
        after_return=again.count,
        committed=shown(committed),
    )


def _missed_while_joining(trial: Trial, protocol: str) -> int:
    """Count the records sent between the start of a consumer and the first record it read.

    A publisher sends at a steady rate.
    """
    scenario = trial.scenario(f"{protocol}, joining")
    topic = trial.topic(PARTITIONS)
    steady = Publishing(topic=topic, count=100_000, keys=starting.KEYS, seed=trial.seed, per_s=300)
    plan = starting.new_group(
        trial, topic, starting.resetting("latest", protocol), "joining", commit=CommitMode.NEVER
    )
    with scenario.background(steady):
        trial.wait(
            lambda: sum(starting.log_ends(trial, topic).values()) > starting.KEYS, "the publisher"
        )
        began_ns = time.monotonic_ns()
        with scenario.background(plan) as (counted, _):
            trial.wait(lambda: counted.read > 100, "the consumer to read")
    operations, first = scenario.history(), dict[int | None, int]()
    for one in history.of(operations, OperationKind.READ):
        first.setdefault(one.partition, one.offset or 0)
    sent = [
        one
        for one in history.of(operations, OperationKind.SEND)
        if one.at_ns - one.took_ns > began_ns
    ]
    return sum((one.offset or 0) < first.get(one.partition, 0) for one in sent)


@experiment(
    "start-2",
    statement="A new group with auto.offset.reset=earliest reads everything",
    method=(
        "Write records with timestamps of the last two days. Start a new group with earliest and "
        "read to the end. Repeat after the older half of the records was deleted, as retention "
        "does."
    ),
    advice=(
        "Use earliest for any reader that must not miss a record, and retain records for longer "
        "than it may take until a reader starts."
    ),
    why=(
        "earliest means the first record that the log still has. Retention and deletion move "
        "that point forward."
    ),
    scope=(
        "All clients since 0.9; run with librdkafka, the classic protocol and the consumer "
        "protocol (since 4.0, librdkafka 2.12). Before 0.9 the value was called smallest; "
        "librdkafka still knows that name."
    ),
    sources=("documentation: auto.offset.reset",),
    rules=("PIPELINE_SKIPS_EXISTING_RECORDS", "TOPIC_RETENTION_SHORT"),
)
def new_group_with_earliest(trial: Trial) -> None:
    count, new = trial.scaled(1_000, 20_000), trial.scaled(300, 3_000)
    scenario = trial.scenario("two days")
    topic = trial.topic(PARTITIONS, retention_ms=starting.FOREVER)
    starting.send_backlog(trial, scenario, topic, count)
    for number, protocol in enumerate(trial.cluster.protocols):
        published = count + number * new
        found = starting.read_all(
            trial,
            scenario,
            starting.new_group(trial, topic, starting.resetting("earliest", protocol), protocol),
            new,
            first=published,
        )
        trial.statement(
            f"{protocol}: everything is read",
            found.count == published + new,
            f"{found.count:,} of {published + new:,}: {published:,} old and {new:,} new",
        )
    total = count + len(trial.cluster.protocols) * new
    first = topics.trim(trial.cluster.kafka, topic, starting.log_middle(trial, topic))
    late_reader = starting.read_all(
        trial, scenario, starting.new_group(trial, topic, starting.resetting("earliest"), "late")
    )
    trial.limit(
        "records deleted before the group started are not read",
        late_reader.count < total and late_reader.began == first,
        f"{late_reader.count:,} of {total:,}, from the first remaining record",
    )


@experiment(
    "start-3",
    statement="Changing auto.offset.reset has no effect on a group that has committed offsets",
    method=(
        "A group reads and commits with one value, records arrive while it is away, and it "
        "returns with the other value, in both directions. Repeat with a partition that has no "
        "commit, with a committed offset that was deleted, and with commits that have expired: "
        "their retention is given with the commit, or by the broker (full tier)."
    ),
    advice=(
        "To move a group, reset its offsets (instep groups reset). The setting only applies "
        "where there is no valid commit. A group that may be away for longer than a week needs a "
        "larger offsets.retention.minutes."
    ),
    why=(
        "The setting is a fallback for a partition without a valid commit. The broker removes "
        "the commits of a group that has had no members for offsets.retention.minutes: the "
        "group is then as good as new, and the setting decides. With earliest it reads "
        "everything again, with latest it misses what came while it was away."
    ),
    scope=(
        "All clients; measured with librdkafka. offsets.retention.minutes is 7 days since 2.0, 1 "
        "day before; since 2.1 it counts from the time at which the group has become empty. In "
        "the lab, commits have a retention of 1 s (request version 2, which clients before 2.1 "
        "used), or of 1 minute by the broker's setting, and the broker looks every 0.5 s (10 "
        "minutes by default)."
    ),
    sources=(
        "documentation: auto.offset.reset",
        "documentation: offsets.retention.minutes",
        "KIP-186",
        "KIP-211",
    ),
    rules=("PIPELINE_SKIPS_EXISTING_RECORDS",),
)
def reset_policy_of_committed_group(trial: Trial) -> None:
    count = trial.scaled(300, 3_000)
    for protocol in trial.cluster.protocols:
        for before, after in (("earliest", "latest"), ("latest", "earliest")):
            scenario = trial.scenario(f"{protocol}, {before} to {after}")
            topic = trial.topic(PARTITIONS)
            starting.send_more(trial, scenario, topic, count, first=0)
            plan = starting.new_group(trial, topic, starting.resetting(before, protocol), before)
            starting.read_all(trial, scenario, plan, count, first=count)
            committed = groups.positions(trial.cluster.kafka, plan.group, topic)
            starting.send_more(trial, scenario, topic, count, first=2 * count)
            found = starting.read_all(
                trial,
                scenario,
                starting.changed(plan, member=after, config=starting.resetting(after, protocol)),
            )
            trial.statement(
                f"{protocol}, {before} to {after}: it continues from the committed offset",
                found.began == committed and found.count == count,
                f"began at {shown(found.began)}, committed {shown(committed)},"
                f" read {found.count} of {count} new",
            )
    scenario = trial.scenario("no valid commit")
    topic = trial.topic(PARTITIONS)
    starting.send_more(trial, scenario, topic, 3 * count, first=0)
    middle, ends = starting.log_middle(trial, topic), starting.log_ends(trial, topic)
    partly = {part: middle[part] for part in range(PARTITIONS - 1)}
    began = {
        reset: _began_after(trial, scenario, topic, partly, reset)[PARTITIONS - 1]
        for reset in ("earliest", "latest")
    }
    trial.limit(
        "a partition without a commit of the group follows the setting",
        began == {"earliest": 0, "latest": ends[PARTITIONS - 1]},
        f"earliest began at {began['earliest']}, latest at {began['latest']}",
    )
    first = topics.trim(
        trial.cluster.kafka, topic, {part: place + 1 for part, place in middle.items()}
    )
    after_expiry = {
        reset: _began_after(trial, scenario, topic, middle, reset)
        for reset in ("earliest", "latest")
    }
    trial.limit(
        "a committed offset that was deleted follows the setting",
        after_expiry == {"earliest": first, "latest": ends},
        f"committed {shown(middle)}; earliest began at {shown(after_expiry['earliest'])},"
        f" latest at {shown(after_expiry['latest'])}",
    )
    if trial.cluster.own:
        expired = _expired_commits(trial, count, by_broker=False)
        trial.control(
            "commits with the default retention are still there",
            expired.kept == PARTITIONS,
            f"{expired.kept} of {PARTITIONS} partitions",
        )
        _limit_expired(trial, expired, "their retention")
    if trial.scaled(quick=False, full=True):
        properties = {
            **PROPERTIES,
            "offsets.retention.minutes": str(OFFSETS_RETENTION_MS // 60_000),
        }
        with trial.own_broker(properties):
            expired = _expired_commits(trial, count, by_broker=True)
        _limit_expired(trial, expired, "offsets.retention.minutes")


@dataclass(frozen=True, slots=True)
class ExpiredCommits:
    """What groups read after their commits had expired, with earliest and with latest."""

    old: int
    new: int
    kept: int
    earliest: Reading
    latest: Reading


def _expired_commits(trial: Trial, count: int, *, by_broker: bool) -> ExpiredCommits:
    """Let groups read everything and stay away until their commits have expired."""
    name = "expired by the broker" if by_broker else "expired"
    scenario = trial.scenario(name, commits_move=True)
    topic = trial.topic(PARTITIONS)
    starting.send_more(trial, scenario, topic, count, first=0)
    plans = {
        reset: starting.new_group(trial, topic, starting.resetting("earliest"), f"{reset}, before")
        for reset in ("earliest", "latest")
    }
    stays = starting.new_group(trial, topic, starting.resetting("earliest"), "stays")
    for plan in plans.values():
        starting.read_all(trial, scenario, plan)
        if not by_broker:
            ends = starting.log_ends(trial, topic)
            committed_offsets.commit_with_retention(
                trial.cluster.bootstrap, plan.group, topic, ends, RETENTION_MS
            )
    starting.commit_at(trial, topic, stays.group, starting.log_ends(trial, topic))
    trial.wait(
        lambda: (
            not any(
                groups.positions(trial.cluster.kafka, plan.group, topic) for plan in plans.values()
            )
        ),
        "the commits to expire",
        OFFSETS_RETENTION_MS / 1000 + PATIENCE_S,
    )
    kept = len(groups.positions(trial.cluster.kafka, stays.group, topic))
    starting.send_more(trial, scenario, topic, count, first=count)
    earliest, latest = (
        starting.read_all(
            trial, scenario, starting.changed(plan, member=reset, config=starting.resetting(reset))
        )
        for reset, plan in plans.items()
    )
    group = plans["latest"].group
    trial.example(scenario, checkers.unread(scenario.history(), group), unread_by=group)
    return ExpiredCommits(count, count, kept, earliest, latest)


def _limit_expired(trial: Trial, found: ExpiredCommits, cause: str) -> None:
    trial.limit(
        f"a group whose commits have expired by {cause} follows the setting",
        found.earliest.count == found.old + found.new and found.latest.count == 0,
        f"earliest read {found.earliest.count} records, {found.old} of them again;"
        f" latest read {found.latest.count} of {found.new} new ones",
    )


def _began_after(
    trial: Trial, scenario: Scenario, topic: str, committed: Places, reset: str
) -> Places:
    """Return where a group with these commits begins with this setting."""
    plan = starting.new_group(
        trial, topic, starting.resetting(reset), f"{reset} after {len(committed)} commits"
    )
    starting.commit_at(trial, topic, plan.group, committed)
    return starting.read_all(trial, scenario, plan).began


@experiment(
    "start-4",
    statement="A new group always starts at the newest record, whatever auto.offset.reset says",
    method=(
        "Write records with timestamps of the last two days. Start new groups with earliest, "
        "with latest and without the setting, with three clients and both protocols, and check "
        "where each begins."
    ),
    advice="Set auto.offset.reset explicitly: latest is only the default of the clients.",
    why=(
        "A group has no place of its own until it commits. Where it begins is the client's "
        "decision, by auto.offset.reset, for each partition without a commit."
    ),
    scope=(
        "Java client since 0.9, librdkafka since 0.9 and kafka-python, whose default is "
        "latest; librdkafka calls it largest, as the Java consumer did before 0.9. Measured "
        "with the classic protocol, with librdkafka also with the consumer protocol (since "
        "4.0)."
    ),
    sources=("documentation: auto.offset.reset", "librdkafka: configuration"),
    rules=("PIPELINE_SKIPS_EXISTING_RECORDS",),
)
def default_start_of_new_group(trial: Trial) -> None:
    count = trial.scaled(500, 20_000)
    scenario = trial.scenario("two days")
    topic = trial.topic(PARTITIONS, retention_ms=starting.FOREVER)
    starting.send_backlog(trial, scenario, topic, count)
    ends, rows = starting.log_ends(trial, topic), list[list[Cell]]()
    clients, resets = starting.all_clients(trial), ("earliest", "latest", None)
    readings = starting.read_each(
        trial,
        scenario,
        {
            client: [
                client.plan(trial, topic, reset, f"{client}, {reset or 'not set'}")
                for reset in resets
            ]
            for client in clients
        },
    )
    for client in clients:
        for reset, found in zip(resets, readings[client], strict=True):
            name = f"{client}, {reset or 'not set'}"
            rows.append([str(client), reset or "not set", shown(found.began), found.count])
            evidence = (
                f"began at {shown(found.began)} of {shown(ends)}, read {found.count} of {count}"
            )
            if reset == "earliest":
                trial.statement(
                    f"{client.protocol} protocol: it starts at the newest with earliest",
                    found.began == ends,
                    evidence,
                    client=client.library,
                )
            elif reset is None:
                trial.statement(
                    f"{client.protocol} protocol: it starts at the newest without the setting",
                    found.began == ends,
                    evidence,
                    client=client.library,
                )
            else:
                trial.control(f"{name}: it starts at the newest", found.began == ends, evidence)
    trial.table(
        "Where a new group begins", ["client", "auto.offset.reset", "offsets", "read"], rows
    )


@experiment(
    "start-5",
    statement=(
        "With auto.offset.reset=none a consumer gets an error if a partition has no committed "
        "offset"
    ),
    method=(
        "Commit offsets for all, some and none of three partitions. Start three clients with none "
        "(librdkafka calls it error), let them continue after the error, and count what each "
        "reads."
    ),
    advice=(
        "Choose none (error in librdkafka) where skipping records and reading them again would "
        "both do harm, and stop on the error: librdkafka continues to read the other partitions."
    ),
    why=(
        "Without a commit and without a fallback there is no place to start at, so the client "
        "reports it. The Java client and kafka-python raise from poll and read nothing; "
        "librdkafka reports an error for each partition, and reads the others."
    ),
    scope=(
        "Java client since 0.9, librdkafka since 0.9 (which calls the value error) and "
        "kafka-python, which treats any value that it does not know as none. Measured with the "
        "classic protocol, with librdkafka also with the consumer protocol (since 4.0)."
    ),
    sources=("documentation: auto.offset.reset", "librdkafka: configuration"),
    rules=("PIPELINE_SKIPS_EXISTING_RECORDS",),
)
def missing_offset_with_none(trial: Trial) -> None:
    count, rows = trial.scaled(300, 3_000), list[list[Cell]]()
    scenario, topic = trial.scenario("none"), trial.topic(PARTITIONS)
    starting.send_more(trial, scenario, topic, count, first=0)
    middle, clients, numbers = (
        starting.log_middle(trial, topic),
        starting.all_clients(trial),
        (PARTITIONS, 2, 0),
    )
    plans: dict[StartClient, list[Consuming]] = {}
    for client in clients:
        plans[client] = [
            starting.changed(
                client.plan(trial, topic, client.no_reset, f"{client}, {committed} committed"),
                continue_after_error=True,
            )
            for committed in numbers
        ]
        for committed, plan in zip(numbers, plans[client], strict=True):
            starting.commit_at(
                trial, topic, plan.group, {part: middle[part] for part in range(committed)}
            )
    readings = starting.read_each(trial, scenario, plans)
    for client in clients:
        for committed, found in zip(numbers, readings[client], strict=True):
            named = sorted(set(found.errors))
            evidence = f"{', '.join(named) or 'no error'}, {found.count} records read"
            rows.append([str(client), committed, ", ".join(named) or "none", found.count])
            if committed == PARTITIONS:
                trial.control(f"{client}: no error when all are committed", not named, evidence)
            else:
                missing = f"{PARTITIONS - committed} of {PARTITIONS}"
                trial.statement(
                    f"{client.protocol} protocol: an error with {missing} partitions uncommitted",
                    starting.is_about_offsets(found),
                    evidence,
                    client=client.library,
                )
    trial.table(
        "Errors and records of a consumer that continues after the error",
        ["client", "committed", "error", "read"],
        rows,
    )
