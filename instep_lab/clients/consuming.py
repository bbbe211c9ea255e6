"""A configurable consumer: subscribe or assign, any commit mode, any offset store, any thread pool.

The work on a record is a line in the history or a row in a SQLite table. The table may have a
unique index, or store the offset in the same transaction.
"""

from __future__ import annotations

import contextlib
import enum
import os
import queue
import random
import signal
import threading
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from instep_lab import workload
from instep_lab.clients.library import Library
from instep_lab.clients.output_topic import OutputTopic
from instep_lab.clients.table import SqliteTable
from instep_lab.history import ClientOperation, HistoryWriter, OperationKind, OperationStatus


class CommitMode(enum.StrEnum):
    """When offsets are committed.

    COMBINED commits asynchronously in the loop, and synchronously at the end and when partitions
    are revoked.
    """

    AUTO = "auto"
    BEFORE = "before the work"
    SYNC = "sync"
    ASYNC = "async"
    COMBINED = "combined"
    NEVER = "never"


class Keep(enum.StrEnum):
    """Where the work is visible.

    HISTORY: only in the history. TABLE: in a plain table. UNIQUE, BY_OFFSET, BY_PLACE: in a table
    with a unique index on the record's id, on its offset, or on partition and offset. WITH_OFFSET:
    in a table with the offset in the same transaction; CHECKED only if the stored offset is that
    of the record. TOPIC: in another topic; TRANSACTION in one transaction with the offsets.
    """

    HISTORY = "history"
    TABLE = "table"
    UNIQUE = "unique"
    BY_OFFSET = "unique offset"
    BY_PLACE = "unique partition and offset"
    WITH_OFFSET = "with offset"
    CHECKED = "with checked offset"
    TOPIC = "topic"
    TRANSACTION = "transaction"

    @property
    def is_table(self) -> bool:
        return self not in (Keep.HISTORY, Keep.TOPIC, Keep.TRANSACTION)

    @property
    def stores_offset(self) -> bool:
        return self in (Keep.WITH_OFFSET, Keep.CHECKED)


class Pool(enum.StrEnum):
    NONE = "none"
    BY_RECORD = "by record"
    BY_KEY = "by key"


class CrashPoint(enum.StrEnum):
    """The points at which a consumer can be made to die."""

    READ = "after the read"
    WRITING = "before the row's commit"
    WORKED = "after the work"
    COMMITTED = "after the commit"


class Consuming(msgspec.Struct, frozen=True, kw_only=True, tag="consume"):
    """What to read and how.

    `config` holds settings of the library in addition to the connection; None means the library's
    default. The consumer reads until one of these is true: it has read `count` records; with
    `to_end`, it has reached the end of all its partitions; no record came for `idle_s` after the
    first assignment; it is stopped. With `from_start`, assigned partitions are read from the
    beginning, whatever the group has committed.

    `commit_every` commits after that many records instead of after each batch. The process kills
    itself with -9 at the point `dies_at` of record number `dies_on`. Before the work on record
    number `stops_on` it stops itself with SIGSTOP, until somebody continues it; before the work on
    record number `hangs_on` it waits, without polling, until the file `hangs_until` exists.
    The work on record number `fails_on` raises an error, and the consumer closes, as in a program
    that closes it in a `finally` block.

    What is kept in a topic goes to `output`, by a producer with this `transactional_id`. The work
    takes `work_ms` per record on average, plus `batch_ms` per batch. `also` names further topics to
    subscribe to. A partition without a start offset ends the reading unless `continue_after_error`
    is set. With `commits_position`, synchronous commits name no offsets: the library commits those
    of everything that it has handed out. With `sampled`, the history has only the first and the
    last operation of each kind, for measurements.
    """

    topic: str
    group: str
    also: list[str] = []
    library: Library = Library.LIBRDKAFKA
    member: str = "member"
    config: dict[str, Any] = {}
    assigned: list[int] | None = None
    commit: CommitMode = CommitMode.SYNC
    commit_every: int | None = None
    batch: int = 100
    keep: Keep = Keep.HISTORY
    table: str = ""
    pool: Pool = Pool.NONE
    work_ms: float = 0.0
    batch_ms: float = 0.0
    seed: int | str = 0
    count: int | None = None
    to_end: bool = False
    from_start: bool = False
    idle_s: float | None = None
    dies_at: CrashPoint | None = None
    dies_on: int = 0
    stops_on: int = 0
    hangs_on: int = 0
    hangs_until: str = ""
    fails_on: int = 0
    output: str = ""
    transactional_id: str = ""
    continue_after_error: bool = False
    commits_position: bool = False
    sampled: bool = False

    @property
    def commits_after_work(self) -> bool:
        """Whether what it commits is worked on: not with a pool, whose threads work later."""
        return (
            self.commit in (CommitMode.SYNC, CommitMode.ASYNC, CommitMode.COMBINED)
            and self.pool is Pool.NONE
            and not self.commits_position
            and self.library is not Library.SHARE
        )

    @property
    def commits_at_end(self) -> bool:
        """Whether it commits what it has worked on when it closes."""
        return self.commit is CommitMode.COMBINED and self.pool is Pool.NONE

    @property
    def records_commits(self) -> bool:
        """Whether its history has every commit that it tried, by partition.

        It has not those that the library tried by itself, and does not tell topics apart.
        """
        return (
            self.commit is not CommitMode.AUTO
            and self.library is not Library.SHARE
            and not self.also
        )

    @property
    def reads_to_end(self) -> bool:
        """Whether it ends by itself, and only at the end of the log, which it records."""
        return (
            self.to_end
            and self.count is None
            and self.idle_s is None
            and self.library in (Library.JAVA, Library.LIBRDKAFKA)
        )

    @property
    def continues_at_commit(self) -> bool:
        """Whether it starts where its group has committed."""
        return (
            not self.keep.stores_offset
            and not self.from_start
            and self.library is not Library.SHARE
        )

    def batch_limit(self, read: int) -> int:
        """Return how many more records may be read at once after this many."""
        if self.count is None:
            return self.batch
        return min(self.batch, self.count - read)


