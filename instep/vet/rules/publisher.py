"""Rules about declared publishers, checked by the settings that are in effect for their client."""

from __future__ import annotations

from collections.abc import Iterator

from instep import settings
from instep.vet import clients
from instep.vet.clients import Effective
from instep.vet.rule import Risk, RuleContext, Severity, Violation, error_if, rule, warning_if

DELIVERY_MS_MIN = 30_000
LINGER_MS_MAX = 500
TRANSACTION_MS_MAX = 60_000
IN_FLIGHT_ORDERED_MAX = 5  # up to this many, brokers restore the order of an idempotent producer
RETRIES_MIN = 20  # two seconds with the usual pause of 100 ms
REQUEST_MS_MIN = 5_000
BLOCK_MS_MIN = 5_000
# The overhead that a batch adds to its records.
BATCH_BYTES = 100


def _evidence(publisher: Effective, name: str, value: object) -> str:
    return f"{name}={value} ({publisher.origins.get(name, 'set')})"


def _fix(name: str, change: str) -> str:
    return f"{change} in the publisher, and the same in [publishers.{name}] config"


def _fix_by_removing(name: str, setting: str) -> str:
    return (
        f"remove {setting} from the publisher's settings and from [publishers.{name}]"
        " config: the default is right"
    )


def _repetition_severity(case: RuleContext) -> Severity:
    """Return how bad repetitions are. A guard that compares a version skips them."""
    if not case.must_not_repeat:
        return Severity.NOTE
    return error_if(not case.guarded or case.pipeline.order_is_time)


@rule(
    "PUBLISHER_NOT_DECLARED",
    Risk.LOSS,
    when="a publisher drops, repeats or reorders records",
    what="No publisher of the topic is declared, so its settings cannot be checked.",
    consequence="A guarantee that starts at the broker does not cover what is lost, repeated or "
    "reordered before it.",
    remedy="Declare each publisher: [publishers.NAME] with topic, client and the settings that it "
    "changes.",
    acceptable_when="If the publisher belongs to another team that vouches for it.",
)
def not_declared(case: RuleContext) -> Iterator[Violation]:
    if not case.is_publisher_known:
        yield Violation(
            Severity.NOTE,
            f"topic {case.pipeline.topic}",
            ("no entry of [publishers], [relays] or [bridges] names this topic",),
            f'[publishers."{case.pipeline.topic}"]\n'
            f'topic = "{case.pipeline.topic}"\nclient = "java"',
        )


@rule(
    "PUBLISHER_ACKS_NOT_ALL",
    Risk.LOSS,
    when="the leader of a partition dies",
    what="The publisher does not wait for all in-sync replicas.",
    consequence="With acks=1 a record is acknowledged when one broker has it, with acks=0 before "
    "any broker has it. If the leader then dies, acknowledged records are lost and the publisher "
    "does not notice.",
    remedy="Set acks=all.",
    acceptable_when="With the guarantee at-most-once.",
)
def acks_not_all(case: RuleContext) -> Iterator[Violation]:
    for name, publisher in case.publishers.items():
        if publisher.acks != "all":
            yield Violation(
                error_if(case.must_not_lose, otherwise=Severity.NOTE),
                f"publisher {name}",
                (_evidence(publisher, "acks", publisher.acks),),
                _fix(name, "set acks=all"),
            )


@rule(
    "PUBLISHER_NOT_IDEMPOTENT",
    Risk.REPETITION,
    when="the answer to a publisher's request is late and the request is sent again",
    what="The publisher is not idempotent.",
    consequence="A request whose answer was lost is sent again, and the broker keeps both. The "
    "guard skips repetitions if it compares a version. Without a guard, an old status that is "
    "repeated late overwrites a newer one.",
    remedy="Set enable.idempotence=true.",
    acceptable_when="With the guarantee at-least-once, or if the guard compares a version and "
    "repetitions in the history do not matter.",
)
def not_idempotent(case: RuleContext) -> Iterator[Violation]:
    sent_again = "the application itself sends again what was not acknowledged"
    for name, publisher in case.publishers.items():
        if not publisher.idempotent and not publisher.refused:
            yield Violation(
                _repetition_severity(case),
                f"publisher {name}",
                (_evidence(publisher, "enable.idempotence", "false"),),
                _fix(name, _idempotence_fix(publisher)),
                when=None if publisher.retries > 0 else sent_again,
            )


