"""Rules about the publishers that the settings declare, each judged by what its client makes of its settings."""

from __future__ import annotations

from collections.abc import Iterator

from instep import settings
from instep.vet import clients
from instep.vet.clients import Effective
from instep.vet.rule import Risk, RuleContext, Severity, Violation, rule

DELIVERY_MS_MIN = 30_000
LINGER_MS_MAX = 500
TRANSACTION_MS_MAX = 60_000
IN_FLIGHT_ORDERED_MAX = 5
RETRIES_MIN = 20
REQUEST_MS_MIN = 5_000
BLOCK_MS_MIN = 5_000
# what a batch adds to its records
BATCH_BYTES = 100


def _found(one: Effective, name: str, value: object) -> str:
    return f"{name}={value} ({one.said.get(name, 'set')})"


def _fix(name: str, change: str) -> str:
    return f"{change} in the publisher, and the same in [publishers.{name}] config"


def _remove(name: str, setting: str) -> str:
    return f"remove {setting} from the publisher's settings and from [publishers.{name}] config: the default is right"


def _repeating(case: RuleContext) -> Severity:
    """How bad repetitions are: a guard that compares a version skips them, and they only show in the history."""
    if not case.must_not_repeat:
        return Severity.NOTE
    return Severity.WARNING if case.guarded and not case.pipeline.order_is_time else Severity.ERROR


@rule(
    "PUBLISHER_UNDECLARED",
    Risk.LOSS,
    when="a publisher gives up a record, repeats it or overtakes itself",
    what="No publisher of the topic is declared, so how it sends cannot be judged.",
    consequence="A promise that begins at the broker says nothing of what is lost, repeated or reordered before it.",
    remedy="Declare each publisher: [publishers.NAME] with topic, client and the settings it changes.",
    acceptable_when="When the publisher belongs to another team who vouch for it.",
)
def undeclared(case: RuleContext) -> Iterator[Violation]:
    if not case.publishers:
        yield Violation(
            Severity.NOTE,
            f"topic {case.pipeline.topic}",
            ("no table below [publishers] names this topic",),
            f'[publishers."{case.pipeline.topic}"]\ntopic = "{case.pipeline.topic}"\nclient = "java"',
        )


@rule(
    "PUBLISHER_ACKS",
    Risk.LOSS,
    when="the leader of a partition dies",
    what="The publisher does not wait for all in-sync replicas.",
    consequence="With acks=1 a record is confirmed when one broker has it, with acks=0 before any has. If the leader dies then, "
    "confirmed records are gone and the publisher does not know.",
    remedy="Set acks=all.",
    acceptable_when="With the guarantee at-most-once.",
)
def acks(case: RuleContext) -> Iterator[Violation]:
    for name, one in case.publishers.items():
        if one.acks != "all":
            yield Violation(
                Severity.ERROR if case.must_not_lose else Severity.NOTE,
                f"publisher {name}",
                (_found(one, "acks", one.acks),),
                _fix(name, "set acks=all"),
            )


@rule(
    "PUBLISHER_NOT_IDEMPOTENT",
    Risk.REPETITION,
    when="the publisher's request is answered late and sent again",
    what="The publisher is not idempotent.",
    consequence="A request whose answer was lost is sent again, and the broker keeps both. The guard skips repetitions where it "
    "compares a version; without it, an old status that is repeated late overwrites a new one.",
    remedy="Set enable.idempotence=true.",
    acceptable_when="With the guarantee at-least-once, or with a guard that compares a version and a history where repetitions may show.",
)
def not_idempotent(case: RuleContext) -> Iterator[Violation]:
    for name, one in case.publishers.items():
        if not one.idempotent and not one.refused:
            yield Violation(
                _repeating(case),
                f"publisher {name}",
                (_found(one, "enable.idempotence", "false"),),
                _fix(name, _idempotent(one)),
                when=None
                if one.retries > 0
                else "the application itself sends again what was not confirmed",
            )


