"""A consumer of any sort: subscribed or assigned, each way to commit, each place for the offset, a thread pool or none.

The work is a line in the history, or a row in a SQLite table, which may have a unique index, or the offset beside it.
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
    """When the position is committed. Combined is asynchronous in the loop, synchronous at the end and when partitions go."""

    AUTO = "auto"
    BEFORE = "before the work"
    SYNC = "sync"
    ASYNC = "async"
    COMBINED = "combined"
    NEVER = "never"


class Keep(enum.StrEnum):
    """Where the work shows: the history, a plain table, one with a unique index, one with the offset in the same transaction."""

    HISTORY = "history"
    TABLE = "table"
    UNIQUE = "unique"
    WITH_OFFSET = "with offset"


class Pool(enum.StrEnum):
    NONE = "none"
    BY_RECORD = "by record"
    BY_KEY = "by key"


class CrashPoint(enum.StrEnum):
    """Where a consumer can be made to die."""

    READ = "after the read"
    WRITING = "before the row's commit"
    WORKED = "after the work"
    COMMITTED = "after the commit"


class Library(enum.StrEnum):
    """Whose client it is. Only librdkafka's dies, keeps a table or has a pool; the Python one has the eager sticky assignor.
    Librdkafka's share consumer reads as a member of a share group, until told to stop."""

    LIBRDKAFKA = "librdkafka"
    KAFKA_PYTHON = "kafka-python"
    SHARE = "share"


