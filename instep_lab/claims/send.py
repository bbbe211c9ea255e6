"""Claims about sending: what an acknowledgement guarantees, and what it costs.

Claims about the producer itself are in `producer.py`, those about writing a record once in
`once.py`.
"""

from __future__ import annotations

import functools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from instep_lab import bounds, checkers, history
from instep_lab.checkers import Anomalies
from instep_lab.claim import experiment
from instep_lab.claims import senders
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import DeliveryMode, Measured, Measuring, Publishing, Variant
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.trial import Scenario, Trial, spread
from instep_lab.verdict import Dependence

ACKS = ("0", "1", "all")
ALONE = "all, min.insync.replicas=1"
ALONE_MIN = 100  # records that the leader acknowledges alone
FAR = 2.0  # a factor by which one cost is much less than another


def _unread(operations: Sequence[ClientOperation], group: str = "reader") -> Anomalies:
    """Find records that were handed to the client, with any outcome, and are not in the log."""
    tried = {one.record for one in history.of(operations, OperationKind.SEND, None)}
    read = {one.record for one in history.of(operations, OperationKind.READ, group=group)}
    missing = sorted(f"{key}#{number}" for key, number in tried - read)
    return Anomalies("unread", len(missing), len(tried), tuple(missing[: checkers.EXAMPLES_MAX]))


def _lost(found: Sequence[Anomalies]) -> str:
    """Return how many records were lost, and in how many kills."""
    kills = bounds.describe(sum(map(bool, found)), len(found), "kill")
    return f"{sum(one.count for one in found):,} of {sum(one.of for one in found):,} ({kills})"


@experiment(
    "send-1",
    statement=(
        "When the leader dies, acks=0 loses records, acks=1 loses those that no follower has "
        "yet, acks=all loses no records"
    ),
    method=(
        "Send with each acks level to partitions led by one broker. Stop one follower and freeze "
        "the other, continue sending, kill the leader with -9, and let the followers return. Count "
        "the records that were reported as sent but are not in the log. At the same time, send "
        "with acks=all to a partition with min.insync.replicas=1 whose follower is the stopped "
        "one, and make it the leader after the kill."
    ),
    advice=(
        "Use acks=all with three replicas and min.insync.replicas=2 for everything that must "
        "arrive: the default of 1 lets the leader acknowledge alone. acks=1 loses what the dead "
        "leader had not replicated."
    ),
    why=(
        "With acks=1 the leader acknowledges before a follower has the record; with acks=0 the "
        "client does not even wait for the leader. With acks=all the leader waits for the replicas "
        "that are in sync at that moment, not for all replicas. If the set has shrunk to the "
        "leader, only min.insync.replicas decides whether it may still acknowledge."
    ),
    scope=(
        "All releases since 0.8 and all clients; measured with librdkafka. Kafka's default of "
        "min.insync.replicas is 1; the lab's brokers have 2. With 1, records are lost only if "
        "a replica outside the in-sync set becomes the leader (an unclean election, off by "
        "default since 0.11) or the leader's disk is lost. The machines stay on: a power cut "
        "is another matter."
    ),
    sources=("documentation: acks", "documentation: min.insync.replicas", "KIP-106", "KIP-966"),
    rules=("PUBLISHER_ACKS_NOT_ALL", "TOPIC_MIN_INSYNC_REPLICAS_ONE"),
    brokers=3,
    harmless=False,
)
def acks_under_leader_failure(trial: Trial) -> None:
    found: dict[str, list[Anomalies]] = defaultdict(list)
    unreplicated: list[int] = []
    misplaced = records = 0
    for number in trial.rounds(1, 30):
        leader, *followers = senders.nodes_from(trial.seed + number)
        scenarios = {
            one: trial.scenario(f"acks={one}, round {number + 1}") for one in (*ACKS, ALONE)
        }
        topics = {
            acks: trial.topic(brokers=(leader, *followers), min_insync_replicas="2")
            for acks in ACKS
        }
        topics[ALONE] = trial.topic(brokers=(leader, followers[0]), min_insync_replicas="1")
        only_leader, before = _kill_leader(trial, leader, followers, scenarios, topics)
        unreplicated.append(only_leader)
        trial.read_topics({scenarios[acks]: topic for acks, topic in topics.items()})
        for acks, scenario in scenarios.items():
            if acks == "all":
                # slow answers may make it repeat records, but not lose any
                misplaced += senders.misplaced(scenario, before, repeats_allowed=True)
                records += sum(before.values())
            lost = checkers.lost(scenario.history(), by=OperationKind.READ)
            found[acks].append(lost)
            trial.example(scenario, lost)
        trial.cluster.recover()
    trial.plot(
        "Records lost when the leader dies",
        "acks",
        "records",
        {
            "reported as sent but lost": [
                (acks, float(sum(one.count for one in rounds))) for acks, rounds in found.items()
            ]
        },
    )
    trial.table(
        "Records reported as sent that are not in the log",
        ["acks", "kills", "reported", "lost", "lost per kill"],
        [
            [
                acks,
                len(rounds),
                sum(one.of for one in rounds),
                sum(one.count for one in rounds),
                ", ".join(str(one.count) for one in rounds),
            ]
            for acks, rounds in found.items()
        ],
    )
    trial.control(
        "some acknowledged records were only on the leader",
        # Without the fault, the followers are a few records behind at most.
        min(unreplicated) > ALONE_MIN // 2,
        f"{sum(unreplicated):,} with acks=1",
    )
    senders.control_senders(trial, misplaced, records)
    for acks in ("0", "1"):
        trial.statement(f"acks={acks} loses records", any(found[acks]), _lost(found[acks]))
    trial.statement(
        "acks=all with min.insync.replicas=2 loses no records",
        not any(found["all"]),
        _lost(found["all"]),
    )
    trial.limit(
        "acks=all with min.insync.replicas=1 loses what the leader acknowledged alone,"
        " if another replica takes over",
        any(found[ALONE]),
        f"{_lost(found[ALONE])} after an unclean election",
    )


