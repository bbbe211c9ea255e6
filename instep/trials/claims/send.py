"""Claims about sending: what an acknowledgement is worth, and what it costs."""

from __future__ import annotations

import contextlib
import functools
import statistics
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from instep.kafka import inquiry, layout, offsets
from instep.trials import checkers, history
from instep.trials.checkers import Found
from instep.trials.claim import Kind, Tier, settles
from instep.trials.clients import defaults
from instep.trials.clients.publishing import Publishing, Spelling, Way
from instep.trials.history import Deed, Operation, Outcome
from instep.trials.proxy import Mischief
from instep.trials.trial import Case, Trial, spread

ACKS = ("0", "1", "all")
FOREVER = 1_000_000


def _plain(acks: str = "all", **config: Any) -> dict[str, Any]:
    """Settings of a producer that is not idempotent; underscores for dots."""
    return {"enable.idempotence": False, "acks": acks, **{name.replace("_", "."): value for name, value in config.items()}}


def _leader(trial: Trial, topic: str) -> int | None:
    return layout.read(trial.ground.cluster).topics[topic].partitions[0].leader


def _in_sync(trial: Trial, topic: str) -> set[int]:
    return set(layout.read(trial.ground.cluster).topics[topic].partitions[0].in_sync)


def _nodes_from(number: int) -> tuple[int, int, int]:
    """The three brokers in an order that begins with another one each time."""
    first, second, third = ((number + step) % 3 + 1 for step in range(3))
    return first, second, third


def _unread(operations: Sequence[Operation], group: str = "reader") -> Found:
    """Records that were given to the client, whatever it said of them, and are not in the log."""
    tried = {one.record for one in history.of(operations, Deed.SEND, None)}
    read = {one.record for one in history.of(operations, Deed.READ, group=group)}
    missing = sorted(f"{key}#{number}" for key, number in tried - read)
    return Found("unread", len(missing), len(tried), tuple(missing[: checkers.EXAMPLES_MAX]))


@settles(
    "send-1",
    told="When the leader dies, acks=0 loses records, acks=1 loses those that no follower has yet, acks=all loses none",
    ran="Send with each acks level to partitions led by one broker. Freeze both followers for a moment, go on sending, kill -9 "
    "the leader, let the followers go on; count the records that were reported as sent and are not in the log.",
    advice="Use acks=all for everything that must arrive; acks=1 loses what the dead leader had not passed on.",
    rules=("PUBLISHER_ACKS", "TOPIC_MIN_IN_SYNC_ONE"),
    brokers=3,
    harmless=False,
)
def send_1(trial: Trial) -> None:
    found: dict[str, list[Found]] = {acks: [] for acks in ACKS}
    unreplicated: list[int] = []
    for number in trial.rounds(1, 5):
        leader, *followers = _nodes_from(trial.seed + number)
        cases = {acks: trial.case(f"acks={acks}, round {number + 1}") for acks in ACKS}
        topics = {acks: trial.topic(on=(leader, *followers)) for acks in ACKS}
        with contextlib.ExitStack() as running:
            for acks, case in cases.items():
                plan = Publishing(topic=topics[acks], count=FOREVER, seed=trial.seed, per_s=500, config=_plain(acks))
                running.enter_context(case.beside(plan))
            trial.wait_for_more(cases.values(), 200)
            for node in followers:
                trial.freeze(node)
            before = cases["1"].acknowledged
            trial.wait_for_more((cases["0"], cases["1"]), 200)
            unreplicated.append(cases["1"].acknowledged - before)
            trial.kill(leader)
            for node in followers:
                trial.thaw(node)
            trial.wait(lambda: _leader(trial, topics["all"]) in followers, "a follower to lead")  # noqa: B023
            trial.wait_for_more(cases.values(), 200)
        for acks, case in cases.items():
            case.read_whole(topics[acks])
            found[acks].append(checkers.lost(case.history(), by=Deed.READ))
        trial.ground.mend()
    lost = {acks: sum(one.count for one in some) for acks, some in found.items()}
    of = {acks: sum(one.of for one in some) for acks, some in found.items()}
    trial.plot(
        "Lost when the leader dies",
        "acks",
        "records",
        {"reported as sent and lost": [(acks, float(count)) for acks, count in lost.items()]},
    )
    trial.table(
        "Records reported as sent that are not in the log",
        ["acks", "reported", "lost", "of them per kill"],
        [[acks, of[acks], lost[acks], ", ".join(str(one.count) for one in some)] for acks, some in found.items()],
    )
    trial.control(
        "records were acknowledged that only the leader had", min(unreplicated) > 0, f"{sum(unreplicated):,} with acks=1"
    )
    for acks in ("0", "1"):
        trial.told(f"acks={acks} loses records", lost[acks] > 0, f"{lost[acks]:,} of {of[acks]:,}")
    trial.told("acks=all loses none", lost["all"] == 0, f"{lost['all']:,} of {of['all']:,}")


