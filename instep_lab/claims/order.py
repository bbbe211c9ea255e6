"""Claims about the order of records."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from instep.document.showing import counted
from instep.kafka import topics
from instep.local.proxy import NetworkFault
from instep.report.tables import Cell
from instep_lab import checkers, history
from instep_lab.claim import experiment
from instep_lab.claims import ordering, senders
from instep_lab.claims.ordering import KEYS
from instep_lab.clients import java_client, publishing
from instep_lab.clients.consuming import CommitMode, ConsumerProgress, Consuming, Pool
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import Publishing
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.trial import PATIENCE_S, Scenario, Trial

PARTITIONS = (1, 3, 12)


def _send_and_read(
    trial: Trial, scenario: Scenario, partitions: int, count: int, *, keyed: bool, groups: int = 1
) -> list[str]:
    """Send the workload and read it with each group; return the groups."""
    topic = trial.topic(partitions)
    scenario.publish(
        Publishing(
            topic=topic,
            count=count,
            keys=KEYS,
            seed=trial.seed,
            keyed=keyed,
            config={"linger.ms": 1},
        )
    )
    names = [trial.group() for _ in range(groups)]
    for group in names:
        scenario.consume(Consuming(topic=topic, group=group, to_end=True, commit=CommitMode.NEVER))
        # The claim is about order, so a reader that loses or reorders records must not decide it.
        operations = scenario.history()
        read = checkers.repeated(operations, group, by=OperationKind.READ)
        trial.control(
            f"{scenario.name}: every record was read exactly once, and nothing else",
            read.of == count
            and not read
            and not checkers.unsent(operations, group)
            and not checkers.reordered(operations, group),
            f"{read.of:,} of {count:,}",
        )
    return names


def _over_partitions(
    trial: Trial,
    count: int,
    check: Callable[[Sequence[ClientOperation]], checkers.Anomalies],
    title: str,
) -> dict[str, list[tuple[int, int]]]:
    """Check the order with and without keys, by the number of partitions, and plot the result."""
    found: dict[str, list[tuple[int, int]]] = {"with keys": [], "without keys": []}
    for partitions in PARTITIONS:
        for name, counts in found.items():
            scenario = trial.scenario(f"{counted(partitions, 'partition')}, {name}")
            _send_and_read(trial, scenario, partitions, count, keyed=name == "with keys")
            counts.append((partitions, check(scenario.history()).count))
    series = {
        name: [(str(number), float(amount)) for number, amount in counts]
        for name, counts in found.items()
    }
    trial.plot(title, "partitions", "records", series)
    return found


@experiment(
    "order-1",
    statement=(
        "A topic with several partitions does not return records in the order in which they were "
        "sent"
    ),
    method=(
        "Send records with and without keys to 1, 3 and 12 partitions, one after another. Read "
        "each topic with one consumer and count the records that came after a record that was "
        "sent later. Then do the same with a consumer that reads while the records are sent."
    ),
    advice=(
        "Rely on order only within a partition. Give records that must stay in order the same key."
    ),
    why=(
        "Each partition is a log of its own, and a fetch returns a stretch of each log. A consumer "
        "gets these stretches one after another, and nothing compares records of different "
        "partitions. A live reader gets shorter stretches, so fewer records come late."
    ),
    scope=(
        "All releases since 0.8 and all clients; measured with librdkafka as producer and "
        "consumer. How many records come late depends on rate, batches and lag."
    ),
    sources=("documentation: topics and partitions",),
    rules=("RECORDS_WITHOUT_KEY",),
)
def topic_order_across_partitions(trial: Trial) -> None:
    count = trial.scaled(3_000, 30_000)
    late = _over_partitions(
        trial, count, checkers.unsorted, "Records out of order within the whole topic"
    )
    rows: list[list[Cell]] = [
        [name, *(amount for _, amount in found)] for name, found in late.items()
    ]
    trial.table(
        f"Records of {count:,} that came late",
        ["sent", *(f"{number} partitions" for number in PARTITIONS)],
        rows,
    )
    alone = [amount for found in late.values() for number, amount in found if number == 1]
    spread = [amount for found in late.values() for number, amount in found if number > 1]
    trial.control(
        "with one partition, no record comes late",
        not any(alone),
        f"{sum(alone)} of {2 * count:,} late",
    )
    trial.statement(
        "with several partitions, some records come late",
        any(spread),
        f"{min(spread):,} to {max(spread):,} of {count:,} late",
    )
    _read_live(trial, count)


def _read_live(trial: Trial, count: int) -> None:
    """Count late records of a consumer that reads while they are sent."""
    for partitions in (1, 12):
        partitions_text = counted(partitions, "partition")
        scenario = trial.scenario(f"live, {partitions_text}")
        topic, group = trial.topic(partitions), trial.group()
        # Wait for batches, so that each request has several records of several partitions.
        sending = Publishing(
            topic=topic, count=count, keys=KEYS, seed=trial.seed, config={"linger.ms": 5}
        )
        reading = Consuming(topic=topic, group=group, count=count, commit=CommitMode.NEVER)
        with scenario.background(reading) as (progress, _):
            trial.wait(partial(_holds, progress, partitions), "the reader to join its group")
            scenario.publish(sending)
            trial.wait(partial(_has_read, progress, count), "the reader to catch up")
        operations = scenario.history()
        late = checkers.unsorted(operations, group)
        if partitions == 1:
            trial.control(
                "a live reader of one partition gets no record late",
                not late,
                f"{late.count} of {late.of:,} late",
            )
            continue
        trial.example(scenario, late)
        trial.statement(
            f"a live reader of {partitions_text} gets some records late, too",
            late.count > 0 or None,
            f"{late.count:,} of {late.of:,} late",
        )


def _holds(progress: ConsumerProgress, partitions: int) -> bool:
    return len(progress.assigned) == partitions


def _has_read(progress: ConsumerProgress, count: int) -> bool:
    return progress.read >= count


@experiment(
    "order-2",
    statement="With one partition the order is kept, for any number of consumer groups",
    method=(
        "Send records to one partition. Read it with one group and with three groups, and count "
        "the late records in each. Then send with two publishers, of which one collects records "
        "for 0.2 s, and fill one partition at full speed."
    ),
    advice=(
        "One partition keeps the order of the whole topic. It limits you to one reader per group, "
        "not the send rate: one partition takes hundreds of thousands of small records per "
        "second. With several publishers the log has the order of arrival; add a version or a "
        "time to the records if the order of events matters."
    ),
    why=(
        "The leader appends each batch at the end of the log and gives each record the next "
        "offset. Every reader gets records by offset, and groups share nothing but the log. The "
        "broker does not look at timestamps: a record that was created earlier and arrives later "
        "has the higher offset."
    ),
    scope=(
        "All releases since 0.8, all clients; measured with librdkafka. The producer must not "
        "reorder when it retries (order-5), and the limit is the number of publishers. The "
        "rate is that of one librdkafka producer with records of 100 bytes and one replica."
    ),
    sources=("documentation: topics and partitions", "documentation: message.timestamp.type"),
    rules=("RECORDS_WITHOUT_KEY",),
)
def topic_order_with_one_partition(trial: Trial) -> None:
    count = trial.scaled(3_000, 30_000)
    for groups in (1, 3):
        scenario = trial.scenario(f"{groups} groups")
        names = _send_and_read(trial, scenario, 1, count, keyed=True, groups=groups)
        operations = scenario.history()
        late = sum(checkers.unsorted(operations, group).count for group in names)
        trial.statement(
            f"{counted(groups, 'group')} in order", late == 0, f"{late} of {groups * count:,} late"
        )
    _two_publishers(trial)
    filled, topic = trial.scaled(100_000, 1_000_000), trial.topic(1)
    seconds = trial.fill(topic, filled)
    trial.table(
        "One partition at full speed",
        ["records of 100 bytes", "seconds", "records per second"],
        [[filled, round(seconds, 2), round(filled / seconds)]],
    )


COLLECTS_MS = 200


def _two_publishers(trial: Trial) -> None:
    """Send with two publishers; the records of one of them wait before they are sent."""
    scenario, topic = trial.scenario("two publishers"), trial.topic(1)
    count = trial.scaled(200, 1_000)
    ordering.send_with_two(trial, scenario, topic, count, COLLECTS_MS)
    groups = [trial.group() for _ in range(2)]
    for group in groups:
        scenario.consume(Consuming(topic=topic, group=group, to_end=True, commit=CommitMode.NEVER))
    operations = scenario.history()
    orders = [
        [one.record for one in history.of(operations, OperationKind.READ, group=group)]
        for group in groups
    ]
    trial.statement(
        "two publishers: all groups read the same order",
        orders[0] == orders[1] and len(orders[0]) == 2 * count,
        f"{len(orders[0]):,} records each",
    )
    late = checkers.unsorted(operations, groups[0])
    trial.example(scenario, late)
    trial.limit(
        "with two publishers, the order is that of arrival, not of time",
        late.count > 0 or None,
        f"{late.count:,} of {late.of:,} come after a record that was created later",
    )


@experiment(
    "order-3",
    statement="Records with the same key stay in order, even in a topic with many partitions",
    method=(
        "Send records with 20 keys to 1, 3 and 12 partitions, read them with one consumer, and "
        "count inversions within a key. As a control, records sent to Kafka without the key must "
        "show inversions."
    ),
    advice="Use the document's id as the key: all records of one document then stay in order.",
    why=(
        "The producer computes the partition from the key, so equal keys go to the same "
        "partition, and a partition is a log in the order of arrival. Without a key, producers "
        "fill one partition after another, so the records of one document are spread."
    ),
    scope=(
        "All releases since 0.8; measured with librdkafka, for one producer per key that does "
        "not reorder when it retries (order-5), as long as the number of partitions does not "
        "change (order-6) and all producers use the same partitioner (send-11). A consumer "
        "with a thread pool needs more (order-4)."
    ),
    sources=("documentation: topics and partitions", "KIP-480"),
    rules=("RECORDS_WITHOUT_KEY", "PUBLISHER_PARTITIONER_NOT_MURMUR2"),
)
def key_order_across_partitions(trial: Trial) -> None:
    count = trial.scaled(3_000, 30_000)
    check = partial(checkers.inverted, by=OperationKind.READ)
    inverted = _over_partitions(
        trial, count, check, "Records that came after a later record of the same key"
    )
    without = sum(amount for number, amount in inverted["without keys"] if number > 1)
    trial.control(
        "without keys, some records are inverted", without > 0, f"{without:,} of {2 * count:,}"
    )
    for partitions, late in inverted["with keys"]:
        partitions_text = counted(partitions, "partition")
        trial.statement(
            f"order within a key over {partitions_text}", late == 0, f"{late} of {count:,} inverted"
        )


@experiment(
    "order-4",
    statement=(
        "A thread pool that processes the records of one partition breaks the order, unless "
        "records are routed by key"
    ),
    method=(
        "Read one partition and hand its records to 8 threads: either any thread takes the next "
        "record, or each key has its own thread. The work takes a random time. Count the records "
        "that were processed after a later record of the same key."
    ),
    advice=(
        "Route work by key (hash of the key modulo the number of threads), or use more "
        "partitions: a plain pool destroys the order that Kafka kept."
    ),
    why=(
        "The consumer hands out records in order, but the threads finish them in any order. If "
        "all records of a key go to the same thread, only records of different keys can overtake "
        "each other."
    ),
    scope=(
        "All releases since 0.8 and all clients: the pool is code of the application. Measured "
        "with librdkafka, 8 threads and work of 0 to 2 ms."
    ),
    sources=("documentation: KafkaConsumer",),
    rules=("PIPELINE_WITHOUT_GUARD",),
)
def key_order_in_thread_pools(trial: Trial) -> None:
    count = trial.scaled(600, 3_000)
    inverted: dict[Pool, int] = {}
    for pool in Pool:
        scenario = trial.scenario(f"pool {pool}")
        ordering.work_in_pool(trial, scenario, pool, count)
        operations = scenario.history()
        lost = checkers.lost(operations)
        trial.control(
            f"pool {pool}: every record was processed",
            not lost,
            f"{lost.count} of {lost.of:,} missing",
        )
        late = checkers.inverted(operations)
        trial.example(scenario, late)
        inverted[pool] = late.count
    trial.plot(
        "Records processed after a later record of the same key",
        "pool of 8",
        "records",
        {"inverted": [(str(pool), float(amount)) for pool, amount in inverted.items()]},
    )
    trial.control(
        "one thread keeps the order",
        inverted[Pool.NONE] == 0,
        f"{inverted[Pool.NONE]} of {count:,} inverted",
    )
    trial.statement(
        "a pool that takes record by record breaks the order",
        inverted[Pool.BY_RECORD] > 0,
        f"{inverted[Pool.BY_RECORD]:,} of {count:,} inverted",
    )
    trial.statement(
        "a pool routed by key keeps the order",
        inverted[Pool.BY_KEY] == 0,
        f"{inverted[Pool.BY_KEY]} of {count:,} inverted",
    )


IN_FLIGHT = "max.in.flight.requests.per.connection"
PAUSE_S = 0.5
RETRIES_MIN = 3
# Small requests, so that several are in flight at the same time.
SMALL_REQUESTS: Mapping[Library, Mapping[str, Any]] = {
    Library.JAVA: {"linger.ms": 0, "batch.size": 1_500},
    # A short queue: on a busy machine, a long one would have to be sent at the end.
    Library.LIBRDKAFKA: {
        "linger.ms": 0,
        "batch.num.messages": 10,
        "queue.buffering.max.messages": 500,
    },
}


@dataclass(frozen=True, slots=True)
class RetryingSender:
    """A producer by its library, its requests in flight, and whether it is idempotent."""

    library: Library
    in_flight: int
    idempotent: bool = False

    @property
    def name(self) -> str:
        return f"{self.library}, {self.setting}"

    @property
    def setting(self) -> str:
        idempotent = "idempotent, " if self.idempotent else ""
        return f"{idempotent}{self.in_flight:,} in flight"

    @property
    def config(self) -> dict[str, Any]:
        return {
            **SMALL_REQUESTS[self.library],
            "acks": "all",
            "enable.idempotence": self.idempotent,
            IN_FLIGHT: self.in_flight,
        }


SENDERS = (
    RetryingSender(Library.JAVA, 1),
    RetryingSender(Library.JAVA, 5),
    RetryingSender(Library.JAVA, 5, idempotent=True),
    RetryingSender(Library.LIBRDKAFKA, 1),
    RetryingSender(Library.LIBRDKAFKA, 5),
    RetryingSender(Library.LIBRDKAFKA, 1_000),
    RetryingSender(Library.LIBRDKAFKA, 1, idempotent=True),
    RetryingSender(Library.LIBRDKAFKA, 5, idempotent=True),
)


@experiment(
    "order-5",
    statement=(
        "Retries with several requests in flight reorder records; with one request in flight, or "
        "with an idempotent producer and at most 5, the order is kept"
    ),
    method=(
        "Producers of the Java client and of librdkafka send over a slow connection: with 1, 5 "
        "and many requests in flight, idempotent and not. A proxy corrupts some requests until "
        "every client has reported retries; then the connection is cut, and the broker is frozen "
        "for a moment. Count repeats and the records that come after a later record of their key."
    ),
    advice=(
        "Enable idempotence; it is the default of the Java client since Kafka 3.0. It needs "
        "acks=all, whose cost send-13 shows. One request in flight keeps the order with the Java "
        "client; with librdkafka it does not replace idempotence."
    ),
    why=(
        "A request that the broker rejects is sent again, while requests behind it succeed, so "
        "its records come later in the log. An idempotent producer numbers its batches, and the "
        "broker accepts them only in this order. With one request in flight the Java client sends "
        "nothing for a partition until the retry is answered. With librdkafka, some records of a "
        "rejected request end up behind later ones, although its maintainers intend otherwise."
    ),
    scope=(
        "Java client 4.3 and librdkafka 2.x, as the run reports them; requests rejected as "
        "corrupt (CRC). Idempotence exists since Kafka 0.11, with up to 5 requests since 1.0 "
        "(KAFKA-5494); 0.11 allowed only 1. It is the default of the Java client since 3.0, in "
        "effect since 3.0.1, 3.1.1 and 3.2; librdkafka does not enable it by default."
    ),
    sources=("KIP-98", "KIP-679", "KAFKA-5494", "KAFKA-13598", "librdkafka#1092"),
    rules=("PUBLISHER_REORDERS_ON_RETRY", "PUBLISHER_NOT_IDEMPOTENT"),
    harmless=False,
)
def order_under_retries(trial: Trial) -> None:
    found: dict[RetryingSender, Disorder] = dict.fromkeys(SENDERS, Disorder())
    # Whether a retry overtakes another request depends on timing. Repeat the faults until each of
    # these producers has shown it: that it was not seen in one round proves nothing.
    expected = [
        one
        for one in SENDERS
        if not one.idempotent and (one.in_flight > 1 or one.library is Library.LIBRDKAFKA)
    ]
    rejected: dict[RetryingSender, int] = dict.fromkeys(SENDERS, 0)
    cuts = 0
    for number in range(trial.scaled(8, 20)):
        if number >= trial.scaled(1, 10) and all(found[one].inverted for one in expected):
            break
        scenarios = {
            one: trial.scenario(f"{one.name}, round {number + 1}", judges_idempotence=True)
            for one in SENDERS
        }
        topics_ = {one: trial.topic(1) for one in SENDERS}
        cuts += _disturb(trial, scenarios, topics_, rejected)
        trial.read_topics({scenarios[one]: topic for one, topic in topics_.items()})
        for one, scenario in scenarios.items():
            operations = scenario.history()
            found[one] = found[one].plus(operations)
            trial.example(scenario, checkers.inverted(operations, by=OperationKind.READ))
    _show_disorder(trial, found, rejected)
    lost = sum(one.lost for one in found.values())
    trial.control("no acknowledged record is missing", lost == 0, f"{lost} missing")
    fewest = min(rejected.values())
    trial.control(
        "every client sent rejected requests again, before a connection was cut",
        fewest > 0,
        f"{fewest:,} to {max(rejected.values()):,} retries each",
    )
    repeated = sum(found[one].repeated for one in expected)
    trial.control(
        "requests without a response were sent again: producers that are not idempotent repeat "
        "records",
        repeated > 0,
        f"{repeated:,} repeated after {counted(cuts, 'cut connection')}",
    )
    for one, seen in found.items():
        if one.idempotent or one.in_flight == 1:
            holds: bool | None = seen.inverted == 0
            statement = f"{one.setting}: no record is inverted"
        else:
            holds = seen.inverted > 0 or None
            statement = f"{one.setting}: some records are inverted"
        if one in expected and not seen.inverted:
            holds = None
        evidence = f"{seen.summary}, {rejected[one]:,} retries of rejected requests"
        trial.statement(statement, holds, evidence, client=one.library)
    for library, reject in (
        (Library.JAVA, java_client.rejection),
        (Library.LIBRDKAFKA, publishing.rejection),
    ):
        refused = reject({"enable.idempotence": True, "acks": "all", IN_FLIGHT: 6})
        trial.statement(
            "the client rejects idempotence with 6 in flight",
            refused is not None,
            refused or "it was accepted",
            client=library,
        )


def _show_disorder(
    trial: Trial,
    found: Mapping[RetryingSender, Disorder],
    rejected: Mapping[RetryingSender, int],
) -> None:
    for y, counts in {
        "inverted": [(one.name, float(seen.inverted)) for one, seen in found.items()],
        "repeated": [(one.name, float(seen.repeated)) for one, seen in found.items()],
    }.items():
        trial.plot(f"Records {y} in the log", "producer", "records", {y: counts})
    trial.table(
        "What the log shows",
        [
            "client",
            "producer",
            "records",
            "retries of rejected requests",
            "inverted within a key",
            "repeated",
            "repeated after a later record: a reader without a guard goes back",
        ],
        [
            [
                one.library,
                one.setting,
                seen.records,
                rejected[one],
                seen.inverted,
                seen.repeated,
                seen.went_back,
            ]
            for one, seen in found.items()
        ],
    )


@dataclass(frozen=True, slots=True)
class Disorder:
    """The anomalies of a log.

    `went_back` counts repeats that follow a later record of their key.
    """

    records: int = 0
    inverted: int = 0
    repeated: int = 0
    went_back: int = 0
    lost: int = 0

    @property
    def summary(self) -> str:
        return f"{self.inverted:,} of {self.records:,} inverted, {self.repeated:,} repeated"

    def plus(self, operations: Sequence[ClientOperation]) -> Disorder:
        inverted = checkers.inverted(operations, by=OperationKind.READ)
        return Disorder(
            self.records + inverted.of,
            self.inverted + inverted.count,
            self.repeated + checkers.repeated(operations, by=OperationKind.READ).count,
            self.went_back + checkers.went_back(operations, by=OperationKind.READ).count,
            self.lost + checkers.lost(operations, by=OperationKind.READ).count,
        )


def _disturb(
    trial: Trial,
    scenarios: Mapping[RetryingSender, Scenario],
    topics_: Mapping[RetryingSender, str],
    rejected: dict[RetryingSender, int],
) -> int:
    """Send with each producer while faults are injected into connection and broker.

    Add the retries of rejected requests that each client reported to `rejected`. Return the
    number of cut connections.
    """
    proxy = trial.cluster.proxies[1]
    before = dataclasses.replace(proxy.counts)
    plans = {
        scenario: Publishing(
            topic=topics_[one],
            count=senders.FOREVER,
            keys=5,
            seed=trial.seed,
            per_s=200,
            library=one.library,
            config=one.config,
            note_retries=True,
        )
        for one, scenario in scenarios.items()
    }
    with trial.running(plans, trial.cluster.proxied):
        trial.wait_for_more(scenarios.values(), 50)
        # The delay keeps several requests in flight; the broker rejects a garbled one by its CRC,
        # while those behind it succeed.
        proxy.inject(NetworkFault(delay_s=0.01, garbles_every=7))
        trial.wait(
            lambda: proxy.counts.garbled_chunks - before.garbled_chunks >= 40,
            "40 corrupted requests",
        )
        # What counts is what the clients saw. Before the first cut, a rejection is the only reason
        # to retry.
        trial.wait(
            lambda: all(_retries(one) >= RETRIES_MIN for one in scenarios.values()),
            "every producer to send rejected requests again",
        )
        for one, scenario in scenarios.items():
            rejected[one] += _retries(scenario)
        proxy.inject(NetworkFault(delay_s=0.01))
        for _ in range(2):
            trial.cut(proxy)
            trial.wait_for_more(scenarios.values(), 20)
        trial.freeze(1)
        time.sleep(PAUSE_S)
        trial.thaw(1)
        proxy.clear_fault()
        trial.wait_for_more(scenarios.values(), 50)
    cut = proxy.counts.cut_connections - before.cut_connections
    garbled = proxy.counts.garbled_chunks - before.garbled_chunks
    trial.note(f"fault: {garbled} requests corrupted, {cut} connections cut")
    return cut


def _retries(scenario: Scenario) -> int:
    """Return how many retries the producer of a scenario has reported so far."""
    return sum(one.kind is OperationKind.FAULT for one in scenario.history())


BEFORE, AFTER = 2, 4  # partitions
OLD, NEW = [0, 1], [2, 3]


@experiment(
    "order-6",
    statement="Adding partitions keeps the order within a key",
    method=(
        "Send to 2 partitions, increase them to 4, and send more records with the same keys, with "
        "both clients. A reader that lags then reads the new partitions first. Repeat it with a "
        "reader that had caught up before the increase, while a sender keeps running. Count the "
        "keys that moved and the inversions within a key."
    ),
    advice=(
        "Start with enough partitions. If you have to add some, stop all senders, let every "
        "reader catch up, add the partitions, and start the senders again. Letting readers catch "
        "up is not enough: running senders learn of new partitions at different times, by default "
        "up to 5 minutes later. Or compare versions in a guard."
    ),
    why=(
        "The partition of a key is its hash modulo the number of partitions, so about half of "
        "the keys move when the number doubles. Their old records stay where they are. Old and "
        "new records of a key are then in different partitions, which are read independently. A "
        "sender uses the number of partitions of its last metadata, which it refreshes after "
        "metadata.max.age.ms (librdkafka: topic.metadata.refresh.interval.ms)."
    ),
    scope=(
        "All releases since 0.8; Java client and librdkafka with the murmur2 partitioner. The "
        "running sender has the default metadata age of 5 minutes. The order in which "
        "partitions are read is forced; without that, it depends on lag and on which member "
        "reads what."
    ),
    sources=(
        "documentation: metadata.max.age.ms",
        "documentation: modifying topics",
        "documentation: topics and partitions",
    ),
    rules=("PIPELINE_WITHOUT_GUARD",),
)
def key_order_when_partitions_are_added(trial: Trial) -> None:
    count = trial.scaled(1_000, 20_000)
    rows: list[list[Cell]] = []

    def check(
        name: str, operations: Sequence[ClientOperation], *, moves: bool = True
    ) -> checkers.Anomalies:
        found = checkers.inverted(operations, by=OperationKind.READ)
        moved, keys = _moved_keys(operations)
        rows.append([name, f"{moved} of {keys}", found.count, found.of])
        lost = checkers.lost(operations, by=OperationKind.READ)
        trial.control(
            f"{name}: every record was read", not lost, f"{lost.of - lost.count:,} of {lost.of:,}"
        )
        if moves:
            trial.control(f"{name}: some keys moved", moved > 0, f"{moved} of {keys} keys")
        return found

    unchanged = trial.scenario("unchanged at 2")
    topic = _send_twice(trial, unchanged, Library.LIBRDKAFKA, count, lambda _: None)
    group = trial.group()
    for partitions in ([1], [0]):
        _read_on(unchanged, topic, group, partitions)
    found = check(unchanged.name, unchanged.history(), moves=False)
    trial.control(
        "with an unchanged number of partitions, no record is inverted",
        not found,
        f"{found.count} of {found.of:,} inverted",
    )
    for library in (Library.JAVA, Library.LIBRDKAFKA):
        scenario = trial.scenario(f"{library}, the reader lags", keys_move=True)
        topic = _send_twice(trial, scenario, library, count, partial(_grow, trial))
        group = trial.group()
        for partitions in (NEW, OLD):
            _read_on(scenario, topic, group, partitions)
        found = check(scenario.name, scenario.history())
        trial.example(scenario, found)
        # Not to see an inversion proves nothing.
        trial.statement(
            "a reader that lags gets the records of each key in order",
            False if found else None,
            f"{found.count:,} of {found.of:,} inverted",
            client=library,
        )
    found = check("a sender keeps running", _grow_under_load(trial))
    trial.statement(
        "a reader that had caught up gets the records of each key in order",
        False if found else None,
        f"{found.count:,} of {found.of:,} records sent after the increase are inverted",
    )
    found = check("senders stop, readers catch up", _grow_at_rest(trial, count))
    trial.control(
        "if the senders stop until the readers have caught up and the partitions are added, no "
        "record is inverted",
        not found,
        f"{found.count} of {found.of:,} inverted",
    )
    trial.table(
        f"Inversions within a key when {BEFORE} partitions become {AFTER}",
        ["case", "keys that moved", "inverted", "records"],
        rows,
    )


def _moved_keys(operations: Sequence[ClientOperation]) -> tuple[int, int]:
    """Return how many keys are in several partitions, and how many keys there are."""
    places: dict[str | None, set[int | None]] = {}
    for one in history.of(operations, OperationKind.READ):
        places.setdefault(one.key, set()).add(one.partition)
    return sum(len(found) > 1 for found in places.values()), len(places)


def _grow(trial: Trial, topic: str) -> None:
    topics.grow(trial.cluster.kafka, topic, AFTER)
    trial.note(f"increased to {AFTER} partitions")


def _send_twice(
    trial: Trial,
    scenario: Scenario,
    library: Library,
    count: int,
    between: Callable[[str], None],
) -> str:
    """Send the workload in two parts by two clients, and do something between them."""
    topic = trial.topic(BEFORE)
    plan = Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed, library=library)
    scenario.publish(plan)
    between(topic)
    scenario.publish(msgspec.structs.replace(plan, first=count))
    return topic


def _read_on(scenario: Scenario, topic: str, group: str, partitions: list[int]) -> None:
    """Read some partitions to their ends, from where the group is; the others are not read."""
    scenario.consume(
        Consuming(topic=topic, group=group, assigned=partitions, to_end=True, idle_s=PATIENCE_S)
    )


def _grow_under_load(trial: Trial) -> list[ClientOperation]:
    """Add partitions while a sender runs and a reader has caught up.

    Return what happened to the records that were sent after that.
    """
    scenario = trial.scenario("a sender keeps running", keys_move=True)
    topic, group = trial.topic(2), trial.group()
    plan = Publishing(
        topic=topic, count=senders.FOREVER, keys=KEYS, seed=trial.seed, per_s=500, member="runs on"
    )
    with scenario.background(plan):
        trial.wait_for_more([scenario], 100)
        _read_on(scenario, topic, group, OLD)
        _grow(trial, topic)
        grown = time.monotonic_ns()
        trial.wait_for_more([scenario], 100)
    # The same sender after a restart.
    scenario.publish(
        msgspec.structs.replace(
            plan, count=200, first=senders.FOREVER, per_s=None, member="restarted"
        )
    )
    for partitions in (NEW, OLD):
        _read_on(scenario, topic, group, partitions)
    operations = scenario.history()
    after = {
        one.record: one
        for one in history.of(operations, OperationKind.SEND)
        if one.at_ns - one.took_ns > grown
    }
    misled = sum(one.member == plan.member and one.partition in OLD for one in after.values())
    trial.control(
        "the running sender did not know of the new partitions",
        misled == sum(one.member == plan.member for one in after.values()) and misled > 0,
        f"it sent {misled:,} records to the old ones after the increase",
    )
    found = [one for one in operations if one.record in after]
    trial.example(scenario, checkers.inverted(found, by=OperationKind.READ))
    return found


def _grow_at_rest(trial: Trial, count: int) -> list[ClientOperation]:
    """Add partitions after the senders stopped and the reader caught up."""
    scenario = trial.scenario("senders stop, readers catch up", keys_move=True)
    group = trial.group()

    def catch_up_and_grow(topic: str) -> None:
        _read_on(scenario, topic, group, OLD)
        _grow(trial, topic)

    topic = _send_twice(trial, scenario, Library.LIBRDKAFKA, count, catch_up_and_grow)
    for partitions in (NEW, OLD):
        _read_on(scenario, topic, group, partitions)
    return scenario.history()
