"""Claims about the producer itself: its defaults, its buffer, its batches and its partitions."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from instep.document.showing import counted
from instep.kafka import offsets
from instep.local import ports
from instep.local.proxy import NetworkFault
from instep.report.tables import PlotKind
from instep.waiting import wait_until
from instep_lab import history
from instep_lab.claim import experiment
from instep_lab.claims import senders
from instep_lab.clients import defaults, key_hashes, publishing
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import (
    DeliveryMode,
    KeyEncoding,
    Measured,
    Measuring,
    Publishing,
    Variant,
)
from instep_lab.history import OperationKind, OperationStatus
from instep_lab.trial import Scenario, Trial, spread
from instep_lab.verdict import Dependence

# what the notes say of a producer's defaults; linger.ms is that of the releases before 4.0
NOTED_DEFAULTS = {
    "retries": "2147483647",
    "retry.backoff.ms": "100",
    "batch.size": "16384",
    "linger.ms": "0",
    "max.in.flight.requests.per.connection": "5",
}
DEFAULTS = ("acks", "enable.idempotence", *NOTED_DEFAULTS)
ALL = ("all", "-1")
OLD, SPARK = "kafka-2", "spark-kafka"  # bundles with Java clients of older releases


def _java(bundle: str) -> tuple[str, dict[str, str]]:
    release, settings = defaults.of_java(bundle)
    return f"Java {release}", settings


# Values that are no defaults, to see whether each setting is read back.
PROBES = {
    "acks": "1",
    "enable.idempotence": "true",
    "retries": "7",
    "retry.backoff.ms": "101",
    "batch.size": "10001",
    "linger.ms": "11",
    "max.in.flight.requests.per.connection": "3",
}


def _todays() -> dict[str, tuple[Library, dict[str, str]]]:
    """Return the defaults of each client's release that the lab uses, by client and release."""
    java, settings = _java("kafka")
    found = {java: (Library.JAVA, settings)}
    release, settings = defaults.of_librdkafka(DEFAULTS)
    found[f"librdkafka {release}"] = (Library.LIBRDKAFKA, settings)
    release, settings = defaults.of_kafka_python()
    found[f"kafka-python {release}"] = (Library.KAFKA_PYTHON, settings)
    return found


@experiment(
    "send-4",
    statement="By default, a producer sends with acks=1",
    method=(
        "Query the defaults of each client: Kafka's Java clients print their own; librdkafka and "
        "kafka-python are queried."
    ),
    advice=(
        "Set acks=all explicitly: the default depends on the client and its release, and old "
        "ones are still in use."
    ),
    why=(
        "Kafka 3.0 made the safe settings the default: acks=all and an idempotent producer. "
        "librdkafka had acks=all since 1.0 and is still not idempotent by default."
    ),
    scope=(
        "Java clients before 3.0 have acks=1, since 3.0 all. The default of enable.idempotence "
        "took effect in 3.0.1, 3.1.1 and 3.2. librdkafka and kafka-python as in the table."
    ),
    sources=("KIP-679", "KAFKA-13598", "documentation: acks", "librdkafka: configuration"),
    rules=("PUBLISHER_ACKS_NOT_ALL", "PUBLISHER_NOT_IDEMPOTENT"),
    brokers=0,
    before="Kafka 3.0 (September 2021)",
)
def default_acks(trial: Trial) -> None:
    old_name, old = _java(OLD)
    spark_name, spark = _java(SPARK)
    now = {name: settings for name, (_, settings) in _todays().items()} | {spark_name: spark}
    _show_defaults(trial, {old_name: old, **now})
    trial.control(f"{old_name} had acks=1", old["acks"] == "1", f"acks={old['acks']}")
    for client, settings in now.items():
        acks = settings.get("acks")
        is_one: bool | None = None
        if acks is not None:
            is_one = acks == "1"
        if acks in ALL:
            acks = "all"
        trial.statement(f"the default of {client} is acks=1", is_one, f"it is acks={acks}")


def _control_defaults(trial: Trial) -> None:
    """Record whether the defaults of librdkafka and kafka-python are read as they are."""
    senders.control_read_back(
        trial,
        PROBES,
        {
            Library.LIBRDKAFKA: defaults.of_librdkafka(list(PROBES), PROBES)[1],
            Library.KAFKA_PYTHON: defaults.of_kafka_python(PROBES)[1],
        },
    )


def _show_defaults(trial: Trial, clients: Mapping[str, Mapping[str, str]]) -> None:
    _control_defaults(trial)
    trial.table(
        "Defaults that the producers report",
        ["client", *DEFAULTS],
        [
            [client, *(settings.get(name) for name in DEFAULTS)]
            for client, settings in clients.items()
        ],
    )