def _idempotence_fix(publisher: Effective) -> str:
    """Return what turns idempotence on, without settings that the client would refuse."""
    weak = (("acks", publisher.acks != "all"), ("retries", publisher.retries < 1))
    clashing = [name for name, is_weak in weak if is_weak and publisher.origins.get(name) == "set"]
    if (
        publisher.in_flight > IN_FLIGHT_ORDERED_MAX
        and publisher.origins.get("max.in.flight.requests.per.connection") == "set"
    ):
        clashing.append("max.in.flight.requests.per.connection")
    fix = "set enable.idempotence=true"
    if clashing:
        fix += f" and remove {' and '.join(clashing)}"
    return fix


@rule(
    "PUBLISHER_REORDERS_ON_RETRY",
    Risk.DISORDER,
    when="a request fails and is sent again after later ones",
    what="The publisher has several requests in flight and is not idempotent.",
    consequence="A request that is retried arrives after later ones, so the events of a document "
    "change places in the log.",
    remedy="Set enable.idempotence=true or max.in.flight.requests.per.connection=1.",
    acceptable_when="If the guard compares a version, which restores the order.",
)
def reorders_on_retry(case: RuleContext) -> Iterator[Violation]:
    for name, publisher in case.publishers.items():
        if (
            not publisher.idempotent
            and publisher.in_flight > 1
            and publisher.retries > 0
            and not publisher.refused
        ):
            yield Violation(
                error_if(not case.guarded),
                f"publisher {name}",
                (
                    _evidence(
                        publisher, "max.in.flight.requests.per.connection", publisher.in_flight
                    ),
                    _evidence(publisher, "enable.idempotence", "false"),
                ),
                _fix(name, _idempotence_fix(publisher)),
            )


@rule(
    "PUBLISHER_PARTITIONER_NOT_MURMUR2",
    Risk.DISORDER,
    when="another client publishes the same document",
    what="The publisher does not use Java's partitioner, murmur2.",
    consequence="Java, kafka-python, aiokafka and instep use murmur2; librdkafka's default is "
    "CRC32. The first publisher of the other kind splits documents over two partitions. A "
    "publisher that ignores keys splits all of them.",
    remedy="Set partitioner=murmur2.",
    acceptable_when="If every publisher of the topic, and every tool that looks up the partition "
    "of a key, uses the same hash.",
)
def partitioner_not_murmur2(case: RuleContext) -> Iterator[Violation]:
    for name, publisher in case.publishers.items():
        if publisher.hashing != clients.MURMUR2:
            ignores_keys = publisher.hashing == clients.NO_KEYS
            fix = _fix_by_removing(name, "the partitioner setting")
            if case.snapshot.publishers[name].client == "librdkafka":
                fix = _fix(name, "set partitioner=murmur2")
            yield Violation(
                error_if(ignores_keys and not case.guarded),
                f"publisher {name}",
                (f"keys are hashed by {publisher.hashing} ({publisher.origins['partitioner']})",),
                fix,
                when="any document has a second event" if ignores_keys else None,
            )


@rule(
    "PUBLISHER_PARTITIONERS_DIFFER",
    Risk.DISORDER,
    when="two publishers send events of the same document",
    what="Publishers of the topic put the same key into different partitions.",
    consequence="With 3, 6 or 12 partitions, 67, 83 or 92 % of the keys go to another partition. "
    "The events of a document are then in two partitions, which are applied in parallel.",
    remedy="Use murmur2 in all publishers.",
    acceptable_when="If they never publish the same document.",
)
def partitioners_differ(case: RuleContext) -> Iterator[Violation]:
    hashes = {name: publisher.hashing for name, publisher in case.publishers.items()}
    if len(set(hashes.values())) > 1:
        odd = [name for name, hashing in hashes.items() if hashing != clients.MURMUR2]
        yield Violation(
            error_if(not case.guarded),
            f"topic {case.pipeline.topic}",
            tuple(f"{name}: {hashing}" for name, hashing in hashes.items()),
            f"set partitioner=murmur2 in {', '.join(odd)}",
        )