def _kill_leader(
    trial: Trial,
    leader: int,
    followers: Sequence[int],
    scenarios: Mapping[str, Scenario],
    topics: Mapping[str, str],
) -> tuple[int, senders.Ends]:
    """Kill the leader while it alone has the newest records.

    Return how many of them are acknowledged with acks=1, and how far the log of acks=all went
    before.
    """
    # Only one may be down: two of the three controllers must agree that it is out of sync.
    down, frozen = followers
    plans = {
        scenario: Publishing(
            topic=topics[acks],
            count=senders.FOREVER,
            seed=trial.seed,
            per_s=250,
            config=senders.plain(acks.partition(",")[0]),
        )
        for acks, scenario in scenarios.items()
    }
    with trial.running(plans):
        trial.wait_for_more(scenarios.values(), trial.random.randrange(150, 300))
        before = senders.ends(trial, topics["all"])
        trial.stop(down)
        trial.wait(
            lambda: senders.in_sync(trial, topics[ALONE]) == {leader},
            "the follower to be out of sync",
        )
        # With the other one frozen, what acks=1 acknowledges is on the leader alone. So the kill
        # loses records for certain, and not only if it comes at the right moment.
        trial.freeze(frozen)
        trial.wait_for_more(
            [one for acks, one in scenarios.items() if acks != "all"],
            trial.random.randrange(ALONE_MIN, 300),
        )
        # Readers see only what the followers have: acknowledged first, and then what is visible.
        unreplicated = scenarios["1"].acknowledged - senders.ends(trial, topics["1"])[0]
        trial.kill(leader)
        trial.thaw(frozen)
        trial.restart(down)
        trial.wait(
            lambda: senders.leader_of(trial, topics["all"]) in followers, "a follower to lead"
        )
        # Kafka waits for the dead leader, which alone has everything. So does an operator, unless
        # it will not come back.
        trial.wait(
            lambda: senders.leader_of(trial, topics[ALONE]) is None,
            "the partition to be without a leader",
        )
        senders.elect_unclean(trial, topics[ALONE])
        trial.wait_for_more(scenarios.values(), 100)
    return unreplicated, before


