"""Claims about the order of records."""

from __future__ import annotations

from instep.kafka import topics
from instep.trials import checkers
from instep.trials.claim import Cell, settles
from instep.trials.clients.consuming import Commit, Consuming, Pool
from instep.trials.clients.publishing import Publishing
from instep.trials.history import Deed
from instep.trials.trial import Case, Trial

PARTITIONS = (1, 3, 12)
KEYS = 20


def _send_and_read(trial: Trial, case: Case, partitions: int, count: int, *, keyed: bool, groups: int = 1) -> list[str]:
    """Send the workload, then read it back by each group; the groups."""
    topic = trial.topic(partitions)
    case.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed, keyed=keyed, config={"linger.ms": 1}))
    names = [trial.group() for _ in range(groups)]
    for group in names:
        case.consume(Consuming(topic=topic, group=group, count=count, idle_s=20, commit=Commit.NEVER))
    return names


@settles(
    "order-1",
    told="Records of a topic with several partitions do not come back in the order in which they were sent",
    ran="Send records with and without keys to 1, 3 and 12 partitions, one after another; read all of it with one consumer; "
    "count the records that came after one that was sent later.",
    advice="Count on order within a partition only; what must stay in order gets one key.",
    rules=("RECORDS_WITHOUT_KEY",),
)
def order_1(trial: Trial) -> None:
    count = trial.scaled(3_000, 30_000)
    late: dict[str, list[tuple[int, int]]] = {"with keys": [], "without keys": []}
    for partitions in PARTITIONS:
        for name, found in late.items():
            case = trial.case(f"{partitions} partitions, {name}")
            _send_and_read(trial, case, partitions, count, keyed=name == "with keys")
            found.append((partitions, checkers.unsorted(case.history()).count))
    rows: list[list[Cell]] = [[name, *(counted for _, counted in found)] for name, found in late.items()]
    trial.table(f"Records of {count:,} that came late", ["sent", *(f"{number} partitions" for number in PARTITIONS)], rows)
    trial.plot(
        "Records out of the order of the whole topic",
        "partitions",
        "records",
        {name: [(str(number), float(counted)) for number, counted in found] for name, found in late.items()},
    )
    alone = [counted for found in late.values() for number, counted in found if number == 1]
    spread = [counted for found in late.values() for number, counted in found if number > 1]
    trial.control("with one partition nothing comes late", not any(alone), f"{sum(alone)} of {2 * count:,} late")
    trial.told("with several partitions some come late", any(spread), f"{min(spread):,} to {max(spread):,} of {count:,} late")


@settles(
    "order-2",
    told="With one partition the order holds, whatever the number of groups",
    ran="Send records to one partition; read it by one group and by three; count late records in each.",
    advice="One partition keeps the whole order and takes one reader per group: enough for a few thousand records a second.",
    rules=("RECORDS_WITHOUT_KEY",),
)
def order_2(trial: Trial) -> None:
    count = trial.scaled(3_000, 30_000)
    for groups in (1, 3):
        case = trial.case(f"{groups} groups")
        names = _send_and_read(trial, case, 1, count, keyed=True, groups=groups)
        seen = case.history()
        late = sum(checkers.unsorted(seen, group).count for group in names)
        missing = sum(checkers.lost(seen, group, by=Deed.READ).count for group in names)
        trial.control(f"each of {groups} groups reads everything", missing == 0, f"{missing} records missing")
        trial.told(f"{groups} groups read in order", late == 0, f"{late} of {groups * count:,} late")


@settles(
    "order-3",
    told="Records with one key stay in order over many partitions",
    ran="Send records of 20 keys to 1, 3 and 12 partitions, read all with one consumer, count inversions within a key. The same "
    "without giving Kafka the key must invert some.",
    advice="Send the document's id as the key; everything about one document then stays in order.",
    rules=("RECORDS_WITHOUT_KEY", "PUBLISHER_PARTITIONER"),
)
def order_3(trial: Trial) -> None:
    count = trial.scaled(3_000, 30_000)
    inverted: dict[str, list[tuple[int, int]]] = {"with keys": [], "without keys": []}
    for partitions in PARTITIONS:
        for name, found in inverted.items():
            case = trial.case(f"{partitions} partitions, {name}")
            _send_and_read(trial, case, partitions, count, keyed=name == "with keys")
            found.append((partitions, checkers.inverted(case.history(), by=Deed.READ).count))
    trial.plot(
        "Records that came after a later one of the same key",
        "partitions",
        "records",
        {name: [(str(number), float(counted)) for number, counted in found] for name, found in inverted.items()},
    )
    without = sum(counted for number, counted in inverted["without keys"] if number > 1)
    trial.control("without keys some are inverted", without > 0, f"{without:,} of {2 * count:,}")
    for partitions, counted in inverted["with keys"]:
        trial.told(f"order of a key over {partitions} partitions", counted == 0, f"{counted} of {count:,} inverted")


