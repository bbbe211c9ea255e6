"""Rules about what relays and streams publish to: topic, position, transactions, and readers."""

from __future__ import annotations

from collections.abc import Iterator

from instep.document.showing import counted
from instep.vet import clients
from instep.vet.rule import OutputContext, Risk, Severity, StreamContext, Violation, rule
from instep.vet.snapshot import Values

REPLICAS_WANTED = 3


# --- the topic ------------------------------------------------------------------------------------


@rule(
    "OUTPUT_CHANGED",
    Risk.STANDSTILL,
    when="now: the relay or stream stops with OUTPUT_TOPIC_CHANGED",
    what="The topic has another number of partitions than when it was last published to, or was "
    "created again.",
    consequence="With more partitions, a document's next record may be in another partition than "
    "the ones before, and readers may apply it first. The relay or stream stops before that "
    "happens.",
    remedy="Wait until the readers have read everything, then let it continue: "
    "instep relay reset --to current, or instep stream reset --to current.",
    acceptable_when="Never.",
)
def changed(case: OutputContext) -> Iterator[Violation]:
    position = case.position
    if position is None:
        if f"position of {case.label}" in case.snapshot.unknown:
            case.known(None, f"position of {case.label}")
        return
    evidence = []
    partitions = len(case.topic.partitions)
    if position.partitions != partitions:
        evidence.append(f"{partitions} partitions, {position.partitions} when it last published")
    if position.topic_id != case.topic_id:
        evidence.append("the topic was deleted and created again")
    if position.cluster_id != case.cluster.cluster_id:
        evidence.append(f"the position is of cluster {position.cluster_id}")
    if evidence:
        yield Violation(
            Severity.ERROR,
            f"topic {case.topic_name}",
            tuple(evidence),
            f"instep {case.kind} reset {case.name} --to current --execute",
        )


@rule(
    "OUTPUT_TOPIC_SHARED",
    Risk.DISORDER,
    when="two relays or streams publish records of the same document",
    what="Several relays or streams publish to the same topic.",
    consequence="Each keeps its own order. Between two of them there is no order: the older change "
    "of a document may be published last.",
    remedy="Give each its own topic, or make sure that no document comes from both.",
    acceptable_when="If each document comes from one of them.",
)
def topic_shared(case: OutputContext) -> Iterator[Violation]:
    publishers = [f"relay {name}" for name in case.relays]
    publishers += [f"stream {name}" for name in case.streams]
    if len(publishers) > 1:
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic_name}",
            (f"{' and '.join(sorted(publishers))} publish to it",),
            f'[{case.kind}s.{case.name}]\n{case.topic_setting} = "{case.topic_name}-{case.name}"',
        )


@rule(
    "OUTPUT_GUARANTEE_WEAK",
    Risk.REPETITION,
    when="the relay or stream, a broker or the source dies between the records and the position",
    what="The relay or stream publishes at least once, not exactly once.",
    consequence="A batch whose position was not written is published again. Readers without a "
    "guard apply it twice, or go back to an older status for a moment.",
    remedy='Set guarantee = "exactly-once".',
    acceptable_when="If the cluster offers no transactions, and every reader skips repetitions.",
)
def guarantee_weak(case: OutputContext) -> Iterator[Violation]:
    if case.guarantee != "exactly-once":
        yield Violation(
            Severity.NOTE,
            case.label,
            (f'{case.kind}s.{case.name}.guarantee="{case.guarantee}"',),
            f'[{case.kind}s.{case.name}]\nguarantee = "exactly-once"',
        )


@rule(
    "OUTPUT_TRANSACTION_TIMEOUT_REFUSED",
    Risk.STANDSTILL,
    when="now: no transaction can be started",
    what="The brokers allow only shorter transactions than the relay or stream asks for.",
    consequence="The broker answers INVALID_TRANSACTION_TIMEOUT, and nothing is published.",
    remedy="Raise transaction.max.timeout.ms on every broker.",
    acceptable_when="Never.",
)
def transaction_timeout_refused(case: OutputContext) -> Iterator[Violation]:
    if case.guarantee != "exactly-once":
        return
    wanted, allowed = case.transaction_timeout_ms, case.transaction_timeout_ms_max
    if allowed < wanted:
        yield Violation(
            Severity.ERROR,
            case.label,
            (
                f"transaction.timeout.ms={wanted} of the {case.kind}",
                f"transaction.max.timeout.ms={allowed} of the brokers",
            ),
            f"set transaction.max.timeout.ms={wanted} in server.properties of every broker, and"
            " restart the brokers one after the other",
        )


