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

    In the history, in a plain table, in a table with a unique index, or in a table with the offset
    in the same transaction.
    """

    HISTORY = "history"
    TABLE = "table"
    UNIQUE = "unique"
    WITH_OFFSET = "with offset"


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


class Library(enum.StrEnum):
    """The client library.

    Only LIBRDKAFKA supports crashes, tables and pools. KAFKA_PYTHON has the eager sticky assignor.
    SHARE is librdkafka's share consumer, which reads as a member of a share group until it is
    stopped.
    """

    LIBRDKAFKA = "librdkafka"
    KAFKA_PYTHON = "kafka-python"
    SHARE = "share"


class Consuming(msgspec.Struct, frozen=True, kw_only=True, tag="consume"):
    """What to read and how.

    `config` holds settings of the library in addition to the connection; None means the library's
    default. The consumer reads until one of these is true: it has read `count` records; with
    `to_end`, it has reached the end of all its partitions; no record came for `idle_s` after the
    first assignment; it is stopped. With `from_start`, assigned partitions are read from the
    beginning, whatever the group has committed.

    `commit_every` commits after that many records instead of after each batch. The process kills
    itself with -9 at the point `dies_at` of record number `dies_on`. The work takes `work_ms` per
    record on average, plus `batch_ms` per batch. `also` names further topics to subscribe to. A
    partition without a start offset ends the reading unless `continue_after_error` is set.
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
    continue_after_error: bool = False

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
            with _Reader(plan, connection, history_writer, stop, progress) as reader:
                reader.run()


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

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.close()
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
                self._work(message)
                self._die_on(CrashPoint.WORKED)
                self._mark([message])
                if self._stores_later:
                    self._consumer.store_offsets(message)
                self._since_commit += 1
                if plan.commit_every and self._since_commit >= plan.commit_every:
                    self._commit_as_planned()
        time.sleep(plan.batch_ms / 1000)
        if not plan.commit_every:
            self._commit_as_planned()

    def _work(self, message: Message) -> None:
        if self._plan.work_ms:
            # By position: a record takes equally long, whoever reads it.
            seed = f"{self._plan.seed}-{message.partition()}-{message.offset()}"
            generator = random.Random(seed)  # noqa: S311 - nothing secret
            time.sleep(generator.uniform(0, 2 * self._plan.work_ms) / 1000)
        if self._table:
            self._table.write(
                self._plan.topic, message, before_commit=lambda: self._die_on(CrashPoint.WRITING)
            )
        self._note_record(OperationKind.WORK, message)

    # --- offsets -------------------------------------------------------------------------------

    def _with_start(self, parts: list[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions with start offsets: from the table, or else the group's commits."""
        if self._plan.from_start:
            return [TopicPartition(part.topic, part.partition, OFFSET_BEGINNING) for part in parts]
        if self._plan.keep is not Keep.WITH_OFFSET or self._table is None:
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
            if synchronous:
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
        if self._plan.keep is Keep.WITH_OFFSET:
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

    def _note_record(self, kind: OperationKind, message: Message) -> None:
        key, number = workload.parse(message.value() or b"")
        self._history_writer.note(
            self._operation(
                kind,
                OperationStatus.OK,
                key=key,
                number=number,
                partition=message.partition(),
                offset=message.offset(),
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
    if plan.keep is Keep.HISTORY:
        return None
    return SqliteTable(
        Path(plan.table), unique=plan.keep is Keep.UNIQUE, with_offset=plan.keep is Keep.WITH_OFFSET
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