@experiment(
    "send-5",
    statement=(
        "Fire-and-forget, waiting for each response, and a callback differ in speed and in what "
        "the sender learns"
    ),
    method=(
        "Send as fast as each mode allows, in turns and without recording single records, and "
        "measure the records per second. Then send records that the topic rejects as too large, "
        "and count which rejections the sender learns about; with a callback, also how many more "
        "records it has sent by then. Fire-and-forget has no callback and ignores the result of "
        "send: what counts is whether flush() fails or the client reports an error by itself. "
        "With the Java client and with librdkafka."
    ),
    advice=(
        "Send with a callback, check its error, and flush before you rely on it: much faster than "
        "waiting for each response, and no error is missed."
    ),
    why=(
        "The client sends in the background in all three modes. They differ only in whether the "
        "program looks at the result, and when. flush() waits until every record has a result, "
        "whatever the result is, so it does not report rejections."
    ),
    scope=(
        "Java client since 0.8.2, whose send() returns a Future, and librdkafka; measured with "
        "4.3, linger.ms=0. The rate of one record at a time is that of a broker on the same "
        "machine; with a network it is lower."
    ),
    sources=("documentation: producer", "documentation: acks"),
    rules=("PUBLISHER_ACKS_NOT_ALL", "PUBLISHER_RECORD_LIMIT_ABOVE_TOPIC"),
    alone=True,
)
def delivery_modes(trial: Trial) -> None:
    topic = trial.topic(1)
    small = trial.topic(1, max_message_bytes="2000")
    refused = trial.scaled(100, 500)
    rates: dict[Library, dict[str, list[Measured]]] = {}
    learned: dict[tuple[Library, DeliveryMode], tuple[int, float | None]] = {}
    for library in senders.CLIENTS:
        variants = [
            Variant(
                name=mode,
                count=(
                    trial.scaled(100, 1_000)  # each record takes a round trip
                    if mode is DeliveryMode.WAIT
                    else trial.scaled(20_000, 100_000)
                ),
                config={"linger.ms": 0},
                mode=mode,
            )
            for mode in DeliveryMode
        ]
        plan = Measuring(topic=topic, variants=variants, rounds=trial.scaled(3, 7), library=library)
        rates[library] = senders.measure(trial, plan, lambda found: [_waiting_is_slower(found)])
        for mode in DeliveryMode:
            scenario = trial.scenario(f"{library}, {mode}, refused")
            scenario.publish(
                Publishing(
                    topic=small,
                    count=refused,
                    size=5_000,
                    seed=trial.seed,
                    mode=mode,
                    library=library,
                    config={"linger.ms": 0},
                )
            )
            learned[library, mode] = _rejections_learned(scenario)
    scenario = trial.scenario("what the log has")
    scenario.read_topic(small)
    arrived = sum(1 for _ in history.of(scenario.history(), OperationKind.READ))
    _show_modes(trial, rates, learned, refused)
    trial.control(
        "the topic rejects records that are too large",
        arrived == 0,
        f"{arrived} of {2 * 3 * refused} arrived",
    )
    for library in senders.CLIENTS:
        best = {mode: senders.rate(rates[library][mode]) for mode in DeliveryMode}
        reported = {mode: learned[library, mode] for mode in DeliveryMode}
        trial.statement(
            "waiting for each response is slower",
            _waiting_is_slower(rates[library]),
            f"{best[DeliveryMode.WAIT]:,.0f} records per second,"
            f" with a callback {best[DeliveryMode.CALLBACK]:,.0f},"
            f" fire-and-forget {best[DeliveryMode.FORGET]:,.0f}",
            client=library,
        )
        trial.statement(
            "after fire-and-forget, flush() succeeds although every record was rejected",
            reported[DeliveryMode.FORGET][0] == 0,
            f"{reported[DeliveryMode.FORGET][0]} errors of flush() or of the client,"
            f" {refused} rejections",
            client=library,
        )
        trial.statement(
            "waiting reports each rejection",
            reported[DeliveryMode.WAIT][0] == refused,
            f"{reported[DeliveryMode.WAIT][0]} of {refused} rejections",
            client=library,
        )
        trial.statement(
            "a callback reports each rejection, later",
            reported[DeliveryMode.CALLBACK][0] == refused
            and (reported[DeliveryMode.CALLBACK][1] or 0) > 0,
            f"{reported[DeliveryMode.CALLBACK][0]} of {refused} rejections,"
            f" {reported[DeliveryMode.CALLBACK][1] or 0:.0f} more records sent by then",
            client=library,
        )


def _waiting_is_slower(found: senders.Rounds) -> bool | None:
    return senders.clearly_more(
        senders.rate(found[DeliveryMode.CALLBACK]), senders.rate(found[DeliveryMode.WAIT])
    )


def _rejections_learned(scenario: Scenario) -> tuple[int, float | None]:
    """Return how many errors the client reported, and how many records were sent by then.

    Reports are failed sends, and everything else that the client reported, such as what
    flush() left.
    """
    operations = scenario.history()
    sends = list(history.of(operations, OperationKind.SEND, None))
    failed = [one for one in sends if one.outcome is OperationStatus.FAIL]
    others = list(history.of(operations, OperationKind.FAULT, OperationStatus.FAIL))
    starts = [one.at_ns - one.took_ns for one in sends]
    behind = [
        sum(failure.at_ns - failure.took_ns < start < failure.at_ns for start in starts)
        for failure in failed
    ]
    return len(failed) + len(others), statistics.mean(behind) if behind else None


def _show_modes(
    trial: Trial,
    rates: Mapping[Library, Mapping[str, Sequence[Measured]]],
    learned: Mapping[tuple[Library, DeliveryMode], tuple[int, float | None]],
    refused: int,
) -> None:
    trial.plot(
        "Records per second",
        "way",
        "records",
        {
            str(library): [
                (mode, statistics.median(one.per_s for one in of[mode])) for mode in DeliveryMode
            ]
            for library, of in rates.items()
        },
        log_y=True,
    )
    trial.table(
        f"{refused} records that the topic rejects",
        [
            "client",
            "way",
            "records per second",
            "rejections reported",
            "records sent before a rejection was reported",
        ],
        [
            [
                library,
                mode,
                spread([one.per_s for one in of[mode]], digits=0),
                *learned[library, mode],
            ]
            for library, of in rates.items()
            for mode in DeliveryMode
        ],
    )


BATCH_BYTES = (1_000, 16_000, 256_000)
LINGER_MS = (0, 10, 100)
# Records of 100 bytes: 10 kB in the longest linger.ms fill no batch of MODEST bytes, 50 kB do.
FILLING_PER_S = 5_000
SMALL, MODEST, LARGE = BATCH_BYTES


