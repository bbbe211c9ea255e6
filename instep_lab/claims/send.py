"""Claims about sending: what an acknowledgement guarantees, and what it costs.

Claims about writing a record once are in `once.py`.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence

from instep.kafka.admin import admin_extras
from instep.report.tables import PlotKind
from instep_lab import checkers, history
from instep_lab.checkers import Anomalies
from instep_lab.claim import experiment
from instep_lab.claims import senders
from instep_lab.clients import defaults
from instep_lab.clients.publishing import DeliveryMode, KeyEncoding, Publishing
from instep_lab.history import ClientOperation, OperationKind, OperationStatus
from instep_lab.trial import Scenario, Trial, spread

ACKS = ("0", "1", "all")


def _unread(operations: Sequence[ClientOperation], group: str = "reader") -> Anomalies:
    """Find records that were handed to the client, with any outcome, and are not in the log."""
    tried = {one.record for one in history.of(operations, OperationKind.SEND, None)}
    read = {one.record for one in history.of(operations, OperationKind.READ, group=group)}
    missing = sorted(f"{key}#{number}" for key, number in tried - read)
    return Anomalies("unread", len(missing), len(tried), tuple(missing[: checkers.EXAMPLES_MAX]))


@experiment(
    "send-1",
    statement=(
        "When the leader dies, acks=0 loses records, acks=1 loses those that no follower has "
        "yet, acks=all loses no records"
    ),
    method=(
        "Send with each acks level to partitions led by one broker. Freeze both followers for a "
        "moment, continue sending, kill the leader with -9, and resume the followers. Count the "
        "records that were reported as sent but are not in the log."
    ),
    advice=(
        "Use acks=all for everything that must arrive. acks=1 loses what the dead leader had not "
        "replicated."
    ),
    rules=("PUBLISHER_ACKS_NOT_ALL", "TOPIC_MIN_INSYNC_REPLICAS_ONE"),
    brokers=3,
    harmless=False,
)
def acks_under_leader_failure(trial: Trial) -> None:
    found: dict[str, list[Anomalies]] = {acks: [] for acks in ACKS}
    unreplicated: list[int] = []
    for number in trial.rounds(1, 5):
        leader, *followers = senders.nodes_from(trial.seed + number)
        scenarios = {acks: trial.scenario(f"acks={acks}, round {number + 1}") for acks in ACKS}
        topics = {acks: trial.topic(brokers=(leader, *followers)) for acks in ACKS}
        with contextlib.ExitStack() as running:
            for acks, scenario in scenarios.items():
                plan = Publishing(
                    topic=topics[acks],
                    count=senders.FOREVER,
                    seed=trial.seed,
                    per_s=500,
                    config=senders.plain(acks),
                )
                running.enter_context(scenario.background(plan))
            trial.wait_for_more(scenarios.values(), 200)
            # With frozen followers, what acks=1 acknowledges is on the leader alone. So the kill
            # loses records for certain, and not only if it comes at the right moment.
            for node in followers:
                trial.freeze(node)
            before = scenarios["1"].acknowledged
            trial.wait_for_more((scenarios["0"], scenarios["1"]), 200)
            unreplicated.append(scenarios["1"].acknowledged - before)
            trial.kill(leader)
            for node in followers:
                trial.thaw(node)
            trial.wait(
                lambda topics=topics, followers=followers: (  # type: ignore[misc]
                    senders.leader_of(trial, topics["all"]) in followers
                ),
                "a follower to lead",
            )
            trial.wait_for_more(scenarios.values(), 200)
        for acks, scenario in scenarios.items():
            scenario.read_topic(topics[acks])
            found[acks].append(checkers.lost(scenario.history(), by=OperationKind.READ))
        trial.cluster.recover()
    lost = {acks: sum(one.count for one in rounds) for acks, rounds in found.items()}
    of = {acks: sum(one.of for one in rounds) for acks, rounds in found.items()}
    trial.plot(
        "Records lost when the leader dies",
        "acks",
        "records",
        {"reported as sent but lost": [(acks, float(count)) for acks, count in lost.items()]},
    )
    trial.table(
        "Records reported as sent that are not in the log",
        ["acks", "reported", "lost", "lost per kill"],
        [
            [acks, of[acks], lost[acks], ", ".join(str(one.count) for one in rounds)]
            for acks, rounds in found.items()
        ],
    )
    trial.control(
        "some acknowledged records were only on the leader",
        min(unreplicated) > 0,
        f"{sum(unreplicated):,} with acks=1",
    )
    for acks in ("0", "1"):
        trial.statement(
            f"acks={acks} loses records", lost[acks] > 0, f"{lost[acks]:,} of {of[acks]:,}"
        )
    trial.statement(
        "acks=all loses no records", lost["all"] == 0, f"{lost['all']:,} of {of['all']:,}"
    )


@experiment(
    "send-2",
    statement="acks=all protects nothing if the partition has only one replica",
    method=(
        "Send with acks=all to a topic with one replica and to one with three, both led by the "
        "same broker. Kill that broker, delete its data as if its disk was lost, start it again, "
        "and read both topics. Force an unclean election where Kafka does not trust the "
        "remaining data."
    ),
    advice="Give every topic three replicas: acks=all waits only for the replicas that exist.",
    rules=("TOPIC_SINGLE_REPLICA",),
    brokers=3,
    harmless=False,
)
def acks_all_with_one_replica(trial: Trial) -> None:
    count = trial.scaled(1_000, 10_000)
    nodes = senders.nodes_from(trial.seed)
    lost: dict[str, Anomalies] = {}
    scenarios = {name: trial.scenario(name) for name in ("1 replica", "3 replicas")}
    topics = {
        "1 replica": trial.topic(brokers=nodes[:1], min_insync_replicas="1"),
        "3 replicas": trial.topic(brokers=nodes, min_insync_replicas="2"),
    }
    for name, scenario in scenarios.items():
        scenario.publish(Publishing(topic=topics[name], count=count, seed=trial.seed))
        scenario.read_topic(topics[name], by="before")
        missing = checkers.lost(scenario.history(), "before", by=OperationKind.READ)
        trial.control(
            f"{name}: all records are there before the fault",
            missing.of == count and not missing,
            f"{missing.count} of {missing.of:,} missing",
        )
    trial.kill(nodes[0])
    trial.wipe(nodes[0])
    # a broker with an empty disk may return only when the others have a controller
    trial.wait(
        lambda: senders.leader_of(trial, topics["3 replicas"]) in nodes[1:], "a follower to lead"
    )
    trial.restart(nodes[0])
    trial.cluster.wait_in_sync(topics["3 replicas"])
    if not (has_leader := senders.leader_of(trial, topics["1 replica"]) is not None):
        # Kafka knows which replicas were complete, and does not elect an empty one unless forced to
        with admin_extras.connect(trial.cluster.kafka) as extras:
            forced = extras is not None and extras.elect_unclean(topics["1 replica"], 0)
        trial.note(f"no leader: an unclean election was {'forced' if forced else 'refused'}")
    for name, scenario in scenarios.items():
        trial.cluster.wait_in_sync(topics[name])
        scenario.read_topic(topics[name], by="after")
        lost[name] = checkers.lost(scenario.history(), "after", by=OperationKind.READ)
    trial.plot(
        "Records acknowledged with acks=all and lost with the disk of one broker",
        "replicas",
        "records",
        {"lost": [(name, float(one.count)) for name, one in lost.items()]},
    )
    one, three = lost["1 replica"], lost["3 replicas"]
    trial.control(
        "with three replicas, no record is lost", not three, f"{three.count} of {three.of:,}"
    )
    how = ""
    if not has_leader:
        how = "; the partition had no leader until an unclean election was forced"
    trial.statement(
        "with one replica, acknowledged records are lost",
        bool(one),
        f"{one.count:,} of {one.of:,}{how}",
    )


@experiment(
    "send-3",
    statement="min.insync.replicas only applies to producers with acks=all",
    method=(
        "Create topics on two brokers with min.insync.replicas=2. Send with each acks level "
        "while both brokers are alive, and after the follower was killed and is out of sync. "
        "Check what is acknowledged, and what is in the log once the follower is back."
    ),
    advice=(
        "min.insync.replicas=2 requires acks=all on every producer: the others bypass it and "
        "write to a single replica."
    ),
    rules=("PUBLISHER_ACKS_NOT_ALL", "TOPIC_MIN_INSYNC_REPLICAS_ONE"),
    brokers=3,
    harmless=False,
)
def min_insync_replicas_by_acks(trial: Trial) -> None:
    count = trial.scaled(200, 1_000)
    leader, follower, _ = senders.nodes_from(trial.seed)
    topics = {
        acks: trial.topic(brokers=(leader, follower), min_insync_replicas="2") for acks in ACKS
    }
    scenarios = {acks: trial.scenario(f"acks={acks}") for acks in ACKS}

    def send(first: int) -> dict[str, tuple[int, str]]:
        """Return acknowledged sends of each level from this number on, and reported errors."""
        results = {}
        for acks, scenario in scenarios.items():
            plan = Publishing(
                topic=topics[acks],
                count=count,
                keys=1,  # the numbers of one key count all records
                first=first,
                seed=trial.seed,
                # A retry would succeed once the follower is back.
                config=senders.plain(acks, retries=0),
            )
            scenario.publish(plan)
            sends = [
                one
                for one in history.of(scenario.history(), OperationKind.SEND, None)
                if (one.number or 0) >= first
            ]
            errors_ = sorted({one.note for one in sends if one.note})
            results[acks] = (
                sum(1 for _ in history.of(sends, OperationKind.SEND)),
                ", ".join(errors_) or "no error",
            )
        return results

    both_in_sync = send(0)
    trial.kill(follower)
    trial.wait(
        lambda: all(senders.in_sync(trial, topic) == {leader} for topic in topics.values()),
        "the follower to be out of sync",
    )
    trial.note(f"in sync: {leader} alone, below the minimum of 2")
    one_in_sync = send(count)
    readable = {}
    for acks, scenario in scenarios.items():
        scenario.read_topic(topics[acks], by="meanwhile")
        readable[acks] = _read_from(scenario, "meanwhile", count)
    trial.restart(follower)
    stored = {}
    for acks, scenario in scenarios.items():
        trial.cluster.wait_in_sync(topics[acks])
        scenario.read_topic(topics[acks])
        stored[acks] = _read_from(scenario, "reader", count)
    trial.table(
        f"{count} sends with one of two required replicas in sync",
        ["acks", "acknowledged", "errors", "readable immediately", "in the log later"],
        [[acks, *one_in_sync[acks], readable[acks], stored[acks]] for acks in ACKS],
    )
    trial.plot(
        "Records accepted by the log below min.insync.replicas",
        "acks",
        "records",
        {"in the log": [(acks, float(counted)) for acks, counted in stored.items()]},
    )
    trial.control(
        "with both replicas in sync, every acks level is acknowledged",
        all(acknowledged == count for acknowledged, _ in both_in_sync.values()),
        ", ".join(f"acks={acks}: {sent} of {count}" for acks, (sent, _) in both_in_sync.items()),
    )
    for acks in ("0", "1"):
        trial.statement(
            f"acks={acks} is not rejected",
            one_in_sync[acks][0] == count and stored[acks] == count,
            f"{one_in_sync[acks][0]} of {count} acknowledged, {stored[acks]} in the log",
        )
    trial.statement(
        "acks=all is rejected",
        one_in_sync["all"][0] == 0 and stored["all"] == 0,
        f"{one_in_sync['all'][0]} of {count} acknowledged ({one_in_sync['all'][1]}),"
        f" {stored['all']} in the log",
    )
    trial.limit(
        "readers are affected too: records written with acks=1 below the minimum become readable"
        " only when enough replicas are in sync again",
        readable["1"] == 0 and stored["1"] > 0,
        f"{readable['1']} of {stored['1']} readable immediately, all of them later",
    )


def _read_from(scenario: Scenario, group: str, first: int) -> int:
    """Return how many records from this number on the group has read."""
    return sum(
        (one.number or 0) >= first
        for one in history.of(scenario.history(), OperationKind.READ, group=group)
    )


DEFAULTS = (
    "acks",
    "enable.idempotence",
    "max.in.flight.requests.per.connection",
    "linger.ms",
    "batch.size",
)
ALL = ("all", "-1")


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
    rules=("PUBLISHER_ACKS_NOT_ALL", "PUBLISHER_NOT_IDEMPOTENT"),
    brokers=0,
    until="Kafka 3.0 (September 2021)",
)
def default_acks(trial: Trial) -> None:
    old_release, old = defaults.of_java("kafka-2")
    now = {}
    for client, (release, settings) in {
        "Java client": defaults.of_java("kafka"),
        "Spark's Java client": defaults.of_java("spark-kafka"),
        "librdkafka": defaults.of_librdkafka(DEFAULTS),
        "kafka-python": defaults.of_kafka_python(),
    }.items():
        now[f"{client} {release}"] = settings
    everyone = {f"Java client {old_release}": old, **now}
    trial.table(
        "Defaults that the producers report",
        ["client", *DEFAULTS],
        [
            [client, *(settings.get(name) for name in DEFAULTS)]
            for client, settings in everyone.items()
        ],
    )
    trial.control(
        f"the Java client {old_release} had acks=1", old["acks"] == "1", f"acks={old['acks']}"
    )
    for client, settings in now.items():
        acks = settings.get("acks")
        is_one: bool | None = None
        if acks is not None:
            is_one = acks == "1"
        if acks in ALL:
            acks = "all"
        trial.statement(f"{client} has acks=1", is_one, f"acks={acks}")


@experiment(
    "send-5",
    statement=(
        "Fire-and-forget, waiting for each response, and a callback differ in speed and in what "
        "the sender learns"
    ),
    method=(
        "Send as fast as each mode allows, in turns, and measure the records per second. Then "
        "send records that the topic rejects as too large, and count which rejections the sender "
        "learns about, and how many more records it has sent by then."
    ),
    advice=(
        "Send with a callback, check its error, and flush before you rely on it: as fast as "
        "fire-and-forget, and no error is missed."
    ),
    rules=("PUBLISHER_ACKS_NOT_ALL", "PUBLISHER_RECORD_LIMIT_ABOVE_TOPIC"),
)
def delivery_modes(trial: Trial) -> None:
    counts = {
        DeliveryMode.FORGET: trial.scaled(10_000, 50_000),
        DeliveryMode.WAIT: trial.scaled(300, 2_000),  # each record takes a round trip
    }
    counts[DeliveryMode.CALLBACK] = counts[DeliveryMode.FORGET]
    rates: dict[DeliveryMode, list[float]] = {mode: [] for mode in DeliveryMode}
    topic = trial.topic(1)
    for number in trial.rounds(3, 7):
        for mode, count in counts.items():
            scenario = trial.scenario(f"{mode}, round {number + 1}")
            began = time.monotonic()
            scenario.publish(
                Publishing(
                    topic=topic, count=count, seed=trial.seed, mode=mode, config={"linger.ms": 0}
                )
            )
            rates[mode].append(count / (time.monotonic() - began))
    refused = trial.scaled(100, 500)
    small = trial.topic(1, max_message_bytes="2000")
    reported: dict[DeliveryMode, tuple[int, float | None]] = {}
    for mode in DeliveryMode:
        scenario = trial.scenario(f"{mode}, refused")
        scenario.publish(
            Publishing(
                topic=small,
                count=refused,
                size=5_000,
                seed=trial.seed,
                mode=mode,
                config={"linger.ms": 0},
            )
        )
        sends = list(history.of(scenario.history(), OperationKind.SEND, None))
        failed = [one for one in sends if one.outcome is OperationStatus.FAIL]
        starts = [one.at_ns - one.took_ns for one in sends]
        behind = [
            sum(failure.at_ns - failure.took_ns < start < failure.at_ns for start in starts)
            for failure in failed
        ]
        reported[mode] = len(failed), statistics.mean(behind) if behind else None
    scenario = trial.scenario("what the log has")
    scenario.read_topic(small)
    arrived = sum(1 for _ in history.of(scenario.history(), OperationKind.READ))
    trial.plot(
        "Records per second",
        "way",
        "records",
        {"median": [(mode, statistics.median(values)) for mode, values in rates.items()]},
    )
    trial.table(
        f"{refused} records that the topic rejects",
        [
            "way",
            "records per second",
            "rejections reported",
            "records sent before a rejection was reported",
        ],
        [
            [mode, spread(rates[mode], digits=0), reported[mode][0], reported[mode][1]]
            for mode in DeliveryMode
        ],
    )
    trial.control(
        "the topic rejects records that are too large",
        arrived == 0,
        f"{arrived} of {3 * refused} arrived",
    )
    slowest = min(*rates[DeliveryMode.FORGET], *rates[DeliveryMode.CALLBACK])
    trial.statement(
        "waiting for each response is slower",
        max(rates[DeliveryMode.WAIT]) < slowest,
        f"{spread(rates[DeliveryMode.WAIT], digits=0)} records per second,"
        f" with a callback {spread(rates[DeliveryMode.CALLBACK], digits=0)}",
    )
    trial.statement(
        "fire-and-forget learns nothing",
        reported[DeliveryMode.FORGET][0] == 0,
        f"{reported[DeliveryMode.FORGET][0]} of {refused} rejections",
    )
    trial.statement(
        "waiting reports each rejection before the next send",
        reported[DeliveryMode.WAIT] == (refused, 0),
        f"{reported[DeliveryMode.WAIT][0]} of {refused} rejections,"
        f" {reported[DeliveryMode.WAIT][1]} more records sent by then",
    )
    trial.statement(
        "a callback reports each rejection, later",
        reported[DeliveryMode.CALLBACK][0] == refused
        and (reported[DeliveryMode.CALLBACK][1] or 0) > 0,
        f"{reported[DeliveryMode.CALLBACK][0]} of {refused} rejections,"
        f" {reported[DeliveryMode.CALLBACK][1] or 0:.0f} more records sent by then",
    )


@experiment(
    "send-6",
    statement="Records that were sent asynchronously are lost if the process exits without a flush",
    method=(
        "A process hands records to the client and exits, with and without a flush. Read what "
        "arrived."
    ),
    advice=(
        "Flush (in Java: close) before the process exits, and check how many records flush "
        "reports as undelivered."
    ),
    rules=("PUBLISHER_ACKS_NOT_ALL",),
)
def exit_without_flush(trial: Trial) -> None:
    count = trial.scaled(2_000, 20_000)
    missing: dict[str, list[Anomalies]] = {"with flush": [], "without flush": []}
    lost_acknowledged = 0
    for number in trial.rounds(1, 5):
        for name, found in missing.items():
            scenario, topic = trial.scenario(f"{name}, round {number + 1}"), trial.topic(1)
            scenario.run(
                Publishing(
                    topic=topic,
                    count=count,
                    seed=f"{trial.seed}-{number}",
                    flush=name == "with flush",
                    # The client holds records for a second, so that the process ends before
                    # they are sent, however slowly it ends.
                    config={"linger.ms": 1000},
                )
            )
            scenario.read_topic(topic)
            operations = scenario.history()
            found.append(_unread(operations))
            lost_acknowledged += checkers.lost(operations, by=OperationKind.READ).count
    sums = {
        name: (sum(one.count for one in found), sum(one.of for one in found))
        for name, found in missing.items()
    }
    trial.plot(
        "Records handed to the client that never arrived",
        "end of the process",
        "records",
        {"missing": [(name, float(counted)) for name, (counted, _) in sums.items()]},
    )
    trial.control(
        "with a flush, no record is missing",
        sums["with flush"][0] == 0,
        f"{sums['with flush'][0]} of {sums['with flush'][1]:,}",
    )
    trial.control(
        "all acknowledged records are there",
        lost_acknowledged == 0,
        f"{lost_acknowledged} acknowledged records are missing",
    )
    trial.statement(
        "without a flush, some records are missing",
        sums["without flush"][0] > 0,
        "{:,} of {:,}".format(*sums["without flush"]),
    )


BATCH_BYTES = (1_000, 16_000, 256_000)
LINGER_MS = (0, 10, 100)
HARDLY, CLEARLY = 1.2, 2.0  # factors that count as hardly more and as clearly more
Cell = tuple[int, int]


@experiment(
    "send-7",
    statement="A larger batch.size and linger.ms increase throughput, and latency as well",
    method=(
        "For each batch.size and linger.ms, in turns: send as fast as possible and measure the "
        "records per second; send at a steady rate and measure the time from send to "
        "acknowledgement. Medians over the rounds."
    ),
    advice=(
        "Keep linger.ms at 5 to 10 and batch.size at 16 KB or more. Beyond that, latency grows "
        "but throughput hardly does."
    ),
    rules=("PUBLISHER_LINGER_LONG",),
)
def batching(trial: Trial) -> None:
    topic = trial.topic(1)
    count, steady_per_s = trial.scaled(20_000, 50_000), 500
    least, modest, most = zip(BATCH_BYTES, LINGER_MS, strict=True)
    cells: list[Cell] = [(batch, linger) for batch in BATCH_BYTES for linger in LINGER_MS]
    rates: dict[Cell, list[float]] = {cell: [] for cell in cells}
    steady: dict[Cell, list[float]] = {cell: [] for cell in cells}
    late: dict[Cell, list[float]] = {cell: [] for cell in cells}
    # a broker that has just started is slow at first, which would distort the first cells
    trial.scenario("warm-up").publish(
        Publishing(
            topic=topic, count=count, seed=trial.seed, config=senders.plain(batch_size=least[0])
        )
    )
    for number in trial.rounds(3, 7):
        for batch, linger in cells:
            config = senders.plain(batch_size=batch, linger_ms=linger)
            full = trial.scenario(f"full speed, {batch} bytes, {linger} ms, round {number + 1}")
            full.publish(
                Publishing(topic=topic, count=count, seed=trial.seed, warm=True, config=config)
            )
            paced = trial.scenario(f"steady, {batch} bytes, {linger} ms, round {number + 1}")
            plan = Publishing(
                topic=topic,
                count=steady_per_s // 2,
                per_s=steady_per_s,
                seed=trial.seed,
                warm=True,
                config=config,
            )
            paced.publish(plan)
            rates[batch, linger].append(_pace(full)[0])
            _, times = _pace(paced)
            steady[batch, linger].append(statistics.median(times))
            late[batch, linger].append(statistics.quantiles(times, n=100)[-1])
    for title, y, found in (
        ("Records per second at full speed", "records/s", rates),
        ("Time to acknowledgement at a steady rate, median (ms)", "ms", steady),
        ("Time to acknowledgement at a steady rate, 99th percentile (ms)", "ms", late),
    ):
        series = {
            f"{batch:,} bytes": [
                (f"{linger} ms", _middle(found, batch, linger)) for linger in LINGER_MS
            ]
            for batch in BATCH_BYTES
        }
        trial.plot(title, "linger.ms", y, series, PlotKind.HEAT)
    for what, found, unit, digits in (
        ("throughput", rates, "/s", 0),
        ("latency", steady, " ms", 1),
    ):
        trial.statement(
            f"large values of both increase {what}",
            _clearly_more(found[most], found[least]),
            f"{spread(found[least], unit, digits)} to {spread(found[most], unit, digits)}",
        )
    gain = statistics.median(rates[most]) / statistics.median(rates[modest])
    cost = statistics.median(steady[most]) / statistics.median(steady[modest])
    trial.limit(
        f"beyond {modest[0]:,} bytes and {modest[1]} ms, latency grows but throughput hardly does",
        gain < HARDLY and cost > CLEARLY,
        f"{gain:.1f} times the throughput, {cost:.1f} times the latency",
    )


def _pace(scenario: Scenario) -> tuple[float, list[float]]:
    """Return the records per second and the ms from each send to its acknowledgement.

    The first record is ignored: it waited for the connection.
    """
    sends = list(history.of(scenario.history(), OperationKind.SEND))[1:]
    took_s = (max(one.at_ns for one in sends) - min(one.at_ns - one.took_ns for one in sends)) / 1e9
    return len(sends) / took_s, [one.took_ns / 1e6 for one in sends]


def _middle(found: Mapping[Cell, list[float]], batch: int, linger: int) -> float:
    return round(statistics.median(found[batch, linger]), 1)


def _clearly_more(these: Sequence[float], those: Sequence[float]) -> bool | None:
    """Return whether these values are larger than those in every round.

    None means that the rounds differ, so that the difference may be chance.
    """
    more = [this > that for this, that in zip(these, those, strict=True)]
    if len(set(more)) > 1:
        return None
    return more[0]


@experiment(
    "send-11",
    statement=(
        "With a partitioner for numeric keys, key k goes to partition k modulo the number of "
        "partitions"
    ),
    method=(
        "Send 20 records with the keys 0 to 3 to 4 partitions: to the partition that the sender "
        "computes, and with each client's default hash, with keys encoded as digits and as "
        "Java's four-byte integers. Check the partition of each key."
    ),
    advice=(
        "Let every producer use the same hash (murmur2, as Java does). Compute partitions "
        "yourself only if every producer does."
    ),
    rules=(
        "PUBLISHER_PARTITIONER_NOT_MURMUR2",
        "PUBLISHER_PARTITIONERS_DIFFER",
        "RECORDS_IN_WRONG_PARTITION",
    ),
)
def partition_of_numeric_key(trial: Trial) -> None:
    keys, partitions, count = 4, 4, 20
    by_hash = {"Java's murmur2": "murmur2_random", "librdkafka's CRC32": "consistent_random"}
    places: dict[str, dict[str, list[int]]] = {}
    for name, partitioner in {"k modulo n": None, **by_hash}.items():
        for encoding in (KeyEncoding.DIGITS, KeyEncoding.INTEGER):
            scenario, topic = trial.scenario(f"{name}, {encoding}"), trial.topic(partitions)
            plan = Publishing(
                topic=topic,
                count=count,
                keys=keys,
                seed=trial.seed,
                encoding=encoding,
                by_number=None if partitioner else partitions,
                config={"partitioner": partitioner} if partitioner else {},
            )
            scenario.publish(plan)
            scenario.read_topic(topic, partitions)
            found: dict[str, set[int]] = {}
            for one in history.of(scenario.history(), OperationKind.READ):
                found.setdefault(one.key or "", set()).add(
                    -1 if one.partition is None else one.partition
                )
            places[scenario.name] = {key: sorted(located) for key, located in sorted(found.items())}
    names = [f"k{number}" for number in range(keys)]
    trial.table(
        "Partition of each key",
        ["method, key encoding", *(name.removeprefix("k") for name in names)],
        [
            [how, *(", ".join(map(str, located.get(name, []))) for name in names)]
            for how, located in places.items()
        ],
    )
    right = {
        how: sum(located.get(f"k{number}") == [number % partitions] for number in range(keys))
        for how, located in places.items()
    }
    computed = [counted for how, counted in right.items() if how.startswith("k modulo n")]
    hashed = {how: counted for how, counted in right.items() if not how.startswith("k modulo n")}
    complete = all(
        len(located) == keys and all(len(one) == 1 for one in located.values())
        for located in places.values()
    )
    trial.control(
        "every key was sent and is in one partition",
        complete,
        f"{keys} keys in {len(places)} topics",
    )
    trial.statement(
        "with k modulo n computed by the sender, each key is there",
        min(computed) == keys,
        f"{min(computed)} of {keys} keys",
    )
    trial.limit(
        "the default hashes of the clients put keys elsewhere",
        max(hashed.values()) < keys,
        ", ".join(f"{how}: {counted} of {keys} there" for how, counted in hashed.items()),
    )