# --- the position ---------------------------------------------------------------------------------


@rule(
    "OUTPUT_POSITION_TOPIC_SETTINGS",
    Risk.STANDSTILL,
    when="the retention time has passed, or another partition gets the position",
    what="The position topic is not compacted, or that of a relay has several partitions.",
    consequence="Without compaction the position expires and the relay or stream stops with "
    "POSITION_MISSING. A relay reads partition 0 only.",
    remedy="Set cleanup.policy=compact. A topic's partitions cannot be reduced: stop the relay, "
    "delete the topic, run instep relay init and instep relay reset.",
    acceptable_when="Never.",
)
def position_topic_settings(case: OutputContext) -> Iterator[Violation]:
    name = case.position_topic
    settings = _position_settings(case)
    if settings is None:
        return
    policy = case.known(settings.get("cleanup.policy"), f"cleanup.policy of topic {name}").value
    if policy != "compact":
        yield Violation(
            Severity.ERROR,
            f"topic {name}",
            (f"cleanup.policy={policy}",),
            f"instep topics alter {name} -c cleanup.policy=compact --execute",
        )
    partitions = len(case.other_topic(name).partitions)
    if case.kind == "relay" and partitions > 1:
        yield Violation(
            Severity.WARNING,
            f"topic {name}",
            (f"{partitions} partitions",),
            f"instep topics delete {name} --execute; instep relay init {case.name}; instep relay"
            f" reset {case.name} --to end --execute, once the outbox is empty",
        )


@rule(
    "OUTPUT_POSITION_UNDER_REPLICATED",
    Risk.STANDSTILL,
    when="a broker's disk is lost",
    what="The position topic has too few replicas, or one replica is enough to acknowledge the "
    "position.",
    consequence="The position can be lost while the records are still there. The relay or stream "
    "then stops with POSITION_MISSING, and a person has to find out what was published.",
    remedy="Give the position topic three replicas, min.insync.replicas=2 and "
    "unclean.leader.election.enable=false.",
    acceptable_when="On a laptop and in tests.",
)
def position_under_replicated(case: OutputContext) -> Iterator[Violation]:
    name = case.position_topic
    settings = _position_settings(case)
    if settings is None:
        return
    replicas = min(len(part.replicas) for part in case.other_topic(name).partitions)
    evidence, steps, alter = [], [], []
    if replicas < REPLICAS_WANTED:
        evidence.append(counted(replicas, "replica"))
        if len(case.cluster.brokers) < REPLICAS_WANTED:
            steps.append(f"add brokers until there are {REPLICAS_WANTED}")
        steps.append(f"instep topics replicate {name} -r {REPLICAS_WANTED} --execute")
    in_sync = settings.get("min.insync.replicas")
    if in_sync is not None and int(in_sync.value or 1) < 2:
        evidence.append(f"min.insync.replicas={in_sync.value}")
        alter.append("-c min.insync.replicas=2")
    unclean = settings.get("unclean.leader.election.enable")
    if unclean is not None and unclean.value == "true":
        evidence.append("unclean.leader.election.enable=true")
        alter.append("-c unclean.leader.election.enable=false")
    if alter:
        steps.append(f"instep topics alter {name} {' '.join(alter)} --execute")
    if evidence:
        yield Violation(Severity.WARNING, f"topic {name}", tuple(evidence), "; then ".join(steps))


def _position_settings(case: OutputContext) -> Values | None:
    """Return the settings of the position topic; None if it does not exist yet."""
    name = case.position_topic
    if case.snapshot.topics.get(name) is None:
        return None
    return case.known(case.other_topic(name).settings, f"settings of topic {name}")


# --- readers --------------------------------------------------------------------------------------