@experiment(
    "send-7",
    statement="A larger batch.size and linger.ms increase throughput, and latency as well",
    method=(
        "For each batch.size and linger.ms, in turns, with the Java client and with librdkafka: "
        "send 100-byte records as fast as possible and measure the records per second; send at a "
        "steady rate of 1,000 per second, at which no batch of the two larger sizes fills, and "
        "measure the time from send to acknowledgement. At 5,000 per second and linger.ms=100, "
        "where 16,000 bytes fill and 256,000 do not, measure it again. Nothing else is recorded "
        "in the meantime. The best round counts."
    ),
    advice=(
        "For throughput, raise batch.size. It adds latency only where the smaller batch filled "
        "before linger.ms was over, and at most linger.ms. Keep linger.ms at 5 to 10: it adds "
        "latency where records come slowly, and at full speed batches fill without it."
    ),
    why=(
        "A batch leaves when it is full or when linger.ms is over, whichever comes first. At full "
        "speed it fills at once, so batch.size decides how much a request carries and linger.ms "
        "hardly matters. At a low rate it never fills, so linger.ms decides how long a record "
        "waits and batch.size hardly matters. In between, a small batch fills and leaves, and a "
        "large one waits until linger.ms is over."
    ),
    scope=(
        "One partition, one broker on the same machine, 100-byte records, no compression, no "
        "idempotence. With many partitions or a slow network linger.ms can fill batches that "
        "would leave half empty. linger.ms is 5 by default, in the Java client since 4.0 (before: "
        "0)."
    ),
    sources=("documentation: batch.size", "documentation: linger.ms", "KIP-1030"),
    rules=("PUBLISHER_LINGER_LONG",),
    alone=True,
)
def batching(trial: Trial) -> None:
    topic = trial.topic(1)
    # Enough at full speed that linger.ms=100 is not most of the time.
    counts = dict(zip(BATCH_BYTES, (8_000, 60_000, 150_000), strict=True))
    variants = [
        Variant(
            name=_cell(batch, linger),
            count=trial.scaled(counts[batch], 3 * counts[batch]),
            paced=trial.scaled(200, 500),  # several times linger.ms
            config=senders.plain(batch_size=batch, linger_ms=linger),
        )
        for batch in BATCH_BYTES
        for linger in LINGER_MS
    ]
    variants += [
        Variant(
            name=_filling(batch),
            count=0,
            paced=trial.scaled(1_000, 2_500),  # twice linger.ms, or more
            paced_per_s=FILLING_PER_S,
            config=senders.plain(batch_size=batch, linger_ms=LINGER_MS[-1]),
        )
        for batch in (MODEST, LARGE)
    ]
    for library in senders.CLIENTS:
        plan = Measuring(topic=topic, variants=variants, rounds=trial.scaled(3, 7), library=library)
        found = senders.measure(
            trial, plan, lambda found: [one.holds(found) for one in COMPARISONS]
        )
        _show_grid(trial, library, found)
        for one in COMPARISONS:
            lower, higher = (one.measure(found[cell]) for cell in (one.low, one.high))
            trial.statement(
                one.statement,
                one.holds(found),
                f"{lower:,.{one.digits}f} to {higher:,.{one.digits}f} {one.unit}",
                client=library,
                on=Dependence.SETTING,
            )


class BatchingComparison(NamedTuple):
    """A statement that a producer has clearly more of something than another one."""

    statement: str
    measure: Callable[[Sequence[Measured]], float]
    low: str
    high: str

    @property
    def unit(self) -> str:
        return "records/s" if self.measure is senders.rate else "ms"

    @property
    def digits(self) -> int:
        return 0 if self.measure is senders.rate else 1

    def holds(self, found: senders.Rounds) -> bool | None:
        return senders.clearly_more(self.measure(found[self.high]), self.measure(found[self.low]))


def _cell(batch: int, linger: int) -> str:
    return f"{batch:,} bytes, {linger} ms"


def _filling(batch: int) -> str:
    """Name the producer that is paced so that small batches fill before linger.ms is over."""
    return f"{_cell(batch, LINGER_MS[-1])}, {FILLING_PER_S:,} per second"


COMPARISONS = (
    BatchingComparison(
        f"a batch.size of {LARGE:,} instead of {SMALL:,} bytes increases throughput",
        senders.rate,
        _cell(SMALL, 10),
        _cell(LARGE, 10),
    ),
    BatchingComparison(
        "a linger.ms of 100 instead of 0 increases latency",
        senders.latency,
        _cell(MODEST, 0),
        _cell(MODEST, 100),
    ),
    BatchingComparison(
        "a linger.ms of 100 instead of 10 increases throughput",
        senders.rate,
        _cell(LARGE, 10),
        _cell(LARGE, 100),
    ),
    # with the longest linger.ms, so that other programs on the machine make little difference
    BatchingComparison(
        f"a batch.size of {LARGE:,} instead of {MODEST:,} bytes increases latency where neither"
        " fills before linger.ms is over",
        senders.latency,
        _cell(MODEST, 100),
        _cell(LARGE, 100),
    ),
    BatchingComparison(
        f"a batch.size of {LARGE:,} instead of {MODEST:,} bytes increases latency where only the"
        " smaller one fills",
        senders.latency,
        _filling(MODEST),
        _filling(LARGE),
    ),
)


def _show_grid(trial: Trial, library: Library, found: senders.Rounds) -> None:
    measures: dict[str, tuple[str, Callable[[Sequence[Measured]], float]]] = {
        "records per second at full speed": ("records/s", senders.rate),
        "time to acknowledgement at a steady rate, median (ms)": ("ms", senders.latency),
        "time to acknowledgement at a steady rate, 99th percentile (ms)": ("ms", _late),
    }
    for title, (y, measure) in measures.items():
        series = {
            f"{batch:,} bytes": [
                (f"{linger} ms", round(measure(found[_cell(batch, linger)]), 1))
                for linger in LINGER_MS
            ]
            for batch in BATCH_BYTES
        }
        trial.plot(f"{library}: {title}", "linger.ms", y, series, PlotKind.HEAT)