def _idempotent(one: Effective) -> str:
    """What switches idempotence on, without what the client would refuse beside it."""
    weak = (("acks", one.acks != "all"), ("retries", one.retries < 1))
    clashing = [name for name, is_weak in weak if is_weak and one.said.get(name) == "set"]
    if (
        one.in_flight > IN_FLIGHT_ORDERED_MAX
        and one.said.get("max.in.flight.requests.per.connection") == "set"
    ):
        clashing.append("max.in.flight.requests.per.connection")
    return "set enable.idempotence=true" + (
        f" and remove {' and '.join(clashing)}" if clashing else ""
    )


@rule(
    "PUBLISHER_OVERTAKES",
    Risk.DISORDER,
    when="one of the publisher's requests fails and is sent again behind later ones",
    what="The publisher has several requests on their way at once and is not idempotent.",
    consequence="A request that is retried lands behind later ones: a document's events change places in the log.",
    remedy="Set enable.idempotence=true; or max.in.flight.requests.per.connection=1.",
    acceptable_when="With a guard that compares a version: it puts the order right again.",
)
def overtakes(case: RuleContext) -> Iterator[Violation]:
    for name, one in case.publishers.items():
        if not one.idempotent and one.in_flight > 1 and one.retries > 0 and not one.refused:
            yield Violation(
                Severity.WARNING if case.guarded else Severity.ERROR,
                f"publisher {name}",
                (
                    _found(one, "max.in.flight.requests.per.connection", one.in_flight),
                    _found(one, "enable.idempotence", "false"),
                ),
                _fix(name, _idempotent(one)),
            )


@rule(
    "PUBLISHER_PARTITIONER",
    Risk.DISORDER,
    when="another client publishes the same document",
    what="The publisher does not put keys where Java's hash, murmur2, puts them.",
    consequence="Java, kafka-python, aiokafka and instep agree on murmur2; librdkafka's default is CRC32. The first publisher of the "
    "other kind splits documents over two partitions. One that ignores keys splits them all.",
    remedy="Set partitioner=murmur2.",
    acceptable_when="When every publisher of the topic, and every tool that looks up a key's partition, uses the same hash.",
)
def partitioner(case: RuleContext) -> Iterator[Violation]:
    for name, one in case.publishers.items():
        if one.hashing != clients.MURMUR2:
            scatters = one.hashing == clients.NO_KEYS
            yield Violation(
                Severity.ERROR if scatters and not case.guarded else Severity.WARNING,
                f"publisher {name}",
                (f"keys are hashed by {one.hashing} ({one.said['partitioner']})",),
                _fix(name, "set partitioner=murmur2")
                if case.snapshot.publishers[name].client == "librdkafka"
                else _remove(name, "the partitioner setting"),
                when="any document has a second event" if scatters else None,
            )


@rule(
    "PUBLISHER_HASHES_DIFFER",
    Risk.DISORDER,
    when="two publishers send events of the same document",
    what="Publishers of the topic put the same key into different partitions.",
    consequence="With 3, 6 or 12 partitions, 67, 83 or 92 % of keys land elsewhere. A document's events then lie in two partitions, "
    "which are applied side by side.",
    remedy="Let all publishers use murmur2.",
    acceptable_when="When they never publish the same document.",
)
def hashes_differ(case: RuleContext) -> Iterator[Violation]:
    hashes = {name: one.hashing for name, one in case.publishers.items()}
    if len(set(hashes.values())) > 1:
        odd = [name for name, hashing in hashes.items() if hashing != clients.MURMUR2]
        yield Violation(
            Severity.WARNING if case.guarded else Severity.ERROR,
            f"topic {case.pipeline.topic}",
            tuple(f"{name}: {hashing}" for name, hashing in hashes.items()),
            f"set partitioner=murmur2 in {', '.join(odd)}",
        )


@rule(
    "PUBLISHER_DOES_NOT_RETRY",
    Risk.LOSS,
    when="a broker is not there for a moment",
    what="The publisher does not send again what failed.",
    consequence="Leaders move at every restart of a broker; requests fail for a moment, and their records are dropped.",
    remedy="Leave retries at its default, and bound the whole by delivery.timeout.ms.",
    acceptable_when="With the guarantee at-most-once, or when the publisher itself publishes again what was not confirmed.",
)
def does_not_retry(case: RuleContext) -> Iterator[Violation]:
    for name, one in case.publishers.items():
        if one.retries < 1:
            yield Violation(
                Severity.ERROR if case.must_not_lose else Severity.NOTE,
                f"publisher {name}",
                (_found(one, "retries", one.retries),),
                _remove(name, f"retries={one.retries}"),
            )