DEFAULTS: Mapping[str, Any] = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 10,
    "allow.auto.create.topics": False,
    "enable.partition.eof": True,
    "log_level": 0,
}
POLL_S = 0.1
UNASSIGNED_MAX_S = 30.0
POOL_SIZE = 8
HANG_INTERVAL_S = 0.02
UNIQUE_COLUMNS = {
    Keep.UNIQUE: "key, number",
    Keep.BY_OFFSET: "place",
    Keep.BY_PLACE: "part, place",
}


class WorkFailed(Exception):
    """The work on a record failed, as planned."""


class ConsumerProgress(msgspec.Struct):
    """What a consumer has done so far, for observers in the same process.

    `held` has the assigned partitions of all its topics, `ends` the offsets at which it reached the
    end of a partition.
    """

    read: int = 0
    assigned: tuple[int, ...] = ()
    held: tuple[tuple[str, int], ...] = ()
    ends: dict[int, int] = msgspec.field(default_factory=dict)
    errors: list[str] = msgspec.field(default_factory=list)

    def hold(self, topic: str, places: Collection[tuple[str, int]]) -> None:
        self.held = tuple(sorted(places))
        self.assigned = tuple(partition for name, partition in self.held if name == topic)


def consume(
    plan: Consuming,
    connection: Mapping[str, Any],
    history_writer: HistoryWriter,
    stop: threading.Event | None = None,
    progress: ConsumerProgress | None = None,
) -> None:
    """Read and process records, and record every operation."""
    stop, progress = stop or threading.Event(), progress or ConsumerProgress()
    match plan.library:
        case Library.KAFKA_PYTHON:
            from instep_lab.clients import kafka_python

            kafka_python.consume(plan, connection, history_writer, stop, progress)
        case Library.SHARE:
            from instep_lab.clients import share_group

            share_group.consume(plan, connection, history_writer, stop, progress)
        case _:
            with (
                contextlib.suppress(WorkFailed),
                _Reader(plan, connection, history_writer, stop, progress) as reader,
            ):
                reader.run()


def rejection(config: Mapping[str, Any]) -> str | None:
    """Return why librdkafka rejects these settings of a consumer; None if it accepts them."""
    try:
        Consumer({"group.id": "none", **config}).close()
    except KafkaException as error:
        return str(error.args[0].str())
    return None