@settles(
    "send-2",
    told="acks=all protects nothing when the partition has one replica",
    ran="Send with acks=all to a topic with one replica and to one with three, led by the same broker. Kill that broker, remove "
    "its data as a lost disk does, start it again, read both topics; force an election where Kafka does not trust what is left.",
    advice="Give every topic three replicas: acks=all waits for the copies that there are, and one is no copy.",
    rules=("TOPIC_SINGLE_REPLICA",),
    brokers=3,
    harmless=False,
)
def send_2(trial: Trial) -> None:
    count = trial.scaled(1_000, 10_000)
    nodes = _nodes_from(trial.seed)
    lost: dict[str, Found] = {}
    cases = {name: trial.case(name) for name in ("1 replica", "3 replicas")}
    topics = {
        "1 replica": trial.topic(on=nodes[:1], min_insync_replicas="1"),
        "3 replicas": trial.topic(on=nodes, min_insync_replicas="2"),
    }
    for name, case in cases.items():
        case.publish(Publishing(topic=topics[name], count=count, seed=trial.seed))
        case.read_whole(topics[name], by="before")
        gone = checkers.lost(case.history(), "before", by=Deed.READ)
        trial.control(f"{name}: all is there before", gone.of == count and not gone, f"{gone.count} of {gone.of:,} missing")
    trial.kill(nodes[0])
    trial.wipe(nodes[0])
    # only when the others have a controller may an empty disk come back
    trial.wait(lambda: _leader(trial, topics["3 replicas"]) in nodes[1:], "a follower to lead")
    trial.restart(nodes[0])
    trial.ground.wait_whole(topics["3 replicas"])
    if not (stays := _leader(trial, topics["1 replica"]) is not None):
        # Kafka remembers who had everything, and gives an empty disk no lead unless it is forced to
        with inquiry.opened(trial.ground.cluster) as asked:
            forced = asked is not None and asked.elect_unclean(topics["1 replica"], 0)
        trial.note(f"no leader: an unclean election was {'forced' if forced else 'refused'}")
    for name, case in cases.items():
        trial.ground.wait_whole(topics[name])
        case.read_whole(topics[name], by="after")
        lost[name] = checkers.lost(case.history(), "after", by=Deed.READ)
    trial.plot(
        "Acknowledged with acks=all, and lost with the disk of one broker",
        "replicas",
        "records",
        {"lost": [(name, float(one.count)) for name, one in lost.items()]},
    )
    one, three = lost["1 replica"], lost["3 replicas"]
    trial.control("with three replicas none is lost", not three, f"{three.count} of {three.of:,}")
    how = "" if stays else "; the partition had no leader until an unclean election was forced"
    trial.told("with one replica acknowledged records are lost", bool(one), f"{one.count:,} of {one.of:,}{how}")


@settles(
    "send-3",
    told="min.insync.replicas counts only for senders with acks=all",
    ran="A topic on two brokers with min.insync.replicas=2: send with each acks level while both live, and after the follower "
    "was killed and is out of sync. Look at what is acknowledged, and at what is in the log once the follower is back.",
    advice="min.insync.replicas=2 needs acks=all at every sender: others write past it, to one copy.",
    rules=("PUBLISHER_ACKS", "TOPIC_MIN_IN_SYNC_ONE"),
    brokers=3,
    harmless=False,
)
def send_3(trial: Trial) -> None:
    count = trial.scaled(200, 1_000)
    leader, follower, _ = _nodes_from(trial.seed)
    topics = {acks: trial.topic(on=(leader, follower), min_insync_replicas="2") for acks in ACKS}
    cases = {acks: trial.case(f"acks={acks}") for acks in ACKS}

    def send(first: int) -> dict[str, tuple[int, str]]:
        """Acknowledged sends of each level from this number on, and the errors that were told."""
        said = {}
        for acks, case in cases.items():
            plan = Publishing(
                topic=topics[acks], count=count, keys=1, first=first, seed=trial.seed, config=_plain(acks, retries=0)
            )
            case.publish(plan)
            sends = [one for one in history.of(case.history(), Deed.SEND, None) if (one.number or 0) >= first]
            errors_ = sorted({one.note for one in sends if one.note})
            said[acks] = sum(1 for _ in history.of(sends, Deed.SEND)), ", ".join(errors_) or "no error"
        return said

    whole = send(0)
    trial.kill(follower)
    trial.wait(lambda: all(_in_sync(trial, topic) == {leader} for topic in topics.values()), "the follower to be out of sync")
    trial.note(f"in sync: {leader} alone, below the minimum of 2")
    short = send(count)
    readable = {}
    for acks, case in cases.items():
        case.read_whole(topics[acks], by="meanwhile")
        readable[acks] = _read_from(case, "meanwhile", count)
    trial.restart(follower)
    kept = {}
    for acks, case in cases.items():
        trial.ground.wait_whole(topics[acks])
        case.read_whole(topics[acks])
        kept[acks] = _read_from(case, "reader", count)
    trial.table(
        f"{count} sends with one replica in sync of the two that are asked for",
        ["acks", "acknowledged", "errors", "readable at once", "in the log afterwards"],
        [[acks, *short[acks], readable[acks], kept[acks]] for acks in ACKS],
    )
    trial.plot(
        "Taken by the log below min.insync.replicas",
        "acks",
        "records",
        {"in the log": [(acks, float(counted)) for acks, counted in kept.items()]},
    )
    trial.control(
        "with both in sync every level is acknowledged",
        all(said[0] == count for said in whole.values()),
        ", ".join(f"acks={acks}: {said[0]} of {count}" for acks, said in whole.items()),
    )
    for acks in ("0", "1"):
        trial.told(
            f"acks={acks} is not refused",
            short[acks][0] == count and kept[acks] > 0,
            f"{short[acks][0]} of {count} acknowledged, {kept[acks]} in the log",
        )
    trial.told(
        "acks=all is refused",
        short["all"][0] == 0 and kept["all"] == 0,
        f"{short['all'][0]} of {count} acknowledged ({short['all'][1]}), {kept['all']} in the log",
    )
    trial.limit(
        "it also holds readers back: what acks=1 wrote below the minimum is read only when enough replicas are in sync again",
        readable["1"] == 0 and kept["1"] > 0,
        f"{readable['1']} of {kept['1']} readable at once, all of them later",
    )