def _late(rounds: Sequence[Measured]) -> float:
    return min(one.late_ms or 0.0 for one in rounds)


NUMERIC = "LabClient$NumericPartitioner"  # a class of the lab's Java client
KEYS = PARTITIONS = 4


def _partitioners(encoding: KeyEncoding) -> dict[str, dict[str, Any]]:
    """Return the plans of the senders, by how each chooses the partition."""
    return {
        "Java, a partitioner for numbers": {
            "library": Library.JAVA,
            "config": {"partitioner.class": NUMERIC, "lab.key.encoding": str(encoding)},
        },
        "librdkafka, computed by the program": {"by_number": PARTITIONS},
        "Java, default (murmur2)": {"library": Library.JAVA},
        "librdkafka, murmur2_random": {"config": {"partitioner": "murmur2_random"}},
        "librdkafka, default (CRC32)": {"config": {"partitioner": "consistent_random"}},
    }


COMPUTED = ("Java, a partitioner for numbers", "librdkafka, computed by the program")
HASHED: Mapping[str, tuple[str, Library]] = {
    "Java, default (murmur2)": (key_hashes.MURMUR2, Library.JAVA),
    "librdkafka, murmur2_random": (key_hashes.MURMUR2, Library.LIBRDKAFKA),
    "librdkafka, default (CRC32)": (key_hashes.CRC32, Library.LIBRDKAFKA),
}
FEWER_PARTITIONS = 3


class NumericSender(NamedTuple):
    """A sender of numeric keys, and the number of partitions of its topic."""

    how: str
    encoding: KeyEncoding
    partitions: int

    @property
    def name(self) -> str:
        fewer = "" if self.partitions == PARTITIONS else f", {self.partitions} partitions"
        return f"{self.how}, {self.encoding}{fewer}"

    def hashed_right(self, places: Mapping[str, Sequence[int]]) -> int:
        """Return how many keys are where the hash of this sender puts them."""
        partition_of = key_hashes.PARTITION_OF[HASHED[self.how][0]]
        return sum(
            places.get(f"k{number}")
            == [partition_of(publishing.encoded(number, self.encoding), self.partitions)]
            for number in range(KEYS)
        )


NUMERIC_SENDERS = [
    NumericSender(how, encoding, partitions)
    for encoding in (KeyEncoding.DIGITS, KeyEncoding.INTEGER)
    for partitions in (PARTITIONS, FEWER_PARTITIONS)
    for how in (*COMPUTED, *HASHED)
    if partitions == PARTITIONS or how in HASHED
]


@experiment(
    "send-11",
    statement=(
        "With a partitioner for numeric keys, key k goes to partition k modulo the number of "
        "partitions"
    ),
    method=(
        "Send records with the keys 0 to 3 to 4 partitions: with a Java producer whose "
        "partitioner.class computes k modulo n, with a librdkafka program that computes the "
        "partition itself, and with the default hashes, also to 3 partitions. Keys are encoded as "
        "digits and as Java's four-byte integers. Read the partition of each key from the log, and "
        "compare it with the one that the lab computes."
    ),
    advice=(
        "Let every producer use the same hash (murmur2, as Java does). Compute partitions "
        "yourself only if every producer does."
    ),
    why=(
        "The producer chooses the partition; the broker only stores. A partitioner of your own "
        "replaces the default, which takes a hash of the key's bytes. The hash knows nothing of "
        "numbers, differs between clients, and changes with the encoding of the key."
    ),
    scope=(
        "partitioner.class is a setting of the Java client since 0.9, with the interface of "
        "today; librdkafka's Python client has no partitioner of your own, so the program "
        "gives the partition. librdkafka's default is consistent_random (CRC32); "
        "murmur2_random is what Java does since 0.8.2."
    ),
    sources=("documentation: partitioner.class", "librdkafka: configuration"),
    rules=(
        "PUBLISHER_PARTITIONER_NOT_MURMUR2",
        "PUBLISHER_PARTITIONERS_DIFFER",
        "RECORDS_IN_WRONG_PARTITION",
    ),
)
def partition_of_numeric_key(trial: Trial) -> None:
    found = trial.together(
        {one.name: functools.partial(_places_of, trial, one) for one in NUMERIC_SENDERS}
    )
    places = {one: found[one.name] for one in NUMERIC_SENDERS}
    names = [f"k{number}" for number in range(KEYS)]
    trial.table(
        "Partition of each key",
        ["client, method, key encoding", *(name.removeprefix("k") for name in names)],
        [
            [one.name, *(", ".join(map(str, located.get(name, []))) for name in names)]
            for one, located in places.items()
        ],
    )
    right = {
        one: sum(located.get(f"k{number}") == [number % PARTITIONS] for number in range(KEYS))
        for one, located in places.items()
        if one.partitions == PARTITIONS
    }
    complete = all(
        len(located) == KEYS and all(len(one) == 1 for one in located.values())
        for located in places.values()
    )
    trial.control(
        "every key was sent and is in one partition",
        complete,
        f"{KEYS} keys in {len(places)} topics",
    )
    for how, library in zip(COMPUTED, senders.CLIENTS, strict=True):
        fewest = min(count for one, count in right.items() if one.how == how)
        trial.statement(
            "with k modulo n, each key is in its partition",
            fewest == KEYS,
            f"{fewest} of {KEYS} keys ({how.partition(', ')[2]})",
            client=library,
        )
    for partitions, (how, (hash_, library)) in itertools.product(
        (PARTITIONS, FEWER_PARTITIONS), HASHED.items()
    ):
        of_hash = [one for one in places if (one.how, one.partitions) == (how, partitions)]
        fewest = min(one.hashed_right(places[one]) for one in of_hash)
        trial.statement(
            f"each key is where {hash_} modulo {partitions} puts it",
            fewest == KEYS,
            f"{fewest} of {KEYS} keys, in {len(of_hash)} encodings ({how.partition(', ')[2]})",
            client=library,
        )
    hashed = {one.name: count for one, count in right.items() if one.how in HASHED}
    trial.limit(
        "the default hashes of the clients put keys elsewhere",
        max(hashed.values()) < KEYS,
        ", ".join(f"{name}: {count} of {KEYS} there" for name, count in hashed.items()),
    )


