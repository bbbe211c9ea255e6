"""Claims about the order of records."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from instep.document.showing import counted
from instep.kafka import topics
from instep.local.proxy import NetworkFault
from instep.report.tables import Cell
from instep_lab import checkers
from instep_lab.claim import Tier, experiment
from instep_lab.claims import senders
from instep_lab.clients.consuming import CommitMode, Consuming, Pool
from instep_lab.clients.publishing import Publishing, rejection
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.trial import Scenario, Trial

PARTITIONS = (1, 3, 12)
KEYS = 20


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
        "sent later."
    ),
    advice=(
        "Rely on order only within a partition. Give records that must stay in order the same key."
    ),
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


@experiment(
    "order-2",
    statement="With one partition the order is kept, for any number of consumer groups",
    method=(
        "Send records to one partition. Read it with one group and with three groups, and count "
        "the late records in each."
    ),
    advice=(
        "One partition keeps the order of the whole topic and allows one reader per group: "
        "enough for a few thousand records per second."
    ),
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


@experiment(
    "order-3",
    statement="Records with the same key stay in order, even in a topic with many partitions",
    method=(
        "Send records with 20 keys to 1, 3 and 12 partitions, read them with one consumer, and "
        "count inversions within a key. As a control, records sent to Kafka without the key must "
        "show inversions."
    ),
    advice="Use the document's id as the key: all records of one document then stay in order.",
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
    rules=("PIPELINE_WITHOUT_GUARD",),
)
def key_order_in_thread_pools(trial: Trial) -> None:
    count = trial.scaled(600, 3_000)
    inverted: dict[Pool, int] = {}
    for pool in Pool:
        topic = trial.topic(1)
        scenario = trial.scenario(f"pool {pool}")
        scenario.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed))
        scenario.consume(
            Consuming(
                topic=topic,
                group=trial.group(),
                count=count,
                idle_s=20,
                commit=CommitMode.NEVER,
                pool=pool,
                work_ms=1,
                seed=trial.seed,
            )
        )
        operations = scenario.history()
        lost = checkers.lost(operations)
        trial.control(
            f"pool {pool}: every record was processed",
            not lost,
            f"{lost.count} of {lost.of:,} missing",
        )
        inverted[pool] = checkers.inverted(operations).count
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
SENDERS: Mapping[str, Mapping[str, Any]] = {
    "1 in flight": {"enable.idempotence": False, IN_FLIGHT: 1},
    "5 in flight": {"enable.idempotence": False, IN_FLIGHT: 5},
    "1,000 in flight": {"enable.idempotence": False, IN_FLIGHT: 1_000},
    "idempotent, 1 in flight": {IN_FLIGHT: 1},
    "idempotent, 5 in flight": {IN_FLIGHT: 5},
}


@experiment(
    "order-5",
    statement=(
        "Retries with several requests in flight reorder records; an idempotent producer with at "
        "most 5 in flight keeps the order"
    ),
    method=(
        "Five producers send over a slow connection: with 1, 5 and many requests in flight, "
        "idempotent and not. A proxy corrupts some requests, which the broker rejects and the "
        "client sends again; then the connection is cut, and the broker is frozen for a moment. "
        "Count repeats and the records that come after a later record of their key."
    ),
    advice=(
        "Enable idempotence: it costs nothing. With librdkafka, limiting requests in flight to "
        "one does not replace it."
    ),
    rules=("PUBLISHER_REORDERS_ON_RETRY", "PUBLISHER_NOT_IDEMPOTENT"),
    harmless=False,
)
def order_under_retries(trial: Trial) -> None:
    found: dict[str, Disorder] = dict.fromkeys(SENDERS, Disorder())
    garbled = cuts = 0
    plain = [name for name, config in SENDERS.items() if not config.get("enable.idempotence", True)]
    several = [name for name in plain if name != "1 in flight"]
    for number in range(trial.scaled(3, 10)):
        # Whether a retry overtakes another request depends on timing. Repeat the faults until each
        # of these producers has shown it, instead of calling one lucky round a result.
        if trial.tier is Tier.QUICK and number and all(found[name].inverted for name in plain):
            break
        scenarios = {name: trial.scenario(f"{name}, round {number + 1}") for name in SENDERS}
        topics_ = {name: trial.topic(1) for name in SENDERS}
        garbled_now, cuts_now = _disturb(trial, scenarios, topics_)
        garbled, cuts = garbled + garbled_now, cuts + cuts_now
        for name, scenario in scenarios.items():
            scenario.read_topic(topics_[name])
            found[name] = found[name].plus(scenario.history())
    for y, counts in {
        "inverted": [(name, float(one.inverted)) for name, one in found.items()],
        "repeated": [(name, float(one.repeated)) for name, one in found.items()],
    }.items():
        trial.plot(f"Records {y} in the log", "producer", "records", {y: counts})
    trial.table(
        "What the log shows",
        [
            "producer",
            "records",
            "inverted within a key",
            "repeated",
            "repeated after a later record: a reader without a guard goes back",
        ],
        [
            [name, one.records, one.inverted, one.repeated, one.went_back]
            for name, one in found.items()
        ],
    )
    trial.control(
        "requests were rejected and sent again",
        garbled > 0,
        f"{garbled} corrupted requests, {cuts} connections cut",
    )
    lost = sum(one.lost for one in found.values())
    trial.control("no acknowledged record is missing", lost == 0, f"{lost} missing")
    for name in several:
        trial.statement(
            f"{name}: some records are inverted", found[name].inverted > 0, found[name].summary
        )
    for name in [name for name in SENDERS if name not in plain]:
        trial.statement(
            f"{name}: no record is inverted", found[name].inverted == 0, found[name].summary
        )
    one = found["1 in flight"]
    trial.limit(
        "without idempotence, this client inverts some records even with 1 in flight",
        one.inverted > 0,
        one.summary,
    )
    refused = rejection({"enable.idempotence": True, IN_FLIGHT: 6})
    trial.statement(
        "the client rejects idempotence with 6 in flight",
        refused is not None,
        refused or "it was accepted",
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
    trial: Trial, scenarios: Mapping[str, Scenario], topics_: Mapping[str, str]
) -> tuple[int, int]:
    """Send with each producer while faults are injected into connection and broker.

    Return the number of corrupted requests and of cut connections.
    """
    proxy = trial.cluster.proxies[1]
    before = dataclasses.replace(proxy.counts)
    with contextlib.ExitStack() as running:
        for name, scenario in scenarios.items():
            plan = Publishing(
                topic=topics_[name],
                count=senders.FOREVER,
                keys=5,
                seed=trial.seed,
                per_s=300,
                # Small requests, so that several are in flight at the same time.
                config={"linger.ms": 0, "batch.num.messages": 10, **SENDERS[name]},
            )
            running.enter_context(scenario.background(plan, trial.cluster.proxied))
        trial.wait_for_more(scenarios.values(), 50)
        # The delay keeps several requests in flight; the broker rejects a garbled one by its CRC,
        # while those behind it succeed.
        proxy.inject(NetworkFault(delay_s=0.01, garbles_every=7))
        trial.wait(
            lambda: proxy.counts.garbled_chunks - before.garbled_chunks >= 40,
            "40 corrupted requests",
        )
        proxy.inject(NetworkFault(delay_s=0.01))
        for _ in range(2):
            proxy.cut()
            trial.wait_for_more(scenarios.values(), 20)
        trial.freeze(1)
        time.sleep(PAUSE_S)
        trial.thaw(1)
        proxy.clear_fault()
        trial.wait_for_more(scenarios.values(), 50)
    garbled, cut = (
        proxy.counts.garbled_chunks - before.garbled_chunks,
        proxy.counts.cut_connections - before.cut_connections,
    )
    trial.note(f"fault: {garbled} requests corrupted, {cut} connections cut")
    return garbled, cut


@experiment(
    "order-6",
    statement="Adding partitions keeps the order within a key",
    method=(
        "Send to 2 partitions, increase them to 4, and send more records with the same keys. A "
        "reader that lags then reads everything, the last partitions first. Count the keys that "
        "moved and the inversions within a key."
    ),
    advice=(
        "Start with enough partitions. Before adding more, let every reader catch up, or compare "
        "versions in a guard."
    ),
    rules=("PIPELINE_WITHOUT_GUARD",),
)
def key_order_when_partitions_are_added(trial: Trial) -> None:
    count = trial.scaled(2_000, 20_000)
    inverted: dict[str, int] = {}
    # Each case with the partitions in the order of reading: the last ones first, so that whether
    # a key moved shows for certain and not by luck.
    for name, reads in (("unchanged at 2", ([1], [0])), ("increased to 4", ([2, 3], [0, 1]))):
        grows = len(reads[0]) > 1
        scenario = trial.scenario(name)
        topic = trial.topic(2)
        scenario.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed))
        if grows:
            topics.grow(trial.cluster.kafka, topic, 4)
            trial.note("increased to 4 partitions")
        # A new client, because a running one learns about new partitions only when its metadata
        # expires: after five minutes by default.
        scenario.publish(
            Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed, first=count)
        )
        group = trial.group()
        for partitions in reads:
            scenario.consume(
                Consuming(
                    topic=topic,
                    group=group,
                    assigned=partitions,
                    to_end=True,
                    idle_s=20,
                    commit=CommitMode.NEVER,
                    batch=50,
                )
            )
        operations = scenario.history()
        inverted[name] = checkers.inverted(operations, by=OperationKind.READ).count
        places: dict[str | None, set[int | None]] = {}
        for one in operations:
            if one.kind is OperationKind.READ:
                places.setdefault(one.key, set()).add(one.partition)
        moved = sum(len(found) > 1 for found in places.values())
        if grows:
            trial.control(
                "some keys moved to other partitions", moved > 0, f"{moved} of {len(places)} keys"
            )
    trial.table(
        "Inversions within a key",
        ["partitions", f"of {2 * count:,} records"],
        [[name, found] for name, found in inverted.items()],
    )
    trial.control(
        "with an unchanged number of partitions, no record is inverted",
        inverted["unchanged at 2"] == 0,
        f"{inverted['unchanged at 2']} inverted",
    )
    trial.statement(
        "order within a key after adding partitions",
        inverted["increased to 4"] == 0,
        f"{inverted['increased to 4']:,} of {2 * count:,} inverted",
    )