def _read_from(case: Case, group: str, first: int) -> int:
    """How many records from this number on the group has read."""
    return sum((one.number or 0) >= first for one in history.of(case.history(), Deed.READ, group=group))


DEFAULTS = ("acks", "enable.idempotence", "max.in.flight.requests.per.connection", "linger.ms", "batch.size")
ALL = ("all", "-1")


@settles(
    "send-4",
    told="Without a setting, a producer sends with acks=1",
    ran="Ask each client for its defaults: Kafka's Java clients print their own, librdkafka and kafka-python are asked.",
    advice="Set acks=all yourself: the default depends on the client and on its release, and old ones are still in use.",
    rules=("PUBLISHER_ACKS", "PUBLISHER_NOT_IDEMPOTENT"),
    brokers=0,
    until="Kafka 3.0 (September 2021)",
)
def send_4(trial: Trial) -> None:
    old_release, old = defaults.of_java("kafka-2")
    now = {}
    for client, (release, told) in {
        "Java client": defaults.of_java("kafka"),
        "Spark's Java client": defaults.of_java("spark-kafka"),
        "librdkafka": defaults.of_librdkafka(DEFAULTS),
        "kafka-python": defaults.of_kafka_python(),
    }.items():
        now[f"{client} {release}"] = told
    everyone = {f"Java client {old_release}": old, **now}
    trial.table(
        "Defaults of producers, by their own word",
        ["client", *DEFAULTS],
        [[client, *(told.get(name) for name in DEFAULTS)] for client, told in everyone.items()],
    )
    trial.control(f"the Java client {old_release} had acks=1", old["acks"] == "1", f"acks={old['acks']}")
    for client, told in now.items():
        acks = told.get("acks")
        trial.told(f"{client} has acks=1", None if acks is None else acks == "1", f"acks={'all' if acks in ALL else acks}")


@settles(
    "send-5",
    told="Forgetting what was sent, waiting for each answer, and a callback differ in speed and in what the sender learns",
    ran="Send as fast as each way allows, in turns, and take the records a second. Then send records that the topic refuses as "
    "too large, and count which refusals the sender hears of, and how many records it has sent on by then.",
    advice="Send with a callback, look at its error, and flush before you rely on it: as fast as forgetting, and nothing missed.",
    rules=("PUBLISHER_ACKS", "PUBLISHER_RECORDS_TOO_LARGE"),
)
def send_5(trial: Trial) -> None:
    counts = {Way.FORGET: trial.scaled(10_000, 50_000), Way.WAIT: trial.scaled(300, 2_000)}
    counts[Way.CALLBACK] = counts[Way.FORGET]
    rates: dict[Way, list[float]] = {way: [] for way in Way}
    topic = trial.topic(1)
    for number in trial.rounds(3, 7):
        for way, count in counts.items():
            case = trial.case(f"{way}, round {number + 1}")
            began = time.monotonic()
            case.publish(Publishing(topic=topic, count=count, seed=trial.seed, way=way, config={"linger.ms": 0}))
            rates[way].append(count / (time.monotonic() - began))
    refused = trial.scaled(100, 500)
    small = trial.topic(1, max_message_bytes="2000")
    learnt: dict[Way, tuple[int, float | None]] = {}
    for way in Way:
        case = trial.case(f"{way}, refused")
        case.publish(Publishing(topic=small, count=refused, size=5_000, seed=trial.seed, way=way, config={"linger.ms": 0}))
        sends = list(history.of(case.history(), Deed.SEND, None))
        failed = [one for one in sends if one.outcome is Outcome.FAIL]
        starts = [one.at_ns - one.took_ns for one in sends]
        behind = [sum(failure.at_ns - failure.took_ns < start < failure.at_ns for start in starts) for failure in failed]
        learnt[way] = len(failed), statistics.mean(behind) if behind else None
    case = trial.case("what the log has")
    case.read_whole(small)
    arrived = sum(1 for _ in history.of(case.history(), Deed.READ))
    trial.plot("Records a second", "way", "records", {"median": [(way, statistics.median(some)) for way, some in rates.items()]})
    trial.table(
        f"{refused} records that the topic refuses",
        ["way", "records a second", "refusals heard of", "records sent on before hearing of one"],
        [[way, spread(rates[way], digits=0), learnt[way][0], learnt[way][1]] for way in Way],
    )
    trial.control("the topic refuses what is too large", arrived == 0, f"{arrived} of {3 * refused} arrived")
    slowest = min(*rates[Way.FORGET], *rates[Way.CALLBACK])
    trial.told(
        "waiting for each answer is slower",
        max(rates[Way.WAIT]) < slowest,
        f"{spread(rates[Way.WAIT], digits=0)} records a second, with a callback {spread(rates[Way.CALLBACK], digits=0)}",
    )
    trial.told("who forgets learns nothing", learnt[Way.FORGET][0] == 0, f"{learnt[Way.FORGET][0]} of {refused} refusals")
    trial.told(
        "who waits learns of each before the next",
        learnt[Way.WAIT] == (refused, 0),
        f"{learnt[Way.WAIT][0]} of {refused} refusals, {learnt[Way.WAIT][1]} records sent on by then",
    )
    trial.told(
        "a callback learns of each, later",
        learnt[Way.CALLBACK][0] == refused and (learnt[Way.CALLBACK][1] or 0) > 0,
        f"{learnt[Way.CALLBACK][0]} of {refused} refusals, {learnt[Way.CALLBACK][1] or 0:.0f} records sent on by then",
    )