def _places_of(trial: Trial, sender: NumericSender) -> dict[str, list[int]]:
    """Send numeric keys, and return the partitions in which each of them is."""
    scenario, topic = trial.scenario(sender.name), trial.topic(sender.partitions)
    plan = _partitioners(sender.encoding)[sender.how]
    scenario.publish(
        Publishing(
            topic=topic,
            count=100,
            keys=KEYS,
            seed=trial.seed,
            encoding=sender.encoding,
            **plan,
        )
    )
    scenario.read_topic(topic, sender.partitions)
    found: dict[str, set[int]] = {}
    for one in history.of(scenario.history(), OperationKind.READ):
        found.setdefault(one.key or "", set()).add(-1 if one.partition is None else one.partition)
    return {key: sorted(located) for key, located in sorted(found.items())}


@experiment(
    "send-12",
    statement=(
        "By default, a producer has retries=2147483647, retry.backoff.ms=100, batch.size=16384, "
        "linger.ms=0 and max.in.flight.requests.per.connection=5"
    ),
    method=(
        "Query the defaults of each client: Kafka's Java clients of three releases print their "
        "own; librdkafka and kafka-python are queried."
    ),
    advice=(
        "Set what you rely on: defaults differ between clients and change with releases. With "
        "librdkafka, set enable.idempotence, which also limits the requests in flight to 5."
    ),
    why=(
        "The values are those of the Java client before 4.0, and each client has its own. "
        "KIP-1030 raised linger.ms to 5 in 4.0, because fuller batches make up for the wait. "
        "librdkafka has had 5 ms since 1.5, batches of up to 1 MB, and practically no limit of "
        "requests in flight."
    ),
    scope=(
        "The releases in the table. With the Java client all five hold from 2.1 to 3.9: retries "
        "was 0 before (KIP-91), and linger.ms is 5 since 4.0. Today retries is a number "
        "in name only: delivery.timeout.ms (message.timeout.ms in librdkafka) ends the attempts, "
        "in the Java client after 2 minutes."
    ),
    sources=("KIP-1030", "KIP-91", "documentation: linger.ms", "librdkafka: configuration"),
    rules=("PUBLISHER_NOT_IDEMPOTENT", "PUBLISHER_REORDERS_ON_RETRY", "PUBLISHER_LINGER_LONG"),
    brokers=0,
)
def producer_defaults(trial: Trial) -> None:
    old_name, old = _java(OLD)
    spark_name, spark = _java(SPARK)
    todays = _todays()
    _show_defaults(
        trial, {old_name: old, spark_name: spark} | {name: of for name, (_, of) in todays.items()}
    )
    trial.control(
        f"{old_name} has the values of the statement",
        all(old[name] == value for name, value in NOTED_DEFAULTS.items()),
        ", ".join(f"{name}={old[name]}" for name in NOTED_DEFAULTS),
    )
    for client, (library, settings) in todays.items():
        for name, noted in NOTED_DEFAULTS.items():
            value = settings.get(name)
            is_so: bool | None = None
            if value is not None:
                is_so = value == noted
            evidence = f"{value} in {client}"
            on = None
            if library is Library.JAVA and not is_so:
                evidence += f", {spark[name]} in {spark_name}"
                on = Dependence.RELEASE
            trial.statement(f"{name}={noted}", is_so, evidence, client=library, on=on)


IN_FLIGHT = "max.in.flight.requests.per.connection"
WINDOW_S = 15.0  # more than enough to send five records
# a request carries one batch of the partition, and the batch one record
SINGLE_RECORDS: Mapping[Library, Mapping[str, Any]] = {
    Library.JAVA: {"batch.size": 0, "linger.ms": 0},
    Library.LIBRDKAFKA: {"batch.num.messages": 1, "linger.ms": 0},
}