@rule(
    "READER_NOT_READ_COMMITTED",
    Risk.REPETITION,
    when="the relay or stream dies in the middle of a transaction",
    what="A reader of the topic also reads records of transactions that were not committed.",
    consequence="The records of an aborted transaction are published again. This reader gets "
    "them twice, and sees them before they are final.",
    remedy="Set isolation.level=read_committed. Pipelines and streams always read this way.",
    acceptable_when="If the reader skips repetitions by itself.",
)
def reader_not_read_committed(case: OutputContext) -> Iterator[Violation]:
    if case.guarantee != "exactly-once":
        return
    for name, reader in case.readers.items():
        if not clients.reads_committed(reader.client, reader.isolation):
            origin = f"default of {reader.client}"
            if reader.isolation is not None:
                origin = "set"
            setting = "kafka.isolation.level" if reader.client == "spark" else "isolation.level"
            yield Violation(
                Severity.ERROR,
                f"reader {name}",
                (f"{setting}={reader.isolation or 'read_uncommitted'} ({origin})",),
                f"set {setting}=read_committed in the reader, and the same in [readers.{name}]"
                " config",
            )


@rule(
    "READER_NOT_DECLARED",
    Risk.REPETITION,
    when="the relay or stream dies in the middle of a transaction, and a reader reads uncommitted "
    "records",
    what="Consumer groups read the topic, and their isolation level is not known.",
    consequence="A broker does not know the isolation level of a group. Most clients read "
    "uncommitted records by default, and get the records of an aborted transaction twice.",
    remedy="Declare each reader: [readers.NAME] with topic, client and the settings that it "
    "changes.",
    acceptable_when="If the readers belong to another team that vouches for them.",
)
def reader_not_declared(case: OutputContext) -> Iterator[Violation]:
    if case.guarantee != "exactly-once":
        return
    found = case.known(case.groups, f"groups that read topic {case.topic_name}")
    declared = {reader.group for reader in case.readers.values()}
    for group in found:
        if group not in declared:
            yield Violation(
                Severity.NOTE,
                f"group {group}",
                (f"it has committed offsets for topic {case.topic_name}",),
                f'[readers."{group}"]\ntopic = "{case.topic_name}"\nclient = "java"\n'
                'config.isolation.level = "read_committed"',
            )


# --- streams --------------------------------------------------------------------------------------


@rule(
    "OUTPUT_RECORDS_SMALLER",
    Risk.STANDSTILL,
    when="a record of the source topic is larger than the output topic allows",
    what="The output topic of a stream accepts only smaller records than the topic that it reads.",
    consequence="The stream stops with OUTPUT_TOO_LARGE, or the record becomes a dead letter.",
    remedy="Give both topics the same max.message.bytes.",
    acceptable_when="If the transformation makes records smaller.",
)
def records_smaller(case: StreamContext) -> Iterator[Violation]:
    name = "max.message.bytes"
    settings = case.known(case.source.settings, f"settings of topic {case.source.name}")
    read = case.known(settings.get(name), f"{name} of topic {case.source.name}").value
    accepted = case.number(name)
    if read is not None and int(read) > accepted:
        yield Violation(
            Severity.WARNING,
            f"topic {case.topic_name}",
            (f"{name}={accepted}", f"{name}={read} of topic {case.source.name}"),
            f"instep topics alter {case.topic_name} -c {name}={read} --execute",
        )


@rule(
    "OUTPUT_SOURCE_EXPIRES_EARLY",
    Risk.LOSS,
    when="a stream stands still for longer than its source topic keeps records",
    what="The topic that a stream reads keeps records for a shorter time than an outage may last.",
    consequence="Records expire before they are published. The stream stops with OFFSETS_EXPIRED, "
    "and a person has to decide to continue without them.",
    remedy="Raise retention.ms of the source topic above vet.outage_hours_max.",
    acceptable_when="If the records can be published again from their source.",
)
def source_expires_early(case: StreamContext) -> Iterator[Violation]:
    settings = case.known(case.source.settings, f"settings of topic {case.source.name}")
    name = "retention.ms"
    kept_ms = int(case.known(settings.get(name), f"{name} of {case.source.name}").value or -1)
    policy = settings.get("cleanup.policy")
    expires = policy is None or "delete" in (policy.value or "delete")
    if expires and 0 <= kept_ms < case.outage_ms:
        yield Violation(
            Severity.WARNING,
            f"topic {case.source.name}",
            (f"{name}={kept_ms}", f"vet.outage_hours_max={case.snapshot.outage_hours_max}"),
            f"instep topics alter {case.source.name} -c {name}={case.outage_ms} --execute",
        )