@rule(
    "PUBLISHER_DOES_NOT_RETRY",
    Risk.LOSS,
    when="a broker is briefly unavailable",
    what="The publisher does not retry failed requests.",
    consequence="Leaders move at every restart of a broker. Requests fail for a moment, and their "
    "records are dropped.",
    remedy="Leave retries at its default and limit the total time with delivery.timeout.ms.",
    acceptable_when="With the guarantee at-most-once, or if the publisher itself publishes again "
    "what was not acknowledged.",
)
def does_not_retry(case: RuleContext) -> Iterator[Violation]:
    for name, publisher in case.publishers.items():
        if publisher.retries < 1:
            yield Violation(
                error_if(case.must_not_lose, otherwise=Severity.NOTE),
                f"publisher {name}",
                (_evidence(publisher, "retries", publisher.retries),),
                _fix_by_removing(name, f"retries={publisher.retries}"),
            )


@rule(
    "PUBLISHER_TOO_FEW_RETRIES",
    Risk.LOSS,
    when="an election takes longer than the retries",
    what="The publisher retries only a few times.",
    consequence="With the usual pause of 100 ms, a few retries are over within a second. An "
    "election after a broker failure takes longer, and the records are dropped.",
    remedy="Leave retries at its default and limit the total time with delivery.timeout.ms.",
    acceptable_when="If the publisher itself publishes again what was not acknowledged.",
)
def too_few_retries(case: RuleContext) -> Iterator[Violation]:
    for name, publisher in case.publishers.items():
        if 1 <= publisher.retries < RETRIES_MIN:
            yield Violation(
                warning_if(case.must_not_lose),
                f"publisher {name}",
                (_evidence(publisher, "retries", publisher.retries),),
                _fix_by_removing(name, f"retries={publisher.retries}"),
            )


@rule(
    "PUBLISHER_DELIVERY_TIMEOUT_SHORT",
    Risk.LOSS,
    when="brokers are unavailable for longer than the publisher waits",
    what="The publisher drops a record that is not acknowledged within a short time.",
    consequence="An election after a broker failure takes seconds, a restart up to minutes.",
    remedy="Set delivery.timeout.ms (message.timeout.ms in librdkafka) to two minutes or more.",
    acceptable_when="If the publisher keeps what failed, for example in an outbox table, and "
    "publishes it again.",
)
def delivery_timeout_short(case: RuleContext) -> Iterator[Violation]:
    for name, publisher in case.publishers.items():
        if publisher.delivery_timeout_ms < DELIVERY_MS_MIN and publisher.retries >= 1:
            yield Violation(
                warning_if(case.must_not_lose),
                f"publisher {name}",
                (_evidence(publisher, "delivery.timeout.ms", publisher.delivery_timeout_ms),),
                _fix(name, "set delivery.timeout.ms=120000"),
            )


@rule(
    "PUBLISHER_SETTINGS_CONFLICT",
    Risk.STANDSTILL,
    when="the publisher is started",
    what="The client does not accept this combination of settings.",
    consequence="The client refuses to start, or sending fails.",
    remedy="Remove one of the conflicting settings.",
    acceptable_when="Never.",
)
def settings_conflict(case: RuleContext) -> Iterator[Violation]:
    for name, publisher in case.publishers.items():
        if publisher.refused:
            yield Violation(
                Severity.ERROR,
                f"publisher {name}",
                (publisher.refused,),
                f"remove one of them from [publishers.{name}] config",
            )


@rule(
    "PUBLISHER_SETTING_MISSPELT",
    Risk.LOSS,
    when="the default does not do what the setting was meant to do",
    what="A setting of the publisher has a name that no client knows.",
    consequence="Java clients ignore it with a warning in the log, so the default stays in effect. "
    "Other clients refuse to start.",
    remedy="Correct the name.",
    acceptable_when="If it is a setting of the application, not of the client.",
)
def setting_misspelt(case: RuleContext) -> Iterator[Violation]:
    for name, publisher in case.publishers.items():
        for wrong, meant in publisher.misspelt:
            value = case.snapshot.publishers[name].config.get(wrong, "")
            yield Violation(
                Severity.WARNING,
                f"publisher {name}",
                (f"{wrong}; did you mean {meant}?",),
                _fix(name, f"rename {wrong} to {meant}: {meant}={value}"),
            )


@rule(
    "PUBLISHER_RECORD_LIMIT_ABOVE_TOPIC",
    Risk.LOSS,
    when="a large record is published",
    what="The publisher accepts larger records than the topic does.",
    consequence="They pass the client and are refused by the broker, an error that the sender sees "
    "late or not at all.",
    remedy="Set max.message.bytes of the topic to at least the publisher's limit.",
    acceptable_when="If no record comes close to either limit, or compression makes them small.",
)
def record_limit_above_topic(case: RuleContext) -> Iterator[Violation]:
    limit = case.number("max.message.bytes")
    for name, publisher in case.publishers.items():
        if publisher.record_bytes_max > limit + BATCH_BYTES:
            yield Violation(
                Severity.WARNING,
                f"publisher {name}",
                (
                    _evidence(publisher, "max.request.size", publisher.record_bytes_max),
                    case.evidence("max.message.bytes"),
                ),
                f"instep topics alter {case.topic.name} -c"
                f" max.message.bytes={publisher.record_bytes_max + BATCH_BYTES} --execute",
            )