@experiment(
    "send-14",
    statement="The sender waits for the acknowledgement before it sends the next record",
    method=(
        "Let each request carry one record. Send through a proxy, and drop all answers of the "
        "broker from some moment on. Count the records that the broker has written although no "
        "answer reached the sender: that many requests were on their way at the same time. With "
        "the default of five requests in flight, and with one."
    ),
    advice=(
        "Do not rely on waiting to keep the order: leave idempotence on, which keeps the order "
        "with up to five requests in flight. With max.in.flight.requests.per.connection=1 the "
        "client waits, and throughput falls."
    ),
    why=(
        "acks says which replicas must have the record before the broker answers. It does not "
        "keep the client from sending the next request meanwhile. Up to "
        "max.in.flight.requests.per.connection requests are on their way at the same time, and "
        "each may carry a batch of many records."
    ),
    scope=(
        "Java client and librdkafka with idempotence, acks=all and five requests in flight: the "
        "Java client's default since 3.0. librdkafka without idempotence allows 1,000,000. With "
        "idempotence it counts the records of a partition and not its requests: while five or more "
        "are on their way it sends no others, so with larger batches only one request is. A "
        "program that waits for the result of each send waits by itself."
    ),
    sources=(
        "documentation: max.in.flight",
        "documentation: acks",
        "KAFKA-13598",
        "librdkafka#4989",
    ),
    rules=("PUBLISHER_REORDERS_ON_RETRY", "PUBLISHER_NOT_IDEMPOTENT"),
    harmless=False,
)
def requests_in_flight(trial: Trial) -> None:
    variants = [(library, allowed) for library in senders.CLIENTS for allowed in (5, 1)]
    found: dict[tuple[Library, int], list[int]] = {one: [] for one in variants}
    proxy = trial.cluster.proxies[1]
    for number in trial.rounds(1, 5):
        scenarios = {
            (library, allowed): trial.scenario(
                f"{library}, {allowed} in flight, round {number + 1}"
            )
            for library, allowed in variants
        }
        topics = {one: trial.topic(1) for one in variants}
        plans = {
            scenarios[library, allowed]: Publishing(
                topic=topics[library, allowed],
                count=senders.FOREVER,
                seed=trial.seed,
                per_s=100,
                library=library,
                config={**SINGLE_RECORDS[library], "acks": "all", IN_FLIGHT: allowed},
            )
            for library, allowed in variants
        }
        with trial.running(plans, trial.cluster.proxied):
            trial.wait_for_more(scenarios.values(), 20)
            proxy.inject(NetworkFault(swallows_answers=True))
            unanswered = functools.partial(_unanswered, trial, topics, scenarios)
            # The senders go on until they have sent what they may send without an answer.
            wait_until(
                lambda count=unanswered: all(  # type: ignore[misc]
                    without >= allowed for (_, allowed), without in count().items()
                ),
                WINDOW_S,
            )
            for topic in topics.values():
                trial.wait_for_stable_end(topic, 1)
            for one, without in unanswered().items():
                found[one].append(without)
            answered = {one: scenario.acknowledged for one, scenario in scenarios.items()}
            trial.cut(proxy)
            proxy.clear_fault()
            trial.wait_for_more(scenarios.values(), 5)
        if number == 0:
            for library in senders.CLIENTS:
                one = library, 5
                _show_in_flight(trial, library, scenarios[one], answered[one], found[one][0])
    trial.table(
        "Records that the broker has written and the sender has no answer for",
        ["client", "requests in flight allowed", "records without an answer"],
        [
            [library, allowed, ", ".join(map(str, found[library, allowed]))]
            for library, allowed in variants
        ],
    )
    for library in senders.CLIENTS:
        trial.control(
            f"{library}: with one request in flight, the sender waits for its answer",
            set(found[library, 1]) == {1},
            f"{found[library, 1][0]} record without an answer",
        )
        most = max(found[library, 5])
        trial.statement(
            "with the default, the next record is sent only after the answer",
            False if most > 1 else None,
            f"{counted(most, 'request')} without an answer at the same time",
            client=library,
        )


def _show_in_flight(
    trial: Trial, library: Library, scenario: Scenario, answered: int, without: int
) -> None:
    """Show the records that the broker had written without an answer, and those around them."""
    operations = scenario.history()
    sends = sorted(
        (one for one in history.of(operations, OperationKind.SEND) if one.offset is not None),
        key=lambda one: one.offset or 0,
    )
    began = operations[0].at_ns - operations[0].took_ns
    lines = []
    for one in sends[max(0, answered - 3) : answered + without + 3]:
        offset = one.offset or 0
        handed, at = ((ns - began) / 1e9 for ns in (one.at_ns - one.took_ns, one.at_ns))
        written = answered <= offset < answered + without
        lines.append(
            f"{handed:9.4f} s  sent  {one.key}#{one.number}  offset {offset}"
            f"  answered at {at:.4f} s"
            f"{'  written before any of these was answered' if written else ''}"
        )
    trial.show(f"{without} requests without an answer at the same time, with {library}", lines)


def _unanswered(
    trial: Trial,
    topics: Mapping[tuple[Library, int], str],
    scenarios: Mapping[tuple[Library, int], Scenario],
) -> dict[tuple[Library, int], int]:
    """Return how many records the broker has written that their sender has no answer for."""
    return {
        one: offsets.latest(trial.cluster.kafka, topics[one], [0], committed=False)[0]
        - scenario.acknowledged
        for one, scenario in scenarios.items()
    }


BLOCK_MS = 4_000


@experiment(
    "send-16",
    statement="send() blocks while the client has no metadata, until a time-out",
    method=(
        "Send one record to an address where no broker listens, with a time-out of 4 s. Measure "
        "how long the call of send itself takes, and what the program learns. Then send to a "
        "broker that answers."
    ),
    advice=(
        "With the Java client, expect send() to block for up to max.block.ms (60 s by default), "
        "and do not call it in a thread that must not wait. With librdkafka, check the delivery "
        "report: the call itself says nothing."
    ),
    why=(
        "The Java client must know the partitions of the topic before it can put a record into its "
        "buffer, so the first send() waits for the metadata, and later ones wait if the buffer is "
        "full. librdkafka puts the record into a queue and chooses the partition later."
    ),
    scope=(
        "Java client 0.9 and newer with max.block.ms, shortened to 4 s here (default: 60 s); "
        "librdkafka with message.timeout.ms, shortened to 4 s (default: 5 minutes). In the Java "
        "client the TimeoutException comes through the Future and the callback; send() does not "
        "throw it."
    ),
    sources=("KIP-19", "documentation: max.block.ms", "librdkafka: configuration"),
    rules=("PUBLISHER_BLOCK_TIMEOUT_SHORT",),
)
def send_without_metadata(trial: Trial) -> None:
    nobody = {**trial.cluster.connection, "bootstrap.servers": f"{ports.HOST}:{ports.free(1)[0]}"}
    timeouts = {
        Library.JAVA: {"max.block.ms": BLOCK_MS},
        Library.LIBRDKAFKA: {"message.timeout.ms": BLOCK_MS},
    }
    topic = trial.topic(1)
    cases = {
        (library, reachable): trial.scenario(
            f"{library}, {'a broker' if reachable else 'no broker'}"
        )
        for library in senders.CLIENTS
        for reachable in (True, False)
    }

    def run(library: Library, reachable: bool) -> tuple[float, str]:
        scenario = cases[library, reachable]
        plan = Publishing(
            topic=topic,
            count=1,
            keys=1,
            seed=trial.seed,
            library=library,
            config=timeouts[library],
        )
        scenario.publish(plan, None if reachable else nobody)
        operations = scenario.history()
        calls = [
            one.took_ns / 1e9
            for one in history.of(operations, OperationKind.FAULT)
            if one.note == publishing.BLOCKED
        ]
        sends = list(history.of(operations, OperationKind.SEND, None))
        outcomes = ", ".join(
            f"{one.note or 'acknowledged'} after {one.took_ns / 1e9:.1f} s" for one in sends
        )
        return max(calls, default=0.0), outcomes

    found = trial.together(
        {
            f"{library}, {reachable}": functools.partial(run, library, reachable)
            for library, reachable in cases
        }
    )
    trial.table(
        "One record",
        ["client", "broker", "seconds in send()", "what the program learns"],
        [
            [
                library,
                "answers" if reachable else "none",
                _seconds(found[f"{library}, {reachable}"][0]),
                found[f"{library}, {reachable}"][1],
            ]
            for library, reachable in cases
        ],
    )
    for library in senders.CLIENTS:
        blocked, outcome = found[f"{library}, {True}"]
        trial.control(
            f"{library}: with a broker, the record is acknowledged without such a wait",
            outcome.startswith("acknowledged") and blocked < BLOCK_MS / 1_000,
            outcome,
        )
        blocked, outcome = found[f"{library}, {False}"]
        trial.statement(
            "send() blocks until the time-out",
            blocked >= 0.9 * BLOCK_MS / 1_000,
            f"{_seconds(blocked)} s in send()",
            client=library,
        )
        trial.statement(
            "the program learns of the time-out",
            "Timeout" in outcome or "TIMED_OUT" in outcome,
            outcome or "nothing",
            client=library,
        )