@settles(
    "order-4",
    told="A thread pool that works on one partition's records breaks the order, unless it is fed by key",
    ran="Read one partition and hand its records to 8 threads: any thread takes the next one, or each key has its thread. The "
    "work takes a random time. Count the records that were worked after a later one of the same key.",
    advice="Route work by key (key modulo threads), or have more partitions; a plain pool undoes the order that Kafka kept.",
    rules=("PIPELINE_WITHOUT_GUARD",),
)
def order_4(trial: Trial) -> None:
    count = trial.scaled(600, 3_000)
    inverted: dict[Pool, int] = {}
    for pool in Pool:
        topic = trial.topic(1)
        case = trial.case(f"pool {pool}")
        case.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed))
        case.consume(
            Consuming(
                topic=topic,
                group=trial.group(),
                count=count,
                idle_s=20,
                commit=Commit.NEVER,
                pool=pool,
                work_ms=1,
                seed=trial.seed,
            )
        )
        seen = case.history()
        lost = checkers.lost(seen)
        trial.control(f"pool {pool}: everything was worked", not lost, f"{lost.count} of {lost.of:,} missing")
        inverted[pool] = checkers.inverted(seen).count
    trial.plot(
        "Records worked after a later one of the same key",
        "pool of 8",
        "records",
        {"inverted": [(str(pool), float(counted)) for pool, counted in inverted.items()]},
    )
    trial.control("one thread keeps the order", inverted[Pool.NONE] == 0, f"{inverted[Pool.NONE]} of {count:,} inverted")
    trial.told("a pool by record breaks it", inverted[Pool.BY_RECORD] > 0, f"{inverted[Pool.BY_RECORD]:,} of {count:,} inverted")
    trial.told("a pool by key keeps it", inverted[Pool.BY_KEY] == 0, f"{inverted[Pool.BY_KEY]} of {count:,} inverted")


@settles(
    "order-6",
    told="Raising the number of partitions keeps the order within a key",
    ran="Send to 2 partitions, raise them to 4, send more of the same keys; a reader that lags then reads all of it. Count the "
    "keys that moved, and the inversions within a key.",
    advice="Choose enough partitions at the start; to grow, let every reader catch up first, or compare versions in a guard.",
    rules=("PIPELINE_WITHOUT_GUARD",),
)
def order_6(trial: Trial) -> None:
    count = trial.scaled(2_000, 20_000)
    inverted: dict[str, int] = {}
    for grows in (False, True):
        name = "raised to 4" if grows else "left at 2"
        case = trial.case(name)
        topic = trial.topic(2)
        case.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed))
        if grows:
            topics.grow(trial.ground.cluster, topic, 4)
            trial.note("raised to 4 partitions")
        # a new client: one that runs on learns of new partitions within its metadata's age, five minutes by default
        case.publish(Publishing(topic=topic, count=count, keys=KEYS, seed=trial.seed, first=count))
        case.consume(Consuming(topic=topic, group=trial.group(), count=2 * count, idle_s=20, commit=Commit.NEVER, batch=50))
        seen = case.history()
        inverted[name] = checkers.inverted(seen, by=Deed.READ).count
        places: dict[str | None, set[int | None]] = {}
        for one in seen:
            if one.deed is Deed.READ:
                places.setdefault(one.key, set()).add(one.partition)
        moved = sum(len(found) > 1 for found in places.values())
        if grows:
            trial.control("keys moved to other partitions", moved > 0, f"{moved} of {len(places)} keys")
    trial.table(
        "Inversions within a key",
        ["partitions", f"of {2 * count:,} records"],
        [[name, found] for name, found in inverted.items()],
    )
    trial.control("with an unchanged number nothing is inverted", inverted["left at 2"] == 0, f"{inverted['left at 2']} inverted")
    trial.told(
        "order of a key over a raised number",
        inverted["raised to 4"] == 0,
        f"{inverted['raised to 4']:,} of {2 * count:,} inverted",
    )