@settles(
    "send-6",
    told="Records that were sent asynchronously are lost when the process ends without a flush",
    ran="A process gives records to the client and ends: with a flush before, and without. Read what arrived.",
    advice="Flush (Java: close) before the process ends, and look at what flush says is left.",
    rules=("PUBLISHER_ACKS",),
)
def send_6(trial: Trial) -> None:
    count = trial.scaled(2_000, 20_000)
    missing: dict[str, list[Found]] = {"with flush": [], "without flush": []}
    betrayed = 0
    for number in trial.rounds(1, 5):
        for name, found in missing.items():
            case, topic = trial.case(f"{name}, round {number + 1}"), trial.topic(1)
            case.run(Publishing(topic=topic, count=count, seed=f"{trial.seed}-{number}", flush=name == "with flush"))
            case.read_whole(topic)
            seen = case.history()
            found.append(_unread(seen))
            betrayed += checkers.lost(seen, by=Deed.READ).count
    sums = {name: (sum(one.count for one in found), sum(one.of for one in found)) for name, found in missing.items()}
    trial.plot(
        "Records given to the client that never arrived",
        "end of the process",
        "records",
        {"missing": [(name, float(counted)) for name, (counted, _) in sums.items()]},
    )
    trial.control(
        "with a flush nothing is missing", sums["with flush"][0] == 0, f"{sums['with flush'][0]} of {sums['with flush'][1]:,}"
    )
    trial.control("what was acknowledged is there", betrayed == 0, f"{betrayed} acknowledged records are missing")
    trial.told("without a flush some are missing", sums["without flush"][0] > 0, "{:,} of {:,}".format(*sums["without flush"]))


@settles(
    "send-11",
    told="With a partitioner for numeric keys, key k goes to partition k modulo the number of partitions",
    ran="Send 20 records of the keys 0 to 3 to 4 partitions: to the partition that the sender reckons, and by each client's "
    "default hash, with keys written as digits and as Java's four-byte integers. Look at where each key lies.",
    advice="Let every sender hash alike (murmur2, as Java does); reckon partitions yourself only when every sender does.",
    rules=("PUBLISHER_PARTITIONER", "PUBLISHER_HASHES_DIFFER", "RECORDS_IN_WRONG_PARTITION"),
)
def send_11(trial: Trial) -> None:
    keys, partitions, count = 4, 4, 20
    by_hash = {"Java's murmur2": "murmur2_random", "librdkafka's CRC32": "consistent_random"}
    places: dict[str, dict[str, list[int]]] = {}
    for name, partitioner in {"k modulo n": None, **by_hash}.items():
        for spelling in (Spelling.DIGITS, Spelling.INTEGER):
            case, topic = trial.case(f"{name}, {spelling}"), trial.topic(partitions)
            plan = Publishing(
                topic=topic,
                count=count,
                keys=keys,
                seed=trial.seed,
                spelling=spelling,
                by_number=None if partitioner else partitions,
                config={"partitioner": partitioner} if partitioner else {},
            )
            case.publish(plan)
            case.read_whole(topic, partitions)
            found: dict[str, set[int]] = {}
            for one in history.of(case.history(), Deed.READ):
                found.setdefault(one.key or "", set()).add(-1 if one.partition is None else one.partition)
            places[case.name] = {key: sorted(some) for key, some in sorted(found.items())}
    names = [f"k{number}" for number in range(keys)]
    trial.table(
        "The partition of each key",
        ["how, key written as", *(name.removeprefix("k") for name in names)],
        [[how, *(", ".join(map(str, some.get(name, []))) for name in names)] for how, some in places.items()],
    )
    right = {how: sum(some.get(f"k{number}") == [number % partitions] for number in range(keys)) for how, some in places.items()}
    reckoned = [counted for how, counted in right.items() if how.startswith("k modulo n")]
    hashed = {how: counted for how, counted in right.items() if not how.startswith("k modulo n")}
    complete = all(len(some) == keys and all(len(one) == 1 for one in some.values()) for some in places.values())
    trial.control("every key was sent, and lies in one partition", complete, f"{keys} keys in {len(places)} topics")
    trial.told("who reckons k modulo n finds each key there", min(reckoned) == keys, f"{min(reckoned)} of {keys} keys")
    trial.limit(
        "the clients' default hashes put keys elsewhere",
        max(hashed.values()) < keys,
        ", ".join(f"{how}: {counted} of {keys} there" for how, counted in hashed.items()),
    )