def _seconds(blocked: float) -> str:
    """Return how long a call took; only long calls are recorded."""
    if blocked:
        return f"{blocked:.1f}"
    return f"less than {publishing.BLOCKED_NS / 1e9}"


HELD_MS = 500
LONG_MS = 5_000


@experiment(
    "send-18",
    statement="The sender sends a batch only when batch.size is reached",
    method=(
        "Send single 100-byte records, one per second, with batch.size=1,000,000 and linger.ms 0, "
        "the default, and 500. Measure the time from send to acknowledgement. Then fill batches "
        "of 1,000 bytes with linger.ms=5,000. With the Java client and with librdkafka."
    ),
    advice=(
        "batch.size is a limit, not a threshold. Choose linger.ms by the latency that you can "
        "afford, and batch.size by the throughput that you need."
    ),
    why=(
        "A batch leaves when it is full or when linger.ms has passed since its first record, "
        "whichever comes first. With linger.ms=0 it leaves as soon as the sending thread is free. "
        "So a single record waits for linger.ms at most."
    ),
    scope=(
        "Java client since 0.8.2 and librdkafka, all releases. linger.ms is 5 by default in "
        "librdkafka and, since 4.0, in the Java client; before it was 0."
    ),
    sources=("documentation: batch.size", "documentation: linger.ms", "KIP-1030"),
    rules=("PUBLISHER_LINGER_LONG",),
    alone=True,
)
def partly_filled_batches(trial: Trial) -> None:
    single: dict[str, Any] = {"count": trial.scaled(4, 12), "per_s": 1, "size": 100}
    large = 1_000_000
    cases: dict[str, dict[str, Any]] = {
        "linger.ms=0": {**single, "config": {"batch.size": large, "linger.ms": 0}},
        "default linger.ms": {**single, "config": {"batch.size": large}},
        f"linger.ms={HELD_MS}": {**single, "config": {"batch.size": large, "linger.ms": HELD_MS}},
        "full batches": {
            "count": 40,
            "per_s": 20,
            "size": 600,
            "config": {"batch.size": 1_000, "linger.ms": LONG_MS},
        },
    }
    scenarios = {
        (library, name): trial.scenario(f"{library}, {name}")
        for library in senders.CLIENTS
        for name in cases
    }
    topics = {one: trial.topic(1) for one in scenarios}

    def run(library: Library, name: str) -> list[float]:
        """Return the ms from send to answer, of records that no flush sent."""
        scenario = scenarios[library, name]
        plan = Publishing(
            topic=topics[library, name],
            keys=1,
            seed=trial.seed,
            warm=True,
            library=library,
            **cases[name],
        )
        scenario.publish(plan)
        # The first was flushed to warm up. The last may have been flushed at the end, and so may
        # its neighbours if batches hold several.
        middle = range(1, plan.count // 2 if name == "full batches" else plan.count - 1)
        sends = history.of(scenario.history(), OperationKind.SEND)
        return [one.took_ns / 1e6 for one in sends if one.number in middle]

    found = trial.together(
        {f"{library}, {name}": functools.partial(run, library, name) for library, name in scenarios}
    )
    trial.table(
        "Time from send to acknowledgement",
        ["client", "producer", "ms"],
        [[library, name, spread(found[f"{library}, {name}"])] for library, name in scenarios],
    )
    for library in senders.CLIENTS:
        held = found[f"{library}, linger.ms={HELD_MS}"]
        trial.control(
            f"{library}: linger.ms={HELD_MS} holds a single record back that long",
            bool(held) and min(held) >= 0.9 * HELD_MS,
            f"{spread(held)} ms",
        )
        full = found[f"{library}, full batches"]
        trial.control(
            f"{library}: a full batch does not wait for linger.ms={LONG_MS:,}",
            bool(full) and min(full) < LONG_MS / 2,
            f"{spread(full)} ms",
        )
        for name in ("linger.ms=0", "default linger.ms"):
            took = found[f"{library}, {name}"]
            # a record that waits for others waits at least a second, until the next one is sent
            waits = min(took) >= HELD_MS if took else None
            trial.statement(
                f"with {name}, a record waits until its batch is full",
                waits,
                f"{spread(took)} ms with 100 of {large:,} bytes",
                client=library,
            )


SPREAD_OVER = 4
EVENLY = (1 / 3, 2.0)  # what every partition has, of what it would have if all had the same


@experiment(
    "send-19",
    statement="Records without a key are spread evenly over the partitions",
    method=(
        "Send 500-byte records without a key to 4 partitions with the default settings: a burst of "
        "20, and 10,000 over five seconds. Count the records in each partition, without the one "
        "that was sent before to fetch the metadata. Evenly means that "
        "no partition has less than a third or more than twice its share. A burst that took longer "
        "than 10 ms is repeated, up to five times."
    ),
    advice=(
        "Expect an even spread only over many batches. If a few records per minute must reach all "
        "partitions, or a slow consumer must not get a whole burst, give the records keys or "
        "choose the partition."
    ),
    why=(
        "The Java client stays with one partition until it has filled a batch of batch.size bytes "
        "there, and then chooses another one at random: fuller batches, fewer requests. librdkafka "
        "stays with one for sticky.partitioning.linger.ms. So a burst goes to one partition, and "
        "only many changes even out."
    ),
    scope=(
        "The Java client spread record by record before 2.4, then stayed with a partition per "
        "batch (KIP-480), and since 3.3 changes after batch.size bytes and sends less to brokers "
        "that are slow (KIP-794). librdkafka stays for 10 ms by default, since 1.6."
    ),
    sources=("KIP-480", "KIP-794", "documentation: partitioner.class", "librdkafka: configuration"),
    rules=("RECORDS_WITHOUT_KEY",),
)
def spread_of_unkeyed_records(trial: Trial) -> None:
    cases = [(library, sends) for library in senders.CLIENTS for sends in (BURST, STEADY)]
    found: dict[tuple[Library, UnkeyedSends], list[Spread]] = {case: [] for case in cases}
    for number in trial.rounds(1, 5):
        # One after another: a burst that others slow down is none.
        for library in senders.CLIENTS:
            found[library, BURST].append(_send_burst(trial, library, number + 1))
        steady = trial.together(
            {
                str(library): functools.partial(
                    _send_unkeyed, trial, library, STEADY, f"round {number + 1}"
                )
                for library in senders.CLIENTS
            }
        )
        for library in senders.CLIENTS:
            found[library, STEADY].append(steady[str(library)])
    trial.table(
        "Records in each partition",
        ["client", "sent", "round", "ms", *(f"partition {one}" for one in range(SPREAD_OVER))],
        [
            [library, sends.name, number, round(one.took_ms, 1), *one.ends]
            for (library, sends), rounds in found.items()
            for number, one in enumerate(rounds, start=1)
        ],
    )
    for library, sends in cases:
        rounds = found[library, sends]
        trial.statement(
            f"evenly spread: {sends.name}",
            are_even(sends, rounds),
            "; ".join(map(str, rounds[:3])),
            client=library,
            on=Dependence.SETTING,
        )


class UnkeyedSends(NamedTuple):
    """How many records without a key are sent, and at which rate; None sends them at once."""

    name: str
    records: int
    per_s: float | None = None


BURST = UnkeyedSends("a burst of 20 records", 20)
STEADY = UnkeyedSends("10,000 records in 5 s", 10_000, 2_000)
# librdkafka stays with a partition for so long (sticky.partitioning.linger.ms)
BURST_MS = 10.0


class Spread(NamedTuple):
    """How many records each partition has, and how long it took to hand them to the client."""

    ends: list[int]
    took_ms: float

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.ends))} (sent in {self.took_ms:,.1f} ms)"