@experiment(
    "send-2",
    statement="acks=all protects nothing if the partition has only one replica",
    method=(
        "Send with acks=all to a topic with one replica, kill its broker with -9 in the middle, "
        "start it again, and count acknowledged records that are missing. Then do the same with "
        "one and with three replicas, and delete the broker's data before it starts, as if its "
        "disk was lost."
    ),
    advice=(
        "Give every topic three replicas. With one, acks=all survives a crash of the process, "
        "but neither a lost disk nor the time until the broker is back."
    ),
    why=(
        "acks=all waits for the in-sync replicas, and with one replica that is the leader. A "
        "killed process loses nothing that it has written: the operating system keeps it. A lost "
        "disk was the only copy: the broker returns with an empty one. As soon as it leads the "
        "partition again, by itself or by an unclean election, the log begins at offset 0."
    ),
    scope=(
        "All releases since 0.8 and all clients; measured with librdkafka. The machine stays "
        "on: what was not yet written to the disk survives the process, but not a power cut. "
        "Whether the empty replica is elected by itself varies in 4.x, where a new disk also "
        "has a new directory id; after 20 s without a leader the lab forces an unclean "
        "election, and the evidence counts that."
    ),
    sources=("documentation: acks", "documentation: replication", "KIP-858", "KIP-966"),
    rules=("TOPIC_SINGLE_REPLICA",),
    brokers=3,
    harmless=False,
)
def acks_all_with_one_replica(trial: Trial) -> None:
    killed, misplaced, records = [], 0, 0
    for number in trial.rounds(1, 30):
        broker = senders.nodes_from(trial.seed + number)[0]
        scenario = trial.scenario(f"1 replica, killed, round {number + 1}")
        topic = trial.topic(brokers=(broker,), min_insync_replicas="1")
        plan = Publishing(topic=topic, count=senders.FOREVER, seed=trial.seed, per_s=250)
        with scenario.background(plan):
            trial.wait_for_more([scenario], trial.random.randrange(150, 400))
            before = senders.ends(trial, topic)
            trial.kill(broker)
            trial.wait(
                lambda topic=topic: senders.leader_of(trial, topic) is None,  # type: ignore[misc]
                "the partition to be without a leader",
            )
            trial.restart(broker)
            trial.wait_for_more([scenario], 20)
        scenario.read_topic(topic)
        misplaced += senders.misplaced(scenario, before, repeats_allowed=True)
        records += sum(before.values())
        killed.append(checkers.lost(scenario.history(), by=OperationKind.READ))
        trial.example(scenario, killed[-1])
    wiped: dict[str, list[Anomalies]] = {"1 replica": [], "3 replicas": []}
    forced = 0
    for number in trial.rounds(1, 30):
        forced += _lose_disk(trial, senders.nodes_from(trial.seed + number), number, wiped)
    everything = {"1 replica, broker killed": killed} | {
        f"{name}, disk lost": rounds for name, rounds in wiped.items()
    }
    trial.plot(
        "Records acknowledged with acks=all and lost",
        "replicas and fault",
        "records",
        {
            "lost": [
                (name, float(sum(one.count for one in rounds)))
                for name, rounds in everything.items()
            ]
        },
    )
    senders.control_senders(trial, misplaced, records)
    trial.control(
        "with three replicas, a lost disk loses no record",
        not any(wiped["3 replicas"]),
        _lost(wiped["3 replicas"]),
    )
    trial.statement(
        "with one replica, a killed broker loses acknowledged records",
        any(killed),
        _lost(killed),
        on=Dependence.SETTING,
    )
    how = f"; {forced} of {len(wiped['1 replica'])} needed an unclean election"
    trial.statement(
        "with one replica, a lost disk loses acknowledged records",
        any(wiped["1 replica"]),
        f"{_lost(wiped['1 replica'])}{how}",
    )


