"""Claims about what brokers store: page cache, flushing, segments, folders and partitions."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from instep.kafka import configs, offsets, topics
from instep.report.tables import Cell
from instep.waiting import wait_until
from instep_lab import bounds, checkers, log_files, power_cut
from instep_lab.checkers import Anomalies
from instep_lab.claim import experiment
from instep_lab.claims import senders
from instep_lab.clients.consuming import CommitMode, Consuming
from instep_lab.clients.publishing import Publishing
from instep_lab.history import OperationKind
from instep_lab.joining import TwoBrokers
from instep_lab.power_cut import PowerCutDisk
from instep_lab.trial import Scenario, Trial, spread

ENDLESS = 1_000_000
PER_S = 500
SEGMENT = 1 << 20
PATIENCE_S = 30.0
FLUSHED_EVERY = 100
WORKED = 400  # records that a group works on
SCHEDULER = "log.flush.scheduler.interval.ms"


@dataclass(frozen=True)
class StoredTopic:
    """A topic whose leader is the broker that loses its power, with its settings."""

    title: str
    settings: Mapping[str, str] = field(default_factory=dict)
    replicas: tuple[int, ...] = (2,)


PLAIN = StoredTopic("1 replica")
SYNCED = StoredTopic("1 replica, flush.messages=1", {"flush.messages": "1"})
REPLICATED = StoredTopic("2 replicas", {"min.insync.replicas": "2"}, (2, 1))


class Machines:
    """Two brokers; the data of the second one is on a disk whose power can be cut."""

    def __init__(self, trial: Trial, disk: PowerCutDisk, two: TwoBrokers) -> None:
        self._trial, self.disk, self.two = trial, disk, two
        self.probes_wrong: list[str] = []
        two.second.start()
        self.connection = {
            **two.cluster.connection,
            "bootstrap.servers": f"{two.first.address},{two.second.address}",
        }

    def outage(
        self,
        kinds: Sequence[StoredTopic],
        name: str,
        *,
        cut: bool,
        wait_s: float = 0.0,
        then: Mapping[str, str] | None = None,
    ) -> dict[str, Anomalies]:
        """Send to topics of these kinds, cut the power or only kill the broker, and read.

        Return the acknowledged records that are lost, by kind. Everything that was there before,
        such as the new topics themselves, is on the disk. The power is cut under load, or
        `wait_s` after the last record. `then` has properties for the next start of the broker.
        """
        trial, cluster = self._trial, self.two.cluster
        scenarios: dict[str, tuple[Scenario, str]] = {}
        for kind in kinds:
            topic = trial.name("topic")
            topics.create(cluster.kafka, topic, 1, config=kind.settings, brokers=kind.replicas)
            cluster.wait_in_sync(topic)
            scenario = trial.scenario(f"{kind.title}, {name}")
            # the log of the broker may begin again, where other records were acknowledged
            scenario.disk_lost = cut
            scenarios[kind.title] = (scenario, topic)
        self.disk.sync()
        enough = trial.random.randrange(150, 600)
        with contextlib.ExitStack() as running:
            stops = [
                running.enter_context(
                    scenarios[kind.title][0].background(
                        Publishing(
                            topic=scenarios[kind.title][1],
                            count=ENDLESS,
                            per_s=PER_S,
                            seed=trial.seed,
                            flush_timeout_s=0.5,
                        ),
                        self.connection,
                    )
                )[1]
                for kind in kinds
            ]
            trial.wait(
                lambda: all(one.acknowledged >= enough for one, _ in scenarios.values()),
                f"{enough} acknowledged records",
            )
            if wait_s:
                # all records are older than this
                _set_all(stops)
                running.close()
                last = time.monotonic()
                trial.wait(lambda: time.monotonic() - last > wait_s, f"{wait_s:g} s to pass")
            self._end_second(cut=cut)
            _set_all(stops)
        self.two.second.properties.update(then or {})
        self.two.second.start()
        found = trial.together(
            {title: functools.partial(self._lost, *one) for title, one in scenarios.items()}
        )
        for title, (scenario, _) in scenarios.items():
            trial.example(scenario, found[title])
        return found

    def _end_second(self, *, cut: bool) -> None:
        second, disk = self.two.second, self.disk
        pid = second.pid
        if cut:
            synced, unsynced = disk.root / "synced", disk.root / "unsynced"
            synced.write_bytes(b"x")
            disk.sync_file(synced)
            unsynced.unlink(missing_ok=True)
            unsynced.write_bytes(b"x")
            disk.cut()
        second.kill()
        self._trial.note(f"fault: kill -9 of broker 2 (pid {pid}), power cut: {cut}")
        if cut:
            disk.restore()
            if not synced.exists():
                self.probes_wrong.append("a synced file is gone")
            if unsynced.exists():
                self.probes_wrong.append("a file that was not synced is there")

    def _lost(self, scenario: Scenario, topic: str) -> Anomalies:
        self.two.cluster.wait_in_sync(topic)
        self._trial.wait_for_stable_end(topic, 1, self.two.cluster)
        scenario.consume(
            Consuming(
                topic=topic,
                group=self._trial.name("group"),
                assigned=[0],
                from_start=True,
                to_end=True,
                batch=1_000,
                commit=CommitMode.NEVER,
            ),
            self.connection,
        )
        return checkers.lost(scenario.history(), by=OperationKind.READ)


def _set_all(stops: Iterable[threading.Event]) -> None:
    for stop in stops:
        stop.set()


@contextlib.contextmanager
def _machines(trial: Trial) -> Iterator[Machines]:
    with PowerCutDisk() as disk, TwoBrokers(second_root=disk.root / "kafka-2") as two:
        yield Machines(trial, disk, two)


@experiment(
    "storage-1",
    statement="Acknowledged records that are only in the page cache are lost with the machine",
    method=(
        "Two brokers, one with its data on its own file system. Send with acks=all to topics that "
        "it leads: with one replica, with one replica and an fsync for each batch, and with two "
        "replicas. Cut the power of the file system under load: everything that was not synced is "
        "gone, as after a power failure. Start the broker again and compare the log with the "
        "acknowledged records. As a control, kill the broker with -9 and leave the file system."
    ),
    advice=(
        "Keep three replicas in places that do not lose power together, with "
        "min.insync.replicas=2 and acks=all. Set flush.messages=1 only for a topic with one "
        "replica that must survive a power failure: it costs an fsync for each batch."
    ),
    why=(
        "A broker writes to files without fsync and responds. The data is then in the memory of "
        "the operating system, which survives the death of the process, but not of the machine. "
        "Kafka relies on replicas on other machines instead: with acks=all, each record is in the "
        "memory of all replicas in sync."
    ),
    scope=(
        "All releases since 0.8.1 and all clients (measured with librdkafka), with the default "
        "flush settings. Linux writes dirty pages to disk after about 30 s by default, so the "
        "records of the last half minute are at risk. The power cut is simulated by shutting "
        "an ext4 file system down without a flush; it needs root on Linux. Machines that lose "
        "power together lose their page caches together."
    ),
    sources=("documentation: flush", "documentation: replication", "documentation: acks"),
    rules=("TOPIC_SINGLE_REPLICA", "TOPIC_MIN_INSYNC_REPLICAS_ONE"),
    brokers=0,
    harmless=False,
)
def page_cache_lost_with_the_machine(trial: Trial) -> None:
    statement = "with one replica and no fsync, a power cut loses acknowledged records"
    if lacking := power_cut.missing():
        trial.statement(statement, None, lacking)
        return
    kinds = (PLAIN, SYNCED, REPLICATED)
    cuts: list[dict[str, Anomalies]] = []
    kills: list[dict[str, Anomalies]] = []
    with _machines(trial) as machines:
        for number in trial.rounds(1, 30):
            kills.append(machines.outage(kinds, f"kill {number + 1}", cut=False))
            cuts.append(machines.outage(kinds, f"power cut {number + 1}", cut=True))
        wrong = machines.probes_wrong
    rows: list[list[Cell]] = [
        [kind.title, *_counts(kills, kind, "kill"), *_counts(cuts, kind, "cut")] for kind in kinds
    ]
    trial.table(
        "Acknowledged records that were lost, acks=all",
        ["topic", "kill -9", "records lost", "power cut", "records lost"],
        rows,
    )
    trial.control(
        "the power cut loses what was not synced, and only that",
        not wrong,
        ", ".join(wrong) or f"a synced and an unsynced file on the disk, {len(cuts)} times",
    )
    losing = sum(any(one.values()) for one in kills)
    trial.control(
        "kill -9 of the broker alone loses none of them",
        not losing,
        f"{bounds.describe(losing, len(kills), 'kill')}, in any of {len(kinds)} topics",
    )
    trial.statement(statement, _lost_in_all(cuts, PLAIN), _evidence(cuts, PLAIN))
    trial.limit(
        "a second replica in sync on another machine keeps them",
        not any(one[REPLICATED.title] for one in cuts),
        _evidence(cuts, REPLICATED),
    )
    trial.limit(
        "flush.messages=1 keeps them",
        not any(one[SYNCED.title] for one in cuts),
        _evidence(cuts, SYNCED),
    )


def _lost_in_all(found: Sequence[Mapping[str, Anomalies]], kind: StoredTopic) -> bool:
    return all(one[kind.title] for one in found)


def _counts(
    found: Sequence[Mapping[str, Anomalies]], kind: StoredTopic, what: str
) -> tuple[str, str]:
    hits = sum(bool(one[kind.title]) for one in found)
    lost = sum(one[kind.title].count for one in found)
    of = sum(one[kind.title].of for one in found)
    return bounds.describe(hits, len(found), what), f"{lost:,} of {of:,}"


def _evidence(found: Sequence[Mapping[str, Anomalies]], kind: StoredTopic) -> str:
    cuts, records = _counts(found, kind, "power cut")
    return f"{cuts}; {records} records lost"


@experiment(
    "storage-2",
    statement="Kafka writes records to disk after a number of records or an interval",
    method=(
        "Ask a broker for its default flush settings. Send to topics with the defaults, with "
        f"flush.messages={FLUSHED_EVERY} and with flush.ms of 200 and of an hour, wait for two "
        "seconds, and cut the power as in storage-1. Repeat it with "
        "log.flush.scheduler.interval.ms=100 on the broker."
    ),
    advice=(
        "Leave the flush settings alone and rely on replicas. Where an interval is needed, set "
        "log.flush.scheduler.interval.ms on the brokers too: without it, flush.ms does nothing, "
        "and with it, topics without their own flush.ms are flushed as often."
    ),
    why=(
        "Both settings exist and are off: log.flush.interval.messages is the largest possible "
        "number. The number is compared with each append, the interval only by a background task, "
        "which runs every log.flush.scheduler.interval.ms, also the largest possible number by "
        "default and at the same time the default of log.flush.interval.ms. Until then the "
        "operating system decides when to write."
    ),
    scope=(
        "Observed with 4.3, which reports these defaults itself. They are off since 0.8.1; 0.8.0 "
        "flushed after 10,000 records or 3 s, 0.7 after 500 or 3 s, before consumers saw them."
    ),
    sources=("documentation: flush",),
    brokers=0,
    harmless=False,
)
def flush_by_count_and_interval(trial: Trial) -> None:
    by_default = "records are flushed by default"
    if lacking := power_cut.missing():
        trial.statement(by_default, None, lacking)
        return
    by_count = StoredTopic(
        f"flush.messages={FLUSHED_EVERY}", {"flush.messages": str(FLUSHED_EVERY)}
    )
    by_time = StoredTopic("flush.ms=200", {"flush.ms": "200"})
    by_hour = StoredTopic("flush.ms=3600000", {"flush.ms": "3600000"})
    kinds = (PLAIN, by_count, by_time, by_hour)
    with _machines(trial) as machines:
        defaults = configs.of_brokers(machines.two.cluster.kafka, [2])[2]
        names = ("log.flush.interval.messages", "log.flush.interval.ms", SCHEDULER)
        values = {name: defaults[name].value or "unset" for name in names}
        without, with_task = (
            _cut_often(trial, machines, kinds, "defaults", then={SCHEDULER: "100"}),
            _cut_often(trial, machines, kinds, f"{SCHEDULER}=100"),
        )
        wrong = machines.probes_wrong
    trial.table(
        "Records lost by a power cut, two seconds after the last one",
        ["topic", "default settings of the broker", f"{SCHEDULER}=100"],
        [[kind.title, _evidence(without, kind), _evidence(with_task, kind)] for kind in kinds],
    )
    trial.control(
        "the power cut loses what was not synced, and only that",
        not wrong,
        ", ".join(wrong) or f"a synced and an unsynced file on the disk, {2 * len(without)} times",
    )
    trial.statement(
        by_default,
        not any(one[PLAIN.title] for one in without),
        f"{_evidence(without, PLAIN)};"
        f" {', '.join(f'{name}={value}' for name, value in values.items())}",
    )
    counted = [one[by_count.title] for one in without]
    trial.statement(
        f"flush.messages={FLUSHED_EVERY} writes them after that many",
        all(one.count < FLUSHED_EVERY < one.of for one in counted),
        f"at most {max(one.count for one in counted)} of {max(one.of for one in counted)} lost;"
        f" {_evidence(without, by_count)}",
    )
    trial.statement(
        f"flush.ms=200 writes them, with {SCHEDULER}=100 on the broker",
        not any(one[by_time.title] for one in with_task),
        f"{_evidence(with_task, by_time)}, after 2 s",
    )
    trial.control(
        "with that task, a topic with an interval of an hour is not written",
        _lost_everything(with_task, by_hour),
        _evidence(with_task, by_hour),
    )
    trial.limit(
        "flush.ms alone writes nothing",
        _lost_everything(without, by_time),
        f"{_evidence(without, by_time)}, after 2 s",
    )


def _cut_often(
    trial: Trial,
    machines: Machines,
    kinds: Sequence[StoredTopic],
    name: str,
    then: Mapping[str, str] | None = None,
) -> list[dict[str, Anomalies]]:
    """Cut the power two seconds after the last record, several times.

    `then` has properties for the start of the broker after the last cut.
    """
    cuts = trial.scaled(1, 30)
    return [
        machines.outage(
            kinds,
            f"{name}, {number}",
            cut=True,
            wait_s=2.0,
            then=then if number == cuts else None,
        )
        for number in range(1, cuts + 1)
    ]


def _lost_everything(found: Sequence[Mapping[str, Anomalies]], kind: StoredTopic) -> bool:
    return all(one[kind.title].count == one[kind.title].of for one in found)


@experiment(
    "storage-3",
    statement="log.segment.bytes limits the size of a log: beyond it, old data is deleted",
    method=(
        "Send 5 MB to a topic with segments of 1 MiB, and to another one that also has "
        "retention.bytes of 2 MiB. Wait until the second one has lost old segments, and compare "
        "where the logs begin."
    ),
    advice=(
        "Set retention.bytes or retention.ms to delete old data. segment.bytes only decides how "
        "large the files are, and so how much is deleted at once."
    ),
    why=(
        "segment.bytes is the size at which the broker closes a file and begins the next one. "
        "Deleting is a task of its own, which looks at retention.ms and retention.bytes. "
        "retention.bytes is unlimited by default, so only age deletes data, after 7 days."
    ),
    scope=(
        "All releases since 0.8 and all clients. The defaults are "
        "log.segment.bytes=1073741824, log.retention.bytes=-1 and log.retention.hours=168. The "
        "check runs every 0.5 s here, every 5 minutes by default."
    ),
    sources=("documentation: segment.bytes", "documentation: retention"),
    rules=("TOPIC_RETENTION_BY_SIZE",),
    harmless=False,
)
def segment_size_is_no_limit(trial: Trial) -> None:
    by_segment = trial.topic(1, segment_bytes=str(SEGMENT))
    by_retention = trial.topic(1, segment_bytes=str(SEGMENT), retention_bytes=str(2 * SEGMENT))
    for topic in (by_segment, by_retention):
        trial.fill(topic, 5_000, 1_000, {"batch.size": 50_000})

    def first(topic: str) -> int:
        return offsets.earliest(trial.cluster.kafka, topic, [0])[0]

    trial.wait(lambda: first(by_retention) > 0, "old segments to be deleted")
    folder = trial.cluster.node(1).root / "data"
    size = sum(file.stat().st_size for file in log_files.segments(folder / f"{by_segment}-0"))
    trial.statement(
        "beyond log.segment.bytes, old data is deleted",
        first(by_segment) > 0,
        f"the log begins at offset {first(by_segment):,} and has {size / SEGMENT:.1f} MiB in"
        f" segments of 1 MiB; with retention.bytes it begins at {first(by_retention):,} of 5,000",
    )


@experiment(
    "storage-4",
    statement="Each partition is a folder on a broker: 13 and 19 partitions are 32 folders",
    method=(
        "Create two topics with 13 and 19 partitions on three brokers, with one replica and with "
        "three, and count the folders in the brokers' data."
    ),
    advice=(
        "Count replicas, not partitions, when you plan files and disk space: brokers have a "
        "folder for each replica."
    ),
    why=(
        "A broker stores each replica in a folder with the name of the topic and the number of the "
        "partition. The partitions are spread over the brokers, and each replica is a complete "
        "copy on another one."
    ),
    scope=(
        "All releases since 0.8, all clients. A deleted topic's folders stay for "
        "file.delete.delay.ms (a minute by default) with the suffix -delete."
    ),
    sources=("documentation: log",),
    brokers=3,
    harmless=False,
)
def folders_of_partitions(trial: Trial) -> None:
    counts = {
        replicas: _folders(
            trial, [trial.topic(count, replicas) for count in (13, 19)], 32 * replicas
        )
        for replicas in (1, 3)
    }
    trial.table(
        "Folders of 13 and 19 partitions",
        ["replicas", *(f"broker {node}" for node in (1, 2, 3)), "together"],
        [[replicas, *found, sum(found)] for replicas, found in counts.items()],
    )
    trial.statement(
        "with one replica there are 32 folders",
        sum(counts[1]) == 32,
        f"{sum(counts[1])} on three brokers ({', '.join(map(str, counts[1]))})",
    )
    trial.limit(
        "with three replicas there are three times as many",
        sum(counts[3]) == 96,
        f"{sum(counts[3])} on three brokers",
    )


def _folders(trial: Trial, names: Sequence[str], expected: int) -> list[int]:
    """Count the folders of these topics on each broker.

    Brokers create them one after another, so wait a while for the expected number.
    """
    root = {node: trial.cluster.node(node).root / "data" for node in (1, 2, 3)}

    def count() -> list[int]:
        return [
            sum(folder.name.rpartition("-")[0] in names for folder in data.iterdir())
            for data in root.values()
        ]

    wait_until(lambda: sum(count()) >= expected, PATIENCE_S)
    return count()


@experiment(
    "storage-5",
    statement="More partitions mean more throughput and need more resources",
    method=(
        "Send 500,000 records to 1, 4 and 16 partitions at full speed, in turn; the time to "
        "connect does not count. Let four members "
        "of a group work for 5 ms on each record of 1 and of 4 partitions. Single records are not "
        "recorded, and the best rounds are compared. Count the files of the topics that the broker "
        "has open."
    ),
    advice=(
        "Choose the number of partitions by how many consumers must work at the same time. A "
        "sender gains nothing from more of them, until a broker or a disk is the limit."
    ),
    why=(
        "A partition is the unit of parallel reading: the members of a group share the partitions, "
        "so one partition keeps all but one idle. A sender fills batches for each partition, which "
        "are smaller if there are more of them; more partitions spread the load over brokers and "
        "disks, which does not help where the client is the limit. Each replica costs a folder and "
        "several open files on its broker."
    ),
    scope=(
        "Measured with Kafka 4.3, one sender with librdkafka, one broker and one disk on this "
        "machine; with several brokers, more partitions let a topic use all of them. Share "
        "groups (since 4.2) let several members read one partition."
    ),
    sources=("documentation: log",),
    harmless=False,
    alone=True,
)
def throughput_by_partitions(trial: Trial) -> None:
    counts, records = (1, 4, 16), 500_000
    logs: dict[int, str] = {}
    opened: dict[int, int] = {}
    for partitions in counts:
        logs[partitions] = trial.topic(partitions)
        trial.fill(logs[partitions], 5_000)
        opened[partitions] = _open_files(trial, logs[partitions])
    rates: dict[int, list[float]] = {partitions: [] for partitions in counts}
    for _ in trial.rounds(3, 9):
        for partitions in trial.random.sample(counts, len(counts)):
            took = trial.fill(logs[partitions], records)
            rates[partitions].append(records / took)
    worked: dict[int, list[float]] = {1: [], 4: []}
    for number in range(senders.ATTEMPTS_MAX):
        for partitions, found in worked.items():
            found.append(_work_rate(trial, partitions, number + 1))
        if _is_faster(worked) is not None:
            break
    trial.table(
        "Throughput and resources",
        ["partitions", "sent per second", "worked per second by 4 members", "open files"],
        [
            [
                partitions,
                spread(rates[partitions], digits=0),
                spread(worked[partitions], digits=0) if partitions in worked else None,
                opened[partitions],
            ]
            for partitions in counts
        ],
    )
    trial.statement(
        "a group works faster on 4 partitions than on 1",
        _is_faster(worked),
        f"{max(worked[4]) / max(worked[1]):.1f} times as fast, with 4 members",
    )
    trial.statement(
        "one sender is much faster with 16 partitions than with 1",
        senders.clearly_more(max(rates[16]), max(rates[1])),
        f"{max(rates[16]) / max(rates[1]):.2f} times as fast on one broker",
    )
    trial.statement(
        "more partitions need more open files",
        opened[16] > opened[4] > opened[1],
        ", ".join(f"{opened[count]} for {count}" for count in counts),
    )


def _is_faster(worked: Mapping[int, Sequence[float]]) -> bool | None:
    return senders.clearly_more(max(worked[4]), max(worked[1]), 1.0, senders.HARDLY)


def _open_files(trial: Trial, topic: str) -> int:
    """Return how many files of a topic the broker has open or mapped into memory."""
    process = psutil.Process(trial.cluster.node(1).pid)
    paths = [one.path for one in process.open_files()]
    paths += [str(one.path) for one in process.memory_maps(grouped=True)]
    return sum(f"/{topic}-" in path for path in paths)


def _work_rate(trial: Trial, partitions: int, number: int) -> float:
    """Return how many records per second four members of a group work on."""
    scenario = trial.scenario(f"group, {partitions} partitions, {number}")
    topic, group, count = trial.topic(partitions), trial.group(), WORKED
    with contextlib.ExitStack() as running:
        members = [
            running.enter_context(
                scenario.background(
                    Consuming(
                        topic=topic,
                        group=group,
                        member=f"member {one}",
                        batch=10,
                        work_ms=5.0,
                        sampled=True,
                    )
                )
            )[0]
            for one in range(1, 5)
        ]
        # Records are sent when the partitions are shared out, which takes longer than the work.
        trial.wait(
            lambda: (
                sorted(len(member.assigned) for member in members)
                == [0] * (4 - partitions) + [1] * partitions
            ),
            "the members to share the partitions",
        )
        trial.fill(topic, count)
        trial.wait(
            lambda: sum(member.read for member in members) >= count, "all records to be read"
        )
    # the first and the last of each member
    times = [one.at_ns for one in scenario.history() if one.kind is OperationKind.WORK]
    return (count - 1) / ((max(times) - min(times)) / 1e9)