def are_even(sends: UnkeyedSends, rounds: Sequence[Spread]) -> bool | None:
    """Return whether the records of all rounds are spread evenly.

    None if records are missing, or if a burst took so long that it was none.
    """
    if any(sum(one.ends) != sends.records for one in rounds):
        return None
    if sends is BURST and any(one.took_ms > BURST_MS for one in rounds):
        return None
    return all(_evenly(one.ends) for one in rounds)


def _send_burst(trial: Trial, library: Library, number: int) -> Spread:
    """Send a burst; send another one if it took too long, a few times."""
    for attempt in range(1, senders.ATTEMPTS_MAX + 1):
        found = _send_unkeyed(trial, library, BURST, f"round {number}, attempt {attempt}")
        if found.took_ms <= BURST_MS:
            break
    return found


def _send_unkeyed(trial: Trial, library: Library, sends: UnkeyedSends, title: str) -> Spread:
    """Send records without a key, and return where they are."""
    scenario, topic = trial.scenario(f"{library}, {sends.name}, {title}"), trial.topic(SPREAD_OVER)
    scenario.publish(
        Publishing(
            topic=topic,
            # One more, which fetches the metadata: librdkafka chooses the partitions of records
            # that wait for metadata all at once.
            count=sends.records + 1,
            warm=True,
            per_s=sends.per_s,
            size=500,
            keyed=False,
            seed=trial.seed,
            library=library,
        )
    )
    ends = offsets.latest(trial.cluster.kafka, topic, range(SPREAD_OVER))
    # The first one was acknowledged before the others were sent.
    first, *others = history.of(scenario.history(), OperationKind.SEND)
    if first.partition is not None:
        ends[first.partition] -= 1
    handed_over = [one.at_ns - one.took_ns for one in others]
    return Spread(
        [ends[partition] for partition in range(SPREAD_OVER)],
        (max(handed_over) - min(handed_over)) / 1e6,
    )


def _evenly(ends: Sequence[int]) -> bool:
    share = sum(ends) / len(ends)
    low, high = EVENLY
    return all(low * share <= one <= high * share for one in ends)