def _lose_disk(
    trial: Trial, nodes: Sequence[int], number: int, lost: Mapping[str, list[Anomalies]]
) -> int:
    """Kill the leader of two topics and delete its data; return whether an election was forced."""
    count = trial.scaled(1_000, 5_000)
    scenarios = {name: trial.scenario(f"{name}, disk lost, round {number + 1}") for name in lost}
    topics = {
        "1 replica": trial.topic(brokers=nodes[:1], min_insync_replicas="1"),
        "3 replicas": trial.topic(brokers=nodes, min_insync_replicas="2"),
    }
    for name, scenario in scenarios.items():
        scenario.disk_lost = True
        scenario.publish(Publishing(topic=topics[name], count=count, seed=trial.seed))
    trial.read_topics({scenarios[name]: topic for name, topic in topics.items()}, by="before")
    for scenario in scenarios.values():
        missing = checkers.lost(scenario.history(), "before", by=OperationKind.READ)
        trial.control(
            f"{scenario.name}: all records are there before the fault",
            missing.of == count and not missing,
            f"{missing.count} of {missing.of:,} missing",
        )
    disk = trial.cluster.node(nodes[0]).disk_id
    trial.kill(nodes[0])
    trial.wipe(nodes[0])
    # a broker with an empty disk may return only when the others have a controller
    trial.wait(
        lambda: senders.leader_of(trial, topics["3 replicas"]) in nodes[1:], "a follower to lead"
    )
    trial.restart(nodes[0])
    trial.control(
        f"disk lost, round {number + 1}: the broker returned with a new disk",
        trial.cluster.node(nodes[0]).disk_id != disk,
        "by the id that the broker gave its folder",
    )
    trial.cluster.wait_in_sync(topics["3 replicas"])
    by_itself = senders.wait_for_leader(trial, topics["1 replica"])
    for topic in topics.values():
        trial.cluster.wait_in_sync(topic)
    trial.read_topics({scenarios[name]: topic for name, topic in topics.items()}, by="after")
    for name, scenario in scenarios.items():
        missing = checkers.lost(scenario.history(), "after", by=OperationKind.READ)
        lost[name].append(missing)
        trial.example(scenario, missing)
    return int(not by_itself)


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
    why=(
        "The leader compares the in-sync set with min.insync.replicas only when a request asks for "
        "acks=all. Since 3.7 it also holds the high watermark back while the set is too small. "
        "Consumers read up to the high watermark, so they do not see those records until enough "
        "replicas are in sync again."
    ),
    scope=(
        "All clients; measured with librdkafka. That readers are held back is so since broker "
        "release 3.7; before, the statement was right without exception."
    ),
    sources=("documentation: min.insync.replicas", "KAFKA-15583", "KIP-966"),
    rules=("PUBLISHER_ACKS_NOT_ALL", "TOPIC_MIN_INSYNC_REPLICAS_ONE"),
    brokers=3,
    harmless=False,
)
def min_insync_replicas_by_acks(trial: Trial) -> None:
    count = trial.scaled(200, 500)
    both_in_sync: dict[str, int] = dict.fromkeys(ACKS, 0)
    acknowledged: dict[str, list[int]] = {acks: [] for acks in ACKS}
    readable: dict[str, int] = dict.fromkeys(ACKS, 0)
    stored: dict[str, int] = dict.fromkeys(ACKS, 0)
    notes: dict[str, set[str]] = {acks: set() for acks in ACKS}
    before: dict[str, int] = dict.fromkeys(ACKS, 0)  # with those that were not held back
    kills = 0
    for number in trial.rounds(1, 30):
        kills += 1
        leader, follower, _ = senders.nodes_from(trial.seed + number)
        topics = {
            acks: trial.topic(brokers=(leader, follower), min_insync_replicas="2") for acks in ACKS
        }
        scenarios = {acks: trial.scenario(f"acks={acks}, round {number + 1}") for acks in ACKS}
        for acks, scenario in scenarios.items():
            both_in_sync[acks] += _send_from(trial, scenario, topics[acks], acks, 0, count)[0]
        # acks=0 and acks=1 do not wait for the follower, and readers see only what it has
        trial.wait(
            lambda topics=topics: all(  # type: ignore[misc]
                senders.ends(trial, topic)[0] == count for topic in topics.values()
            ),
            "the follower to have all records",
        )
        trial.kill(follower)
        scenarios["1"].note_fault("the follower is killed")
        trial.wait(
            lambda topics=topics, leader=leader: all(  # type: ignore[misc]
                senders.in_sync(trial, topic) == {leader} for topic in topics.values()
            ),
            "the follower to be out of sync",
        )
        trial.note(f"in sync: {leader} alone, below the minimum of 2")
        for acks, scenario in scenarios.items():
            sent, seen = _send_from(trial, scenario, topics[acks], acks, count, count)
            acknowledged[acks].append(sent)
            notes[acks] |= seen
        to_read = {scenarios[acks]: topic for acks, topic in topics.items()}
        trial.read_topics(to_read, by="meanwhile")
        for acks, scenario in scenarios.items():
            readable[acks] += _read_from(scenario, "meanwhile", count)
            before[acks] += _read_from(scenario, "meanwhile", 0)
        trial.restart(follower)
        for topic in topics.values():
            trial.cluster.wait_in_sync(topic)
        scenarios["1"].note_fault("the follower is back and in sync")
        trial.read_topics(to_read)
        for acks, scenario in scenarios.items():
            stored[acks] += _read_from(scenario, "reader", count)
        _show_held_back(trial, scenarios["1"], count)
    total = kills * count
    errors_ = {acks: ", ".join(sorted(seen)) or "no error" for acks, seen in notes.items()}
    trial.table(
        f"{total:,} sends with one of two required replicas in sync ({kills} kills)",
        ["acks", "acknowledged", "errors", "readable immediately", "in the log later"],
        [
            [acks, sum(acknowledged[acks]), errors_[acks], readable[acks], stored[acks]]
            for acks in ACKS
        ],
    )
    trial.plot(
        "Records accepted by the log below min.insync.replicas",
        "acks",
        "records",
        {"in the log": [(acks, float(counted)) for acks, counted in stored.items()]},
    )
    trial.control(
        "with both replicas in sync, every acks level is acknowledged",
        all(sent == total for sent in both_in_sync.values()),
        ", ".join(f"acks={acks}: {sent} of {total}" for acks, sent in both_in_sync.items()),
    )
    trial.control(
        "readers find what was sent before the fault while the follower is out of sync",
        all(before[acks] - readable[acks] == total for acks in ACKS),
        ", ".join(f"acks={acks}: {before[acks] - readable[acks]} of {total}" for acks in ACKS),
    )
    for acks in ("0", "1"):
        trial.statement(
            f"acks={acks} is not rejected",
            sum(acknowledged[acks]) == total and stored[acks] == total,
            f"{sum(acknowledged[acks])} of {total} acknowledged, {stored[acks]} in the log;"
            f" {_kills_with(acknowledged[acks], count)}",
        )
    trial.statement(
        "acks=all is rejected",
        sum(acknowledged["all"]) == 0 and stored["all"] == 0,
        f"{sum(acknowledged['all'])} of {total} acknowledged ({errors_['all']}),"
        f" {stored['all']} in the log; {_kills_with(acknowledged['all'], count)}",
    )
    trial.limit(
        "readers are affected too, since 3.7: records written with acks=1 below the minimum become"
        " readable only when enough replicas are in sync again",
        readable["1"] == 0 and stored["1"] > 0,
        f"{readable['1']} of {stored['1']} readable immediately, all of them later",
        on=Dependence.RELEASE,
    )