@rule(
    "PUBLISHER_LINGER_LONG",
    Risk.STANDSTILL,
    when="always: every event waits",
    what="The publisher delays records for a long time to send more of them at once.",
    consequence="The table is at best about a second behind, and this delay is added.",
    remedy="Set linger.ms to about 5.",
    acceptable_when="If being seconds behind does not matter.",
)
def linger_long(case: RuleContext) -> Iterator[Violation]:
    for name, publisher in case.publishers.items():
        if publisher.linger_ms > LINGER_MS_MAX:
            yield Violation(
                Severity.WARNING,
                f"publisher {name}",
                (_evidence(publisher, "linger.ms", publisher.linger_ms),),
                _fix(name, "set linger.ms=5"),
            )


@rule(
    "PUBLISHER_TRANSACTION_TIMEOUT_LONG",
    Risk.STANDSTILL,
    when="a publisher dies in the middle of a transaction",
    what="A transaction may stay open for a long time.",
    consequence="Pipelines read only committed records. An open transaction hides everything "
    "behind it in its partitions, of all publishers, until it ends or times out.",
    remedy="Set transaction.timeout.ms to a minute or less.",
    acceptable_when="If transactions are long by nature, and waiting for them is right.",
)
def transaction_timeout_long(case: RuleContext) -> Iterator[Violation]:
    for name, publisher in case.publishers.items():
        if publisher.transactional and publisher.transaction_timeout_ms > TRANSACTION_MS_MAX:
            yield Violation(
                Severity.WARNING,
                f"publisher {name}",
                (_evidence(publisher, "transaction.timeout.ms", publisher.transaction_timeout_ms),),
                _fix(name, f"set transaction.timeout.ms={TRANSACTION_MS_MAX}"),
            )


@rule(
    "PUBLISHER_TRANSACTION_TIMEOUT_REFUSED",
    Risk.STANDSTILL,
    when="the publisher starts its first transaction",
    what="The publisher requests a longer transaction timeout than the brokers allow.",
    consequence="The broker answers INVALID_TRANSACTION_TIMEOUT, and nothing is published.",
    remedy="Lower transaction.timeout.ms to at most the brokers' transaction.max.timeout.ms.",
    acceptable_when="Never.",
)
def transaction_timeout_refused(case: RuleContext) -> Iterator[Violation]:
    transactional = {
        name: publisher for name, publisher in case.publishers.items() if publisher.transactional
    }
    if not transactional:
        return
    allowed = case.transaction_timeout_ms_max
    for name, publisher in transactional.items():
        if publisher.transaction_timeout_ms > allowed:
            yield Violation(
                Severity.ERROR,
                f"publisher {name}",
                (
                    _evidence(
                        publisher, "transaction.timeout.ms", publisher.transaction_timeout_ms
                    ),
                    f"transaction.max.timeout.ms={allowed} of the brokers",
                ),
                _fix(name, f"set transaction.timeout.ms={min(allowed, TRANSACTION_MS_MAX)}"),
            )


@rule(
    "PUBLISHER_TRANSACTIONAL_ID_SHARED",
    Risk.STANDSTILL,
    when="both publishers run at the same time",
    what="Two publishers have the same transactional.id.",
    consequence="The cluster treats the second one as a restart of the first one and fences the "
    "first: its transactions are aborted, and it can no longer publish. When it is restarted, it "
    "fences the other one.",
    remedy="Give each running publisher its own transactional.id.",
    acceptable_when="Never for two publishers that run at the same time.",
)
def transactional_id_shared(case: RuleContext) -> Iterator[Violation]:
    declared = {
        name: clients.effective(publisher.client, publisher.config)
        for name, publisher in case.snapshot.publishers.items()
    }
    for name, publisher in case.publishers.items():
        others = [
            other
            for other, its in declared.items()
            if other != name and its.transactional_id == publisher.transactional_id
        ]
        if publisher.transactional_id and others:
            yield Violation(
                Severity.ERROR,
                f"publisher {name}",
                (
                    f"transactional.id={publisher.transactional_id}, also used by"
                    f" {' and '.join(others)}",
                ),
                _fix(name, f"set transactional.id={publisher.transactional_id}-{name}"),
            )