@rule(
    "PUBLISHER_RETRIES_FEW",
    Risk.LOSS,
    when="an election takes longer than the few retries",
    what="The publisher tries again only a few times.",
    consequence="With the usual pause of 100 ms, a few retries are over within a second. An election after a broker's death takes "
    "longer, and the records are dropped.",
    remedy="Leave retries at its default, and bound the whole by delivery.timeout.ms.",
    acceptable_when="When the publisher itself publishes again what was not confirmed.",
)
def retries_few(case: RuleContext) -> Iterator[Violation]:
    for name, one in case.publishers.items():
        if 1 <= one.retries < RETRIES_MIN:
            yield Violation(
                Severity.WARNING if case.must_not_lose else Severity.NOTE,
                f"publisher {name}",
                (_found(one, "retries", one.retries),),
                _remove(name, f"retries={one.retries}"),
            )


@rule(
    "PUBLISHER_GIVES_UP_EARLY",
    Risk.LOSS,
    when="brokers are away for longer than the publisher waits",
    what="The publisher drops a record that is not confirmed within a short time.",
    consequence="An election after a broker's death takes seconds, a restart up to minutes.",
    remedy="Set delivery.timeout.ms (message.timeout.ms in librdkafka) to two minutes or more.",
    acceptable_when="When the publisher keeps what failed, such as in an outbox table, and publishes it again.",
)
def gives_up_early(case: RuleContext) -> Iterator[Violation]:
    for name, one in case.publishers.items():
        if one.delivery_timeout_ms < DELIVERY_MS_MIN and one.retries >= 1:
            yield Violation(
                Severity.WARNING if case.must_not_lose else Severity.NOTE,
                f"publisher {name}",
                (_found(one, "delivery.timeout.ms", one.delivery_timeout_ms),),
                _fix(name, "set delivery.timeout.ms=120000"),
            )


@rule(
    "PUBLISHER_REFUSED_SETTINGS",
    Risk.STANDSTILL,
    when="the publisher is started",
    what="The client does not take these settings together.",
    consequence="It refuses to start, or the send fails.",
    remedy="Take one of the contradicting settings out.",
    acceptable_when="Never.",
)
def refused_settings(case: RuleContext) -> Iterator[Violation]:
    for name, one in case.publishers.items():
        if one.refused:
            yield Violation(
                Severity.ERROR,
                f"publisher {name}",
                (one.refused,),
                f"take one of them out of [publishers.{name}] config",
            )


@rule(
    "PUBLISHER_SETTING_MISSPELT",
    Risk.LOSS,
    when="the publisher's default does not do what the setting was meant to",
    what="A setting of the publisher has a name that no client knows.",
    consequence="Java clients ignore it with a warning in the log, so the default stays in force; others refuse to start.",
    remedy="Correct the name.",
    acceptable_when="When it is a setting of the application, not of the client.",
)
def setting_misspelt(case: RuleContext) -> Iterator[Violation]:
    for name, one in case.publishers.items():
        for wrong, meant in one.misspelt:
            value = case.snapshot.publishers[name].config.get(wrong, "")
            yield Violation(
                Severity.WARNING,
                f"publisher {name}",
                (f"{wrong}; {meant} is meant?",),
                _fix(name, f"rename {wrong} to {meant}: {meant}={value}"),
            )


@rule(
    "PUBLISHER_RECORDS_TOO_LARGE",
    Risk.LOSS,
    when="a large record is published",
    what="The publisher accepts larger records than the topic takes.",
    consequence="They pass the client and are refused by the broker: an error that the sender sees late, or not at all.",
    remedy="Set max.message.bytes of the topic at least as high as the publisher's limit.",
    acceptable_when="When no record comes near either limit, or compression makes them small.",
)
def records_too_large(case: RuleContext) -> Iterator[Violation]:
    limit = case.number("max.message.bytes")
    for name, one in case.publishers.items():
        if one.record_bytes_max > limit + BATCH_BYTES:
            yield Violation(
                Severity.WARNING,
                f"publisher {name}",
                (
                    _found(one, "max.request.size", one.record_bytes_max),
                    case.found("max.message.bytes"),
                ),
                f"instep topics alter {case.topic.name} -c max.message.bytes={one.record_bytes_max + BATCH_BYTES} --execute",
            )