def _show_held_back(trial: Trial, scenario: Scenario, first: int) -> None:
    """Show the first record that was acknowledged, and readable only with the follower."""
    operations = scenario.history()
    early = list(history.of(operations, OperationKind.READ, group="meanwhile"))
    seen = {one.record for one in early}
    held = next(
        (
            one
            for one in history.of(operations, OperationKind.SEND)
            if (one.number or 0) >= first and one.record not in seen
        ),
        None,
    )
    if held is None:
        return
    of_record = [one for one in operations if one.record == held.record]
    faults = history.of(operations, OperationKind.FAULT)
    ends = [
        one
        for one in operations
        if one.group == "meanwhile" and one.kind in (OperationKind.POSITION, OperationKind.END)
    ]
    trial.show(
        f"readable only when the follower is back: {held.key}#{held.number}",
        history.excerpt(operations, [*faults, *of_record, *early[-3:], *ends]),
    )


def _kills_with(acknowledged: Sequence[int], count: int) -> str:
    """Return after how many kills every record was acknowledged."""
    every = sum(one == count for one in acknowledged)
    return f"all acknowledged after {bounds.describe(every, len(acknowledged), 'kill')}"


def _send_from(
    trial: Trial, scenario: Scenario, topic: str, acks: str, first: int, count: int
) -> tuple[int, set[str]]:
    """Send records from this number on; return how many were acknowledged, and the errors."""
    plan = Publishing(
        topic=topic,
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
    acknowledged = sum(1 for _ in history.of(sends, OperationKind.SEND))
    return acknowledged, {one.note for one in sends if one.note}


def _read_from(scenario: Scenario, group: str, first: int) -> int:
    """Return how many records from this number on the group has read."""
    return sum(
        (one.number or 0) >= first
        for one in history.of(scenario.history(), OperationKind.READ, group=group)
    )


@experiment(
    "send-6",
    statement="Records that were sent asynchronously are lost if the process exits without a flush",
    method=(
        "A process hands records to the client, after the first was acknowledged, and exits, with "
        "and without a flush. Read what arrived. With the Java client and with librdkafka."
    ),
    advice=(
        "Flush (in Java: close) before the process exits, and check how many records flush "
        "reports as undelivered."
    ),
    why=(
        "send() only puts the record into a buffer of the client; a thread of the client sends it "
        "later. The buffer is memory of the process and ends with it. flush() and close() wait "
        "until the buffer is empty."
    ),
    scope=(
        "Java client since 0.8.2 and librdkafka, all releases. The lab sets linger.ms=1000 "
        "(default 5, in the Java client since 4.0), so that the buffer is not empty at the "
        "end; with the default the last few milliseconds are lost."
    ),
    sources=("documentation: producer", "documentation: linger.ms", "KIP-8"),
    rules=("PUBLISHER_ACKS_NOT_ALL",),
)
def exit_without_flush(trial: Trial) -> None:
    count = trial.scaled(2_000, 5_000)
    missing: dict[tuple[Library, bool], list[Anomalies]] = defaultdict(list)
    lost_acknowledged = 0
    for number in trial.rounds(1, 30):
        scenarios = {
            (library, flushes): trial.scenario(
                f"{library}, {'with' if flushes else 'without'} flush, round {number + 1}"
            )
            for library in senders.CLIENTS
            for flushes in (True, False)
        }
        runs = {}
        for (library, flushes), scenario in scenarios.items():
            plan = Publishing(
                topic=trial.topic(1),
                count=count,
                seed=f"{trial.seed}-{number}",
                flush=flushes,
                warm=True,
                library=library,
                # The client holds records for a second, so that the process ends before they are
                # sent, however slowly it ends.
                config={"linger.ms": 1000, "batch.size": 1_000_000},
            )
            runs[scenario.name] = functools.partial(_run_and_read, scenario, plan)
        trial.together(runs)
        for one, scenario in scenarios.items():
            operations = scenario.history()
            missing[one].append(_unread(operations))
            trial.example(scenario, missing[one][-1])
            lost_acknowledged += checkers.lost(operations, by=OperationKind.READ).count
    sums = {
        key: (sum(one.count for one in found), sum(one.of for one in found))
        for key, found in missing.items()
    }
    trial.plot(
        "Records handed to the client that never arrived",
        "end of the process",
        "records",
        {
            str(library): [
                (f"{'with' if flushes else 'without'} flush", float(sums[library, flushes][0]))
                for flushes in (True, False)
            ]
            for library in senders.CLIENTS
        },
    )
    flushed = [one for library in senders.CLIENTS for one in missing[library, True]]
    trial.control(
        "with a flush, no record is missing",
        not any(flushed),
        f"{sum(one.count for one in flushed)} of {sum(one.of for one in flushed):,}"
        f" ({_describe_exits(flushed)})",
    )
    trial.control(
        "all acknowledged records are there",
        lost_acknowledged == 0,
        f"{lost_acknowledged} acknowledged records are missing",
    )
    for library in senders.CLIENTS:
        trial.statement(
            "without a flush, some records are missing",
            sums[library, False][0] > 0,
            f"{sums[library, False][0]:,} of {sums[library, False][1]:,}"
            f" ({_describe_exits(missing[library, False])})",
            client=library,
        )


def _describe_exits(found: Sequence[Anomalies]) -> str:
    return bounds.describe(sum(map(bool, found)), len(found), "exit")


def _run_and_read(scenario: Scenario, plan: Publishing) -> None:
    scenario.run(plan)
    scenario.read_topic(plan.topic)


@experiment(
    "send-13",
    statement="acks=0 is the fastest and acks=all the slowest",
    method=(
        "Send to a partition with three replicas with each acks level, in turns: waiting for each "
        "answer before the next record, and without waiting. Measure the records per second, with "
        "the Java client and with librdkafka, without recording single records."
    ),
    advice=(
        "Choose acks by what may be lost, not by speed. If speed matters, do not wait for each "
        "answer: that gains far more than a lower acks level, and acks=all then costs a fraction "
        "of what it costs a sender that waits."
    ),
    why=(
        "With acks=1 the answer takes a round trip to the leader, with acks=all the leader also "
        "waits until the followers have fetched the record; with acks=0 the client waits for "
        "nobody. A sender that waits for each answer pays this time for each record. A sender that "
        "does not wait has many records on their way, so that the time is shared by all of them."
    ),
    scope=(
        "Java client and librdkafka, without idempotence, measured with Kafka 4.3 and three "
        "brokers on the same machine: the network of a real cluster adds to acks=1 and "
        "acks=all. On the lab's two cores the followers also take processor time from the "
        "leader and the sender. The three values mean the same since 0.8, where all was -1."
    ),
    sources=("documentation: acks", "documentation: replication"),
    rules=("PUBLISHER_ACKS_NOT_ALL",),
    brokers=3,
    alone=True,
)
def cost_of_acks(trial: Trial) -> None:
    topic = trial.topic(1)
    found: dict[Library, dict[str, list[Measured]]] = {}
    for library in senders.CLIENTS:
        variants = [
            variant
            for acks in ACKS
            for variant in (
                Variant(
                    name=_waiting(acks),
                    count=trial.scaled(500, 2_000),
                    config=senders.plain(acks, linger_ms=0),
                    mode=DeliveryMode.WAIT,
                ),
                Variant(
                    name=_pipelined(acks),
                    count=trial.scaled(20_000, 100_000),
                    config=senders.plain(acks, linger_ms=5, batch_size=16_384),
                ),
            )
        ]
        plan = Measuring(topic=topic, variants=variants, rounds=trial.scaled(3, 7), library=library)
        found[library] = senders.measure(
            trial, plan, lambda rounds: [*_slower_by_acks(rounds), _costs_less(rounds)[0]]
        )
    rates = {
        library: {name: [one.per_s for one in rounds] for name, rounds in measured.items()}
        for library, measured in found.items()
    }
    trial.table(
        "Records per second",
        ["client", "acks", "waiting for each answer", "ms per record", "without waiting"],
        [
            [
                library,
                acks,
                spread(of[_waiting(acks)], digits=0),
                round(1_000 / statistics.median(of[_waiting(acks)]), 2),
                spread(of[_pipelined(acks)], digits=0),
            ]
            for library, of in rates.items()
            for acks in ACKS
        ],
    )
    for title, name in (("waiting for each answer", _waiting), ("without waiting", _pipelined)):
        trial.plot(
            f"Records per second, {title}",
            "acks",
            "records/s",
            {
                str(library): [(acks, statistics.median(of[name(acks)])) for acks in ACKS]
                for library, of in rates.items()
            },
            log_y=True,
        )
    for library, measured in found.items():
        best = {name: senders.rate(rounds) for name, rounds in measured.items()}
        for (faster, slower), holds in zip(SLOWER, _slower_by_acks(measured), strict=True):
            trial.statement(
                f"a sender that waits for each answer is faster with acks={faster} than with"
                f" acks={slower}",
                holds,
                f"{best[_waiting(faster)]:,.0f} and {best[_waiting(slower)]:,.0f} records/s",
                client=library,
            )
        less, pipelined, waiting = _costs_less(measured)
        trial.limit(
            "a sender that does not wait pays much less for acks=all",
            less,
            f"acks=0 is {pipelined:.1f} times as fast instead of {waiting:.0f} times",
            client=library,
        )


SLOWER = (("0", "1"), ("1", "all"))


def _slower_by_acks(found: senders.Rounds) -> list[bool | None]:
    """Return for each pair of levels whether the first is faster, if each answer is waited for."""
    return [
        senders.clearly_more(
            senders.rate(found[_waiting(faster)]), senders.rate(found[_waiting(slower)]), 1.0, 1.25
        )
        for faster, slower in SLOWER
    ]


def _costs_less(found: senders.Rounds) -> tuple[bool | None, float, float]:
    """Return whether acks=all costs much less without waiting, and both ratios to acks=0."""
    pipelined, waiting = (
        senders.rate(found[name("0")]) / senders.rate(found[name("all")])
        for name in (_pipelined, _waiting)
    )
    return pipelined < waiting / FAR or None, pipelined, waiting


def _waiting(acks: str) -> str:
    return f"acks={acks}, waiting"


def _pipelined(acks: str) -> str:
    return f"acks={acks}, not waiting"