@rule(
    "PUBLISHER_REQUEST_TIMEOUT_SHORT",
    Risk.REPETITION,
    when="a broker answers slowly, for example during an election or with a full disk cache",
    what="The publisher waits only briefly for a broker's answer.",
    consequence="A request that timed out may still be written. It is sent again: without "
    "idempotence the record is there twice, and the broker gets more work while it is slow.",
    remedy="Leave request.timeout.ms at its default of 30 s.",
    acceptable_when="If the publisher is idempotent and the brokers are known to answer quickly.",
)
def request_timeout_short(case: RuleContext) -> Iterator[Violation]:
    for name, publisher in case.publishers.items():
        if 0 < publisher.request_timeout_ms < REQUEST_MS_MIN:
            yield Violation(
                warning_if(not publisher.idempotent),
                f"publisher {name}",
                (_evidence(publisher, "request.timeout.ms", publisher.request_timeout_ms),),
                _fix_by_removing(name, f"request.timeout.ms={publisher.request_timeout_ms}"),
            )


@rule(
    "PUBLISHER_BLOCK_TIMEOUT_SHORT",
    Risk.LOSS,
    when="the brokers are briefly unavailable or the publisher's buffer is full",
    what="The publisher's send() fails almost immediately if it cannot accept a record.",
    consequence="It raises an error instead of waiting. An application that does not keep the "
    "record and retry loses it.",
    remedy="Leave max.block.ms at its default of 60 s.",
    acceptable_when="If the application keeps what send() refused, for example in an outbox table, "
    "and publishes it again.",
)
def block_timeout_short(case: RuleContext) -> Iterator[Violation]:
    for name, publisher in case.publishers.items():
        if publisher.block_ms is not None and publisher.block_ms < BLOCK_MS_MIN:
            yield Violation(
                warning_if(case.must_not_lose),
                f"publisher {name}",
                (_evidence(publisher, "max.block.ms", publisher.block_ms),),
                _fix_by_removing(name, f"max.block.ms={publisher.block_ms}"),
            )


@rule(
    "PUBLISHER_TOPIC_WITHOUT_PIPELINE",
    Risk.LOSS,
    when="now: no pipeline applies what it publishes",
    what="A declared publisher names a topic that no pipeline reads.",
    consequence="What it publishes reaches no table; or the topic is misspelt, and the publisher's "
    "settings are not checked.",
    remedy="Correct the topic in [publishers.NAME], or declare a pipeline that reads it.",
    acceptable_when="If other programs read that topic.",
)
def topic_without_pipeline(case: RuleContext) -> Iterator[Violation]:
    followed = {writer.topic for writer in case.snapshot.writers.values() if writer.topic}
    for name, publisher in case.snapshot.publishers.items():
        if followed and publisher.topic not in followed:
            similar = settings.nearest(publisher.topic, sorted(followed))
            yield Violation(
                Severity.WARNING,
                f"publisher {name}",
                (
                    f'publishers.{name}.topic="{publisher.topic}"{similar}',
                    f"topics that pipelines read: {', '.join(sorted(followed))}",
                ),
                f'[publishers.{name}]\ntopic = "{case.pipeline.topic}"',
            )


@rule(
    "PUBLISHER_COMPRESSION_DIFFERS",
    Risk.STANDSTILL,
    when="always: the broker compresses every batch again",
    what="The topic's compression differs from the publisher's.",
    consequence="The broker decompresses and compresses every batch, which takes more CPU time "
    "than everything else that it does.",
    remedy="Set compression.type=producer on the topic.",
    acceptable_when="If the publisher's compression cannot be changed and the topic must be small.",
)
def compression_differs(case: RuleContext) -> Iterator[Violation]:
    setting = case.topic_settings.get("compression.type")
    compression = setting.value if setting else None
    if compression in (None, "producer"):
        return
    for name, publisher in case.publishers.items():
        if publisher.compression != ("none" if compression == "uncompressed" else compression):
            yield Violation(
                Severity.NOTE,
                f"publisher {name}",
                (
                    _evidence(publisher, "compression.type", publisher.compression),
                    case.evidence("compression.type"),
                ),
                f"instep topics alter {case.topic.name} -c compression.type=producer --execute",
            )