@rule(
    "PUBLISHER_LINGERS",
    Risk.STANDSTILL,
    when="always: every event waits",
    what="The publisher holds records back for long, to send more of them at once.",
    consequence="The table is about a second behind at best, and this comes on top.",
    remedy="Set linger.ms to 5 or so.",
    acceptable_when="When being seconds behind does not matter.",
)
def lingers(case: RuleContext) -> Iterator[Violation]:
    for name, one in case.publishers.items():
        if one.linger_ms > LINGER_MS_MAX:
            yield Violation(
                Severity.WARNING,
                f"publisher {name}",
                (_found(one, "linger.ms", one.linger_ms),),
                _fix(name, "set linger.ms=5"),
            )


@rule(
    "PUBLISHER_TRANSACTIONS_LONG",
    Risk.STANDSTILL,
    when="a publisher dies in the middle of a transaction",
    what="A transaction may stay open for long.",
    consequence="Pipelines read what is committed: an open transaction hides everything behind it in its partitions, of all "
    "publishers, until it is ended or timed out.",
    remedy="Set transaction.timeout.ms to a minute or less.",
    acceptable_when="When transactions are long by nature, and waiting for them is right.",
)
def transactions_long(case: RuleContext) -> Iterator[Violation]:
    for name, one in case.publishers.items():
        if one.transactional and one.transaction_timeout_ms > TRANSACTION_MS_MAX:
            yield Violation(
                Severity.WARNING,
                f"publisher {name}",
                (_found(one, "transaction.timeout.ms", one.transaction_timeout_ms),),
                _fix(name, f"set transaction.timeout.ms={TRANSACTION_MS_MAX}"),
            )


@rule(
    "PUBLISHER_TRANSACTIONS_REFUSED",
    Risk.STANDSTILL,
    when="the publisher begins its first transaction",
    what="The publisher asks for a longer transaction time-out than the brokers allow.",
    consequence="The broker answers INVALID_TRANSACTION_TIMEOUT, and nothing is published.",
    remedy="Lower transaction.timeout.ms below transaction.max.timeout.ms of the brokers.",
    acceptable_when="Never.",
)
def transactions_refused(case: RuleContext) -> Iterator[Violation]:
    sending = {name: one for name, one in case.publishers.items() if one.transactional}
    if not sending:
        return
    allowed = min(
        int(case.broker_value(b, "transaction.max.timeout.ms").value or 0)
        for b in case.cluster.brokers
    )
    for name, one in sending.items():
        if one.transaction_timeout_ms > allowed:
            yield Violation(
                Severity.ERROR,
                f"publisher {name}",
                (
                    _found(one, "transaction.timeout.ms", one.transaction_timeout_ms),
                    f"transaction.max.timeout.ms={allowed} of the brokers",
                ),
                _fix(name, f"set transaction.timeout.ms={min(allowed, TRANSACTION_MS_MAX)}"),
            )


@rule(
    "PUBLISHER_TRANSACTIONAL_ID_SHARED",
    Risk.STANDSTILL,
    when="both publishers run at the same time",
    what="Two publishers have the same transactional.id.",
    consequence="The cluster takes the second for a restart of the first and fences the first off: its transactions are aborted, and it "
    "cannot publish any more. Started again, it fences the other off.",
    remedy="Give each running publisher a transactional.id of its own.",
    acceptable_when="Never for two that run at the same time.",
)
def transactional_id_shared(case: RuleContext) -> Iterator[Violation]:
    declared = {
        name: clients.effective(one.client, one.config)
        for name, one in case.snapshot.publishers.items()
    }
    for name, one in case.publishers.items():
        others = [
            other
            for other, its in declared.items()
            if other != name and its.transactional_id == one.transactional_id
        ]
        if one.transactional_id and others:
            yield Violation(
                Severity.ERROR,
                f"publisher {name}",
                (f"transactional.id={one.transactional_id}, as {' and '.join(others)} has",),
                _fix(name, f"set transactional.id={one.transactional_id}-{name}"),
            )