class Consuming(msgspec.Struct, frozen=True, kw_only=True, tag="consume"):
    """What to read and how. `config` is the library's, on top of what reaches the cluster; None leaves a setting to its default.

    Reads until `count` records were read, until it has been `to_end` of every partition it has, until nothing came for `idle_s`
    after the first assignment, or until told to stop. Assigned partitions are read `from_start`, whatever the group has
    committed, or from where it is.
    `commit_every` commits the offsets of that many records instead of whole batches. The process dies with -9 at `dies_at` of the
    `dies_on`-th record.
    The work on a record takes `work_ms` on average, that on a batch `batch_ms` on top. `also` are further topics to subscribe
    to. A partition without a place to start ends the reading, unless it `continue_after_error`.
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


class Counted(msgspec.Struct):
    """What a consumer has done so far, for whoever watches it in the same process. `held` are places of all its topics;
    `ends` are the offsets at which it found nothing more to read."""

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
    counted: Counted | None = None,
) -> None:
    """Read and work, and note all of it."""
    stop, counted = stop or threading.Event(), counted or Counted()
    match plan.library:
        case Library.KAFKA_PYTHON:
            from instep_lab.clients import pythonic

            pythonic.consume(plan, connection, history_writer, stop, counted)
        case Library.SHARE:
            from instep_lab.clients import sharing

            sharing.consume(plan, connection, history_writer, stop, counted)
        case _:
            with _Reader(plan, connection, history_writer, stop, counted) as reader:
                reader.run()


class _Reader:
    def __init__(
        self,
        plan: Consuming,
        connection: Mapping[str, Any],
        history_writer: HistoryWriter,
        stop: threading.Event,
        counted: Counted,
    ) -> None:
        self._plan, self._history_writer, self._stop, self.counted = (
            plan,
            history_writer,
            stop,
            counted,
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
        self._pool = _Workers(self._work, plan) if plan.pool is not Pool.NONE else None
        self._stores_later = plan.config.get("enable.auto.offset.store") is False
        self._done = 0
        self._since_commit = 0
        self._last: dict[int, int] = {}

    def __enter__(self) -> _Reader:
        plan = self._plan
        if plan.assigned is not None:
            parts = [TopicPartition(plan.topic, number) for number in plan.assigned]
            self._consumer.assign(self._placed(parts))
            self._note_partitions(OperationKind.ASSIGN, parts)
            self._count_held(added=parts)
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
            if plan.count is not None and self.counted.read >= plan.count:
                return
            if (
                plan.to_end
                and self.counted.assigned
                and self.counted.ends.keys() >= {*self.counted.assigned}
            ):
                return
            room = (
                plan.batch
                if plan.count is None
                else min(plan.batch, plan.count - self.counted.read)
            )
            batch = self._poll(room)
            if batch:
                quiet_since = time.monotonic()
                self._handle(batch)
            elif not self.counted.assigned and time.monotonic() - began < UNASSIGNED_MAX_S:
                quiet_since = time.monotonic()
            elif plan.idle_s is not None and time.monotonic() - quiet_since > plan.idle_s:
                return

    def _poll(self, room: int) -> list[Message]:
        found = []
        for message in self._consumer.consume(room, POLL_S):
            if (error := message.error()) is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self.counted.ends[message.partition() or 0] = message.offset() or 0
            else:
                self.counted.errors.append(error.name())
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
        return found

    def _handle(self, batch: Sequence[Message]) -> None:
        plan = self._plan
        for message in batch:
            self._note_record(OperationKind.READ, message)
            self.counted.read += 1
        if plan.commit is CommitMode.BEFORE:
            self._mark(batch)
            self._commit(synchronous=True)
            self._maybe_die(CrashPoint.COMMITTED, len(batch))
        if self._pool:
            for message in batch:
                self._pool.hand(message)
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
            drawn = random.Random(f"{self._plan.seed}-{message.partition()}-{message.offset()}")  # noqa: S311 - nothing secret
            time.sleep(drawn.uniform(0, 2 * self._plan.work_ms) / 1000)
        if self._table:
            self._table.write(
                self._plan.topic, message, before_commit=lambda: self._die_on(CrashPoint.WRITING)
            )
        self._note_record(OperationKind.WORK, message)

    # --- the position ----------------------------------------------------------------------------------

    def _placed(self, parts: list[TopicPartition]) -> list[TopicPartition]:
        """Where each partition is read from: what the table knows, else what the group has committed."""
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
        outcome, note = OperationStatus.OK, "sync" if synchronous else "sent"
        try:
            if synchronous:
                self._consumer.commit(offsets=offsets, asynchronous=False)
            else:
                self._consumer.commit(offsets=offsets, asynchronous=True)
                outcome = OperationStatus.UNKNOWN
        except KafkaException as error:
            outcome, note = OperationStatus.FAIL, error.args[0].name()
        took = time.monotonic_ns() - began
        for one in offsets:
            self._history_writer.note(
                self._operation(
                    OperationKind.COMMIT,
                    outcome,
                    partition=one.partition,
                    offset=one.offset,
                    took_ns=took,
                    note=note,
                )
            )

    def _committed(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        """Answers to automatic and asynchronous commits."""
        for one in offsets:
            fault = error or one.error
            if one.offset >= 0:
                self._history_writer.note(
                    self._operation(
                        OperationKind.COMMIT,
                        OperationStatus.FAIL if fault else OperationStatus.OK,
                        partition=one.partition,
                        offset=one.offset,
                        note=fault.name() if fault else "answered",
                    )
                )

    # --- partitions come and go ------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, parts: list[TopicPartition]) -> None:
        self._note_partitions(OperationKind.ASSIGN, parts)
        self._count_held(added=parts)
        if self._plan.keep is Keep.WITH_OFFSET:
            consumer.assign(self._placed(parts))

    def _revoked(self, _: Consumer, parts: list[TopicPartition]) -> None:
        if self._plan.commit is CommitMode.COMBINED:
            self._commit(synchronous=True)
        self._let_go(parts)

    def _lost(self, _: Consumer, parts: list[TopicPartition]) -> None:
        self._let_go(parts)

    def _let_go(self, parts: list[TopicPartition]) -> None:
        for one in parts:
            self._last.pop(one.partition, None)
            self.counted.ends.pop(one.partition, None)
        self._note_partitions(OperationKind.REVOKE, parts)
        self._count_held(removed=parts)

    def _count_held(
        self, added: Sequence[TopicPartition] = (), removed: Sequence[TopicPartition] = ()
    ) -> None:
        came, went = ({(one.topic, one.partition) for one in parts} for parts in (added, removed))
        self.counted.hold(self._plan.topic, (set(self.counted.held) | came) - went)

    # --- dying, noting ---------------------------------------------------------------------------------

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
    """A thread pool: one queue for all, or one for each thread, chosen by the record's key."""

    def __init__(self, work: Callable[[Message], None], plan: Consuming) -> None:
        self._work, self._by_key = work, plan.pool is Pool.BY_KEY
        self._queues: list[queue.SimpleQueue[Message | None]] = [
            queue.SimpleQueue() for _ in range(POOL_SIZE if self._by_key else 1)
        ]
        self._threads = [
            threading.Thread(
                target=self._run, args=(self._queues[number % len(self._queues)],), daemon=True
            )
            for number in range(POOL_SIZE)
        ]
        for thread in self._threads:
            thread.start()

    def hand(self, message: Message) -> None:
        chosen = zlib.crc32(message.key() or b"") % len(self._queues)
        self._queues[chosen].put(message)

    def close(self) -> None:
        """Work off what is waiting."""
        for number in range(len(self._threads)):
            self._queues[number % len(self._queues)].put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, waiting: queue.SimpleQueue[Message | None]) -> None:
        while (message := waiting.get()) is not None:
            self._work(message)