class _Reader:
    def __init__(
        self,
        plan: Consuming,
        connection: Mapping[str, Any],
        history_writer: HistoryWriter,
        stop: threading.Event,
        progress: ConsumerProgress,
    ) -> None:
        self._plan, self._history_writer, self._stop, self.progress = (
            plan,
            history_writer,
            stop,
            progress,
        )
        own = {"group.id": plan.group, "enable.auto.commit": plan.commit is CommitMode.AUTO}
        config = {
            **DEFAULTS,
            **own,
            **plan.config,
            **connection,
            "client.id": plan.member,
            "on_commit": self._committed,
        }
        self._consumer = Consumer(
            {name: value for name, value in config.items() if value is not None}
        )
        self._table = _table(plan)
        self._output: OutputTopic | None = None
        if plan.output:
            self._output = OutputTopic(plan.output, connection, plan.transactional_id)
        self._pool: _Workers | None = None
        if plan.pool is not Pool.NONE:
            self._pool = _Workers(self._work, plan)
        self._stores_later = plan.config.get("enable.auto.offset.store") is False
        self._done = 0
        self._since_commit = 0
        self._last: dict[int, int] = {}

    def __enter__(self) -> _Reader:
        plan = self._plan
        if plan.assigned is not None:
            parts = [TopicPartition(plan.topic, number) for number in plan.assigned]
            self._consumer.assign(self._with_start(parts))
            self._note_partitions(OperationKind.ASSIGN, parts)
            self._update_held(added=parts)
        else:
            topics = [plan.topic, *plan.also]
            self._consumer.subscribe(
                topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool:
            self._pool.close()
        if kind is None:
            self._history_writer.note(self._operation(OperationKind.END, OperationStatus.OK))
        with contextlib.suppress(KafkaException, RuntimeError):
            if self._plan.commit is CommitMode.COMBINED:
                self._commit(synchronous=True)
            self._consumer.close()
        if self._table:
            self._table.close()

    def run(self) -> None:
        plan = self._plan
        began = quiet_since = time.monotonic()
        while not self._stop.is_set():
            if plan.count is not None and self.progress.read >= plan.count:
                return
            if (
                plan.to_end
                and self.progress.assigned
                and self.progress.ends.keys() >= {*self.progress.assigned}
            ):
                return
            batch = self._poll(plan.batch_limit(self.progress.read))
            if batch:
                quiet_since = time.monotonic()
                self._handle(batch)
            elif not self.progress.assigned and time.monotonic() - began < UNASSIGNED_MAX_S:
                # Joining takes seconds: idle time counts from the first assignment.
                quiet_since = time.monotonic()
            elif plan.idle_s is not None and time.monotonic() - quiet_since > plan.idle_s:
                return

    def _poll(self, limit: int) -> list[Message]:
        messages = []
        for message in self._consumer.consume(limit, POLL_S):
            if (error := message.error()) is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self.progress.ends[message.partition() or 0] = message.offset() or 0
                self._history_writer.note(
                    self._operation(
                        OperationKind.POSITION,
                        OperationStatus.OK,
                        topic=message.topic() or "",
                        partition=message.partition(),
                        offset=message.offset(),
                    )
                )
            else:
                self.progress.errors.append(error.name())
                self._history_writer.note(
                    self._operation(
                        OperationKind.READ,
                        OperationStatus.FAIL,
                        note=f"{error.name()}: {error.str()}",
                    )
                )
                if error.fatal() or (
                    error.code() == KafkaError._AUTO_OFFSET_RESET
                    and not self._plan.continue_after_error
                ):
                    self._stop.set()
        return messages

    def _handle(self, batch: Sequence[Message]) -> None:
        plan = self._plan
        for message in batch:
            self._note_record(OperationKind.READ, message)
            self.progress.read += 1
        if plan.commit is CommitMode.BEFORE:
            self._mark(batch)
            self._commit(synchronous=True)
            self._maybe_die(CrashPoint.COMMITTED, len(batch))
        if self._pool:
            for message in batch:
                self._pool.submit(message)
            self._mark(batch)
        else:
            for message in batch:
                self._done += 1
                self._die_on(CrashPoint.READ)
                self._pause()
                self._work(message)
                self._die_on(CrashPoint.WORKED)
                self._mark([message])
                if self._stores_later:
                    self._consumer.store_offsets(message)
                self._since_commit += 1
                if plan.commit_every and self._since_commit >= plan.commit_every:
                    self._commit_as_planned()
        time.sleep(plan.batch_ms / 1000)
        if plan.keep is Keep.TRANSACTION:
            self._commit_transaction()
        elif not plan.commit_every:
            self._commit_as_planned()

    def _work(self, message: Message) -> None:
        if self._plan.work_ms:
            # By position: a record takes equally long, whoever reads it.
            seed = f"{self._plan.seed}-{message.partition()}-{message.offset()}"
            generator = random.Random(seed)  # noqa: S311 - nothing secret
            time.sleep(generator.uniform(0, 2 * self._plan.work_ms) / 1000)
        if self._table and not self._table.write(
            self._plan.topic, message, before_commit=lambda: self._die_on(CrashPoint.WRITING)
        ):
            # Another member has taken over: what it has stored is ahead of this record.
            self._note_record(
                OperationKind.WORK, message, OperationStatus.FAIL, note="the stored offset differs"
            )
            return
        if self._output:
            self._output.write(message)
        worker = threading.current_thread().name if self._pool else ""
        self._note_record(OperationKind.WORK, message, note=worker)

    # --- offsets -------------------------------------------------------------------------------

    def _with_start(self, parts: list[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions with start offsets: from the table, or else the group's commits."""
        if self._plan.from_start:
            return [TopicPartition(part.topic, part.partition, OFFSET_BEGINNING) for part in parts]
        if not self._plan.keep.stores_offset or self._table is None:
            return parts
        known = self._table.offsets(self._plan.topic)
        return [
            TopicPartition(part.topic, part.partition, known.get(part.partition, OFFSET_INVALID))
            for part in parts
        ]

    def _mark(self, batch: Sequence[Message]) -> None:
        for message in batch:
            self._last[message.partition() or 0] = message.offset() or 0

    def _commit_as_planned(self) -> None:
        self._since_commit = 0
        match self._plan.commit:
            case CommitMode.SYNC:
                self._commit(synchronous=True)
                self._die_on(CrashPoint.COMMITTED)
            case CommitMode.ASYNC | CommitMode.COMBINED:
                self._commit(synchronous=False)
                self._die_on(CrashPoint.COMMITTED)
            case _:
                pass

    def _commit(self, *, synchronous: bool) -> None:
        offsets = [
            TopicPartition(self._plan.topic, number, last + 1)
            for number, last in self._last.items()
        ]
        if not offsets:
            return
        began = time.monotonic_ns()
        try:
            if synchronous and self._plan.commits_position:
                offsets = self._consumer.commit(asynchronous=False) or []
                outcome, note = OperationStatus.OK, "sync"
            elif synchronous:
                self._consumer.commit(offsets=offsets, asynchronous=False)
                outcome, note = OperationStatus.OK, "sync"
            else:
                # `_committed` records the response; it may never come.
                self._consumer.commit(offsets=offsets, asynchronous=True)
                outcome, note = OperationStatus.UNKNOWN, "sent"
        except KafkaException as error:
            outcome, note = OperationStatus.FAIL, error.args[0].name()
        took = time.monotonic_ns() - began
        for one in offsets:
            self._note_commit(one, outcome, note, took_ns=took)

    def _commit_transaction(self) -> None:
        """Commit the results of a batch and its offsets together."""
        if self._output is None or not self._last:
            return
        offsets = [
            TopicPartition(self._plan.topic, number, last + 1)
            for number, last in self._last.items()
        ]
        self._output.commit(
            offsets,
            self._consumer.consumer_group_metadata(),
            before_commit=lambda: self._die_on(CrashPoint.WRITING),
        )
        for one in offsets:
            self._note_commit(one, OperationStatus.OK, "transaction")
        self._die_on(CrashPoint.COMMITTED)

    def _committed(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        """Record the responses to automatic and asynchronous commits."""
        for one in offsets:
            outcome, note = OperationStatus.OK, "acknowledged"
            if (fault := error or one.error) is not None:
                outcome, note = OperationStatus.FAIL, fault.name()
            if one.offset >= 0:
                self._note_commit(one, outcome, note)

    # --- assignment ----------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        self._note_partitions(OperationKind.ASSIGN, parts)
        self._update_held(added=parts)
        if self._plan.keep.stores_offset:
            consumer.assign(self._with_start(parts))

    def _revoked(self, _: Consumer, parts: list[TopicPartition]) -> None:
        if self._plan.commit is CommitMode.COMBINED:
            self._commit(synchronous=True)
        self._release(parts)

    # Nothing is committed: another member may have the partitions already.
    def _lost(self, _: Consumer, parts: list[TopicPartition]) -> None:
        self._release(parts)

    def _release(self, parts: list[TopicPartition]) -> None:
        for one in parts:
            self._last.pop(one.partition, None)
            self.progress.ends.pop(one.partition, None)
        self._note_partitions(OperationKind.REVOKE, parts)
        self._update_held(removed=parts)

    def _update_held(
        self, added: Sequence[TopicPartition] = (), removed: Sequence[TopicPartition] = ()
    ) -> None:
        gained, lost = ({(one.topic, one.partition) for one in parts} for parts in (added, removed))
        self.progress.hold(self._plan.topic, (set(self.progress.held) | gained) - lost)

    # --- crashes and history -------------------------------------------------------------------

    def _die_on(self, point: CrashPoint) -> None:
        if self._plan.dies_at is point and self._done >= self._plan.dies_on:
            os.kill(os.getpid(), signal.SIGKILL)

    def _maybe_die(self, point: CrashPoint, coming: int) -> None:
        if self._plan.dies_at is point and self._done + coming >= self._plan.dies_on:
            os.kill(os.getpid(), signal.SIGKILL)

    def _pause(self) -> None:
        """Stop this process, hang without polling, or fail, before the work on a planned record."""
        plan = self._plan
        if plan.stops_on == self._done:
            os.kill(os.getpid(), signal.SIGSTOP)
        if plan.hangs_on == self._done:
            self._note_fault("hangs")
            while not (Path(plan.hangs_until).exists() or self._stop.is_set()):
                time.sleep(HANG_INTERVAL_S)
            self._note_fault("returns")
        if plan.fails_on == self._done:
            self._note_fault("fails")
            raise WorkFailed

    def _note_fault(self, note: str) -> None:
        self._history_writer.note(
            self._operation(OperationKind.FAULT, OperationStatus.OK, note=note)
        )

    def _note_record(
        self,
        kind: OperationKind,
        message: Message,
        outcome: OperationStatus = OperationStatus.OK,
        note: str = "",
    ) -> None:
        key, number = workload.parse(message.value() or b"")
        sender, sequence = workload.parse_headers(message.headers())
        self._history_writer.note(
            self._operation(
                kind,
                outcome,
                note=note,
                key=key,
                number=number,
                topic=message.topic() or "",
                sender=sender,
                sequence=sequence,
                partition=message.partition(),
                offset=message.offset(),
                timestamp_ms=message.timestamp()[1],
            )
        )

    def _note_commit(
        self, place: TopicPartition, outcome: OperationStatus, note: str, **rest: Any
    ) -> None:
        self._history_writer.note(
            self._operation(
                OperationKind.COMMIT,
                outcome,
                partition=place.partition,
                offset=place.offset,
                note=note,
                **rest,
            )
        )

    def _note_partitions(self, kind: OperationKind, parts: Sequence[TopicPartition]) -> None:
        for one in parts:
            self._history_writer.note(
                self._operation(kind, OperationStatus.OK, partition=one.partition)
            )

    def _operation(
        self, kind: OperationKind, outcome: OperationStatus, **rest: Any
    ) -> ClientOperation:
        return ClientOperation(
            kind=kind, outcome=outcome, group=self._plan.group, member=self._plan.member, **rest
        )


def _table(plan: Consuming) -> SqliteTable | None:
    if not plan.keep.is_table:
        return None
    return SqliteTable(
        Path(plan.table),
        unique=UNIQUE_COLUMNS.get(plan.keep, ""),
        with_offset=plan.keep.stores_offset,
        checked=plan.keep is Keep.CHECKED,
    )


class _Workers:
    """A thread pool with one queue for all threads, or one queue per thread selected by key."""

    def __init__(self, work: Callable[[Message], None], plan: Consuming) -> None:
        self._work, self._by_key = work, plan.pool is Pool.BY_KEY
        queues = 1
        if self._by_key:
            queues = POOL_SIZE  # one thread per queue keeps the order within a key
        self._queues: list[queue.SimpleQueue[Message | None]] = [
            queue.SimpleQueue() for _ in range(queues)
        ]
        self._threads = [
            threading.Thread(
                target=self._run, args=(self._queues[number % len(self._queues)],), daemon=True
            )
            for number in range(POOL_SIZE)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, message: Message) -> None:
        index = zlib.crc32(message.key() or b"") % len(self._queues)
        self._queues[index].put(message)

    def close(self) -> None:
        """Process all waiting records and end the threads."""
        for number in range(len(self._threads)):
            self._queues[number % len(self._queues)].put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, waiting: queue.SimpleQueue[Message | None]) -> None:
        while (message := waiting.get()) is not None:
            self._work(message)