@rule(
    "PUBLISHER_REQUEST_TIMEOUT_SHORT",
    Risk.REPETITION,
    when="a broker answers slowly, as during an election or a full disk cache",
    what="The publisher waits only a short time for a broker's answer.",
    consequence="A request that is given up may still be written. It is sent again: without idempotence the record is there twice, and "
    "the broker gets more work while it is slow.",
    remedy="Leave request.timeout.ms at its default, 30 s.",
    acceptable_when="When the publisher is idempotent and the brokers are known to answer quickly.",
)
def request_timeout_short(case: RuleContext) -> Iterator[Violation]:
    for name, one in case.publishers.items():
        if 0 < one.request_timeout_ms < REQUEST_MS_MIN:
            yield Violation(
                Severity.NOTE if one.idempotent else Severity.WARNING,
                f"publisher {name}",
                (_found(one, "request.timeout.ms", one.request_timeout_ms),),
                _remove(name, f"request.timeout.ms={one.request_timeout_ms}"),
            )


@rule(
    "PUBLISHER_BLOCKS_BRIEFLY",
    Risk.LOSS,
    when="the brokers are away for a moment or the publisher's buffer is full",
    what="send() of the publisher gives up almost at once when it cannot take a record.",
    consequence="It raises an error instead of waiting. An application that does not keep the record and try again has lost it.",
    remedy="Leave max.block.ms at its default, 60 s.",
    acceptable_when="When the application keeps what send() refused, such as in an outbox table, and publishes it again.",
)
def blocks_briefly(case: RuleContext) -> Iterator[Violation]:
    for name, one in case.publishers.items():
        if one.block_ms is not None and one.block_ms < BLOCK_MS_MIN:
            yield Violation(
                Severity.WARNING if case.must_not_lose else Severity.NOTE,
                f"publisher {name}",
                (_found(one, "max.block.ms", one.block_ms),),
                _remove(name, f"max.block.ms={one.block_ms}"),
            )


@rule(
    "PUBLISHER_TOPIC_NOT_FOLLOWED",
    Risk.LOSS,
    when="now: nobody applies what it publishes",
    what="A declared publisher names a topic that no pipeline follows.",
    consequence="What it publishes reaches no table, or its declaration is misspelt and its settings are not judged.",
    remedy="Correct the topic in [publishers.NAME], or declare a pipeline that follows it.",
    acceptable_when="When other programs follow that topic.",
)
def topic_not_followed(case: RuleContext) -> Iterator[Violation]:
    followed = {one.topic for one in case.snapshot.writers.values() if one.topic}
    for name, one in case.snapshot.publishers.items():
        if followed and one.topic not in followed:
            near = settings.nearest(one.topic, sorted(followed))
            yield Violation(
                Severity.WARNING,
                f"publisher {name}",
                (
                    f'publishers.{name}.topic="{one.topic}"{near}',
                    f"followed: {', '.join(sorted(followed))}",
                ),
                f'[publishers.{name}]\ntopic = "{case.pipeline.topic}"',
            )


@rule(
    "PUBLISHER_COMPRESSION_CHANGED",
    Risk.STANDSTILL,
    when="always: the broker packs every batch again",
    what="The topic asks for another compression than the publisher sends.",
    consequence="The broker unpacks and packs every batch, which costs its processor more than everything else it does.",
    remedy="Set compression.type=producer on the topic.",
    acceptable_when="When the publisher's compression cannot be changed and the topic must be small.",
)
def compression_changed(case: RuleContext) -> Iterator[Violation]:
    wanted = case.topic_settings.get("compression.type")
    kind = wanted.value if wanted else None
    if kind in (None, "producer"):
        return
    for name, one in case.publishers.items():
        if one.compression != ("none" if kind == "uncompressed" else kind):
            yield Violation(
                Severity.NOTE,
                f"publisher {name}",
                (_found(one, "compression.type", one.compression), case.found("compression.type")),
                f"instep topics alter {case.topic.name} -c compression.type=producer --execute",
            )