BATCH_BYTES = (1_000, 16_000, 256_000)
LINGER_MS = (0, 10, 100)
Cell = tuple[int, int]


@settles(
    "send-7",
    told="A larger batch.size and linger.ms raise throughput, and latency too",
    ran="For each batch.size and linger.ms, in turns: send as fast as it goes and take the records a second; send at a steady "
    "rate and take the time from send to acknowledgement. Medians over the rounds.",
    advice="Keep linger.ms at 5 to 10 and batch.size at 16 KB or more; beyond that latency grows and throughput hardly does.",
    rules=("PUBLISHER_LINGERS",),
)
def send_7(trial: Trial) -> None:
    topic = trial.topic(1)
    count, steady_per_s = trial.scaled(20_000, 50_000), 500
    least, modest, most = zip(BATCH_BYTES, LINGER_MS, strict=True)
    cells: list[Cell] = [(batch, linger) for batch in BATCH_BYTES for linger in LINGER_MS]
    rates: dict[Cell, list[float]] = {cell: [] for cell in cells}
    steady: dict[Cell, list[float]] = {cell: [] for cell in cells}
    late: dict[Cell, list[float]] = {cell: [] for cell in cells}
    pressed: dict[Cell, list[float]] = {cell: [] for cell in cells}
    # a broker that has just started is slow at first, which would count against the cells that come first
    trial.case("warm-up").publish(Publishing(topic=topic, count=count, seed=trial.seed, config=_plain(batch_size=least[0])))
    for number in trial.rounds(3, 7):
        for batch, linger in cells:
            config = _plain(batch_size=batch, linger_ms=linger)
            full = trial.case(f"full speed, {batch} bytes, {linger} ms, round {number + 1}")
            full.publish(Publishing(topic=topic, count=count, seed=trial.seed, warm=True, config=config))
            paced = trial.case(f"steady, {batch} bytes, {linger} ms, round {number + 1}")
            plan = Publishing(topic=topic, count=steady_per_s // 2, per_s=steady_per_s, seed=trial.seed, warm=True, config=config)
            paced.publish(plan)
            rate, times = _pace(full)
            rates[batch, linger].append(rate)
            pressed[batch, linger].append(statistics.median(times))
            _, times = _pace(paced)
            steady[batch, linger].append(statistics.median(times))
            late[batch, linger].append(statistics.quantiles(times, n=100)[-1])
    for title, y, found in (
        ("Records a second at full speed", "records/s", rates),
        ("Time to acknowledgement at a steady rate, median (ms)", "ms", steady),
        ("Time to acknowledgement at a steady rate, 99 of 100 (ms)", "ms", late),
    ):
        series = {
            f"{batch:,} bytes": [(f"{linger} ms", _middle(found, batch, linger)) for linger in LINGER_MS] for batch in BATCH_BYTES
        }
        trial.plot(title, "linger.ms", y, series, Kind.HEAT)
    for what, found, unit, digits in (("throughput", rates, "/s", 0), ("latency", steady, " ms", 1)):
        trial.told(
            f"both large raise {what}",
            _clearly_more(found[most], found[least]),
            f"{spread(found[least], unit, digits)} to {spread(found[most], unit, digits)}",
        )
    gain = statistics.median(rates[most]) / statistics.median(rates[modest])
    cost = statistics.median(steady[most]) / statistics.median(steady[modest])
    trial.limit(
        f"beyond {modest[0]:,} bytes and {modest[1]} ms latency grows and throughput hardly does",
        gain < cost / 2,
        f"throughput times {gain:.1f}, latency times {cost:.1f}",
    )
    small, large = pressed[least], pressed[BATCH_BYTES[-1], LINGER_MS[0]]
    trial.limit(
        "at full speed larger batches shorten the wait",
        _clearly_more(small, large) is True,
        f"median {spread(small, ' ms', 0)} with {BATCH_BYTES[0]:,} bytes, {spread(large, ' ms', 0)} with {BATCH_BYTES[-1]:,}",
    )


def _pace(case: Case) -> tuple[float, list[float]]:
    """Records a second, and ms from each send to its acknowledgement, without the first: that one waited for the connection."""
    sends = list(history.of(case.history(), Deed.SEND))[1:]
    took_s = (max(one.at_ns for one in sends) - min(one.at_ns - one.took_ns for one in sends)) / 1e9
    return len(sends) / took_s, [one.took_ns / 1e6 for one in sends]


def _middle(found: Mapping[Cell, list[float]], batch: int, linger: int) -> float:
    return round(statistics.median(found[batch, linger]), 1)


def _clearly_more(these: Sequence[float], those: Sequence[float]) -> bool | None:
    """Whether these are more than those in every round; None when rounds differ, so that it may be chance."""
    more = [this > that for this, that in zip(these, those, strict=True)]
    return None if len(set(more)) > 1 else more[0]


@settles(
    "send-8",
    told="An idempotent producer writes each record once: the broker knows producer id, partition and sequence",
    ran="Send through a proxy that swallows the broker's answers until the broker has written what it never confirmed, then cuts "
    "the connection, several times; with idempotence and without. Count repeated records, ask the broker what it remembers.",
    advice="Leave enable.idempotence on, and switch it on with librdkafka: retries then cost nothing.",
    rules=("PUBLISHER_NOT_IDEMPOTENT", "RECORDS_NOT_IDEMPOTENT"),
    harmless=False,
)
def send_8(trial: Trial) -> None:
    partitions, cuts = 2, trial.scaled(3, 15)
    configs = {"idempotent": {}, "not idempotent": _plain()}
    cases = {name: trial.case(name) for name in configs}
    topics = {name: trial.topic(partitions) for name in configs}
    proxy = trial.ground.proxies[1]
    swallowed, unconfirmed = proxy.counts.swallowed_bytes, dict.fromkeys(configs, 0)
    with contextlib.ExitStack() as running:
        for name, config in configs.items():
            plan = Publishing(topic=topics[name], count=FOREVER, seed=trial.seed, per_s=500, config=config)
            running.enter_context(cases[name].beside(plan, trial.ground.proxied))
        for _ in range(cuts):
            trial.wait_for_more(cases.values(), 50)
            proxy.behave(Mischief(swallows_answers=True))
            for name, case in cases.items():
                trial.wait(lambda: _written(trial, topics[name], partitions) > case.acknowledged, "unconfirmed records")  # noqa: B023
                unconfirmed[name] += _written(trial, topics[name], partitions) - case.acknowledged
            proxy.cut()
            proxy.behave()
        trial.wait_for_more(cases.values(), 50)
    trial.note(f"{cuts} cuts, {proxy.counts.swallowed_bytes - swallowed} bytes of answers swallowed")
    found, lost = {}, 0
    for name, case in cases.items():
        case.read_whole(topics[name], partitions)
        found[name] = checkers.repeated(case.history(), by=Deed.READ)
        lost += checkers.lost(case.history(), by=Deed.READ).count
    with inquiry.opened(trial.ground.cluster) as asked:
        remembered = {name: (asked.remembered(topic, range(partitions)) if asked else None) for name, topic in topics.items()}
    trial.plot(
        "Records that are in the log more than once",
        "producer",
        "records",
        {"repeated": [(name, float(one.count)) for name, one in found.items()]},
    )
    trial.table(
        "What the broker remembers of each producer",
        ["producer", "partition", "producer id", "epoch", "last sequence", "records in the log"],
        [
            [name, one.partition, one.producer, one.epoch, one.last_sequence, _records_in(cases[name], one.partition)]
            for name, some in remembered.items()
            for one in some or ()
        ],
    )
    trial.control(
        "the broker wrote what it did not confirm", min(unconfirmed.values()) > 0, f"{sum(unconfirmed.values())} in {cuts} cuts"
    )
    trial.control("nothing acknowledged is missing", lost == 0, f"{lost} missing")
    without, with_ = found["not idempotent"], found["idempotent"]
    trial.control("without idempotence some are repeated", bool(without), f"{without.count} of {without.of:,}")
    trial.told("an idempotent producer writes each once", not with_, f"{with_.count} of {with_.of:,} repeated")
    known = remembered["idempotent"]
    matches = known and all(one.last_sequence + 1 == _records_in(cases["idempotent"], one.partition) for one in known)
    trial.told(
        "it is known by id, and by a sequence in each partition",
        None if known is None or remembered["not idempotent"] is None
        else bool(matches) and len({one.producer for one in known}) == 1 and not remembered["not idempotent"],
        f"{len({one.producer for one in known or ()})} producer id, sequences count the records of each of {len(known or ())} "
        f"partitions; of the other producer nothing is remembered",
    )  # fmt: skip


def _written(trial: Trial, topic: str, partitions: int) -> int:
    """How many records the log of a topic holds by now."""
    found = offsets.spans(trial.ground.cluster, [(topic, number) for number in range(partitions)])
    return sum(span.offsets for span in found.values())


def _records_in(case: Case, partition: int) -> int:
    return sum(one.partition == partition for one in history.of(case.history(), Deed.READ))


@settles(
    "send-9",
    told="A restarted idempotent producer gets a new id, so what it sends again is there twice",
    ran="A process sends and is killed; a second one sends the same again: idempotent; with a transactional id, killed before "
    "its commit; and with a transactional id, killed after it. Count repeated records for readers of committed data and of all.",
    advice="Give a sender that may restart a transactional id, or every record an id of its own that the reader knows again.",
    rules=("PUBLISHER_NOT_IDEMPOTENT", "PIPELINE_WITHOUT_GUARD"),
)
def send_9(trial: Trial) -> None:
    count = trial.scaled(300, 2_000)
    plans: dict[str, tuple[dict[str, Any], int | None]] = {
        "idempotent": ({}, None),
        "transaction left open": ({"transactional.id": trial.name("transaction")}, 2 * count),
        "transaction committed": ({"transactional.id": trial.name("transaction")}, count),
    }
    repeated: dict[str, dict[str, Found]] = {}
    ids: dict[str, list[set[int] | None]] = {}
    lost = 0
    for name, (config, transaction) in plans.items():
        case, topic = trial.case(name), trial.topic(1)
        plan = Publishing(topic=topic, count=count, seed=trial.seed, per_s=1_000, config=config, transaction=transaction)
        # what the client still holds dies with it: time for the last records to leave, before the kill
        case.run(msgspec.structs.replace(plan, dies_after=count, warm=True))
        first = _producer_ids(trial, topic)
        case.publish(msgspec.structs.replace(plan, transaction=transaction and count))
        ids[name] = [first, _producer_ids(trial, topic)]
        repeated[name] = {}
        for level in ("read_committed", "read_uncommitted"):
            case.read_whole(topic, by=level, config={"isolation.level": level})
            repeated[name][level] = checkers.repeated(case.history(), level, by=Deed.READ)
        lost += checkers.lost(case.history(), "read_committed", by=Deed.READ).count
    trial.table(
        f"{count} records sent by a process that was killed, and again by the next",
        ["first process", "producer ids", "repeated for read_committed", "repeated for read_uncommitted"],
        [[name, _shown(ids[name][-1]), *(one.count for one in found.values())] for name, found in repeated.items()],
    )
    trial.plot(
        "Records that are there twice after a restart",
        "first process",
        "records",
        {level: [(name, float(found[level].count)) for name, found in repeated.items()] for level in repeated["idempotent"]},
    )
    plain, left_open, done = (found["read_committed"] for found in repeated.values())
    before, after = ids["idempotent"]
    trial.control("nothing is missing", lost == 0, f"{lost} missing")
    trial.told(
        "the second process has another producer id",
        None if not before or not after else len(after) == 2 and before < after,
        f"first {_shown(before)}, then {_shown(after)}",
    )
    trial.told("what it sends again is there twice", bool(plain), f"{plain.count} of {plain.of} repeated")
    all_of_it = repeated["transaction left open"]["read_uncommitted"]
    trial.control(
        "with a transactional id what was left open is taken back",
        not left_open and bool(all_of_it) and len(ids["transaction left open"][-1] or ()) == 1,
        f"{left_open.count} of {left_open.of} repeated for readers of committed data, {all_of_it.count} for others; "
        f"{done.count} when the first process had committed",
    )


def _producer_ids(trial: Trial, topic: str) -> set[int] | None:
    with inquiry.opened(trial.ground.cluster) as asked:
        found = asked.remembered(topic, [0]) if asked else None
    return None if found is None else {one.producer for one in found}


def _shown(ids: set[int] | None) -> str:
    return "unknown" if ids is None else ", ".join(map(str, sorted(ids)))


class Recipe(NamedTuple):
    """One combination of what is said to make exactly-once."""

    idempotent: bool
    acks: str
    replicas: int
    in_sync: int

    @property
    def name(self) -> str:
        how = "idempotent" if self.idempotent else f"acks={self.acks}"
        return f"{how}, replicas {self.replicas}, in-sync {self.in_sync}"

    @property
    def config(self) -> dict[str, Any]:
        return {} if self.idempotent else _plain(self.acks)


class Kept(NamedTuple):
    lost: Found
    repeated: Found
    repeated_later: Found


RECIPE = Recipe(idempotent=True, acks="all", replicas=2, in_sync=2)
WITHOUT = {
    "without idempotence records are repeated": RECIPE._replace(idempotent=False),
    "with acks=1 records are lost": RECIPE._replace(idempotent=False, acks="1"),
    "with one replica records are lost": RECIPE._replace(replicas=1, in_sync=1),
    "with one in-sync replica records are lost": RECIPE._replace(in_sync=1),
}


@settles(
    "send-10",
    told="Exactly-once is idempotence, acks=all, two replicas and two of them in sync",
    ran="A producer for every combination sends at the same time: answers of the broker are swallowed and the connection cut; "
    "the follower is stopped; the leader goes on alone, is killed, and its disk lost; both come back. Count lost and repeated "
    "records. Then each producer starts anew and sends its first records again.",
    advice="Take all four, with three replicas, and give records an id or the sender transactions: a restart repeats otherwise.",
    rules=("PUBLISHER_NOT_IDEMPOTENT", "PUBLISHER_ACKS", "TOPIC_SINGLE_REPLICA", "TOPIC_MIN_IN_SYNC_ONE"),
    brokers=3,
    harmless=False,
)
def send_10(trial: Trial) -> None:
    leader, follower, third = nodes = _nodes_from(trial.seed)
    senders = [(True, "all"), (False, "all"), (False, "1"), *([(False, "0")] if trial.tier is Tier.FULL else [])]
    copies = [(1, 1), (2, 1), (2, 2), (3, 2), *([(3, 1)] if trial.tier is Tier.FULL else [])]
    recipes = [Recipe(*sender, *copy) for sender in senders for copy in copies]
    cases = {one: trial.case(one.name) for one in recipes}
    topics = {one: trial.topic(on=nodes[: one.replicas], min_insync_replicas=str(one.in_sync)) for one in recipes}
    answered = [one for one in recipes if one.acks != "0"]
    proxy = trial.ground.proxies[leader]
    stops: list[threading.Event] = []
    with contextlib.ExitStack() as running:
        for one in recipes:
            plan = Publishing(topic=topics[one], count=FOREVER, seed=trial.seed, per_s=50, config=one.config, flush_timeout_s=10)
            stops.append(running.enter_context(cases[one].beside(plan, trial.ground.proxied))[1])
        for stop in stops:
            running.callback(stop.set)
        trial.wait_for_more(cases.values(), 30)
        # 1. what was written is not confirmed
        proxy.behave(Mischief(swallows_answers=True))
        trial.wait(
            lambda: all(_written(trial, topics[one], 1) > cases[one].acknowledged for one in answered), "unconfirmed records"
        )
        proxy.cut()
        proxy.behave()
        trial.wait_for_more(cases.values(), 20)
        # 2. the leader is alone in the in-sync set of two, goes on, and is lost with its disk
        trial.stop(follower)
        pairs = [one for one in recipes if one.replicas == 2]
        trial.wait(lambda: all(_in_sync(trial, topics[one]) == {leader} for one in pairs), "the follower to be out of sync")
        trial.freeze(third)
        alone = [one for one in recipes if one.acks == "1" or (one.replicas, one.in_sync) == (2, 1)]
        trial.wait_for_more([cases[one] for one in alone], 30)
        trial.kill(leader)
        trial.wipe(leader)
        trial.thaw(third)
        # the follower first: with the third it elects a controller, without which an empty disk may not come back
        trial.restart(follower)
        trial.restart(leader)
        forced = _lead_again(trial, topics.values())
        trial.wait_for_more([cases[one] for one in recipes if one.replicas > 1 and one.in_sync > 1], 20)
    found = trial.together({one.name: functools.partial(_send_again, trial, one, cases[one], topics[one]) for one in recipes})
    _show_recipes(trial, {one: found[one.name] for one in recipes}, forced)


def _send_again(trial: Trial, recipe: Recipe, case: Case, topic: str) -> Kept:
    """3. A new producer, which does not know how far the first one came."""
    case.read_whole(topic)
    again = Publishing(topic=topic, count=trial.scaled(50, 500), seed=trial.seed, config=recipe.config, flush_timeout_s=10)
    case.publish(again)
    case.read_whole(topic, by="later")
    seen = case.history()
    return Kept(
        checkers.lost(seen, "reader", by=Deed.READ),
        checkers.repeated(seen, "reader", by=Deed.READ),
        checkers.repeated(seen, "later", by=Deed.READ),
    )


def _lead_again(trial: Trial, topics: Iterable[str]) -> int:
    """Have every topic led again, by force where Kafka does not trust what is left; how many needed that."""
    known = layout.read(trial.ground.cluster).topics
    leaderless = [topic for topic in topics if known[topic].partitions[0].leader is None]
    with inquiry.opened(trial.ground.cluster) as asked:
        for topic in leaderless:
            if asked:
                asked.elect_unclean(topic, 0)
    trial.note(f"unclean elections forced: {len(leaderless)}")
    return len(leaderless)


def _show_recipes(trial: Trial, found: Mapping[Recipe, Kept], forced: int) -> None:
    trial.table(
        f"Each combination through the same faults ({forced} topics needed an unclean election)",
        ["producer", "acks", "replicas", "in-sync", "acknowledged", "lost", "repeated", "repeated after a restart"],
        [
            [
                "idempotent" if one.idempotent else "not idempotent",
                one.acks,
                one.replicas,
                one.in_sync,
                kept.lost.of,
                kept.lost.count,
                kept.repeated.count,
                kept.repeated_later.count,
            ]
            for one, kept in found.items()
        ],
    )
    trial.plot(
        "Lost and repeated records",
        "combination",
        "records",
        {
            "lost": [(one.name, float(kept.lost.count)) for one, kept in found.items()],
            "repeated": [(one.name, float(kept.repeated.count)) for one, kept in found.items()],
        },
    )
    for statement, one in WITHOUT.items():
        kept = found[one]
        counted = kept.repeated if "repeated" in statement else kept.lost
        trial.control(statement, bool(counted), f"{counted.count} of {counted.of:,}")
    kept = found[RECIPE]
    trial.told(
        "with all four each acknowledged record is there once, while the producer lives",
        not kept.lost and not kept.repeated,
        f"{kept.lost.count} lost, {kept.repeated.count} repeated of {kept.lost.of:,}",
    )
    broken = [one for one, kept in found.items() if kept.repeated_later.count > kept.repeated.count]
    trial.limit(
        "a producer that starts anew and sends again repeats what is there",
        kept.repeated_later.count > kept.repeated.count,
        f"{kept.repeated_later.count} repeated with all four, and some in {len(broken)} of the {len(found)} combinations",
    )
