"""A configurable publisher: acks level, delivery mode, idempotence and transactions."""

from __future__ import annotations

import enum
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from instep_lab import workload
from instep_lab.clients.library import Library
from instep_lab.history import ClientOperation, HistoryWriter, OperationKind, OperationStatus

# errors after which the record is certainly not in the log; after any other error it may be
NOT_WRITTEN = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.INVALID_REQUIRED_ACKS,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}

WARM_UP_PART = 4  # the round that warms up sends a quarter of the records
BLOCKED = "send() blocked"
BLOCKED_NS = 500_000_000  # a call of send that takes longer is recorded


class DeliveryMode(enum.StrEnum):
    """How the sender learns the outcome: not at all, by waiting for each record, or by callback."""

    FORGET = "forget"
    WAIT = "wait"
    CALLBACK = "callback"


class KeyEncoding(enum.StrEnum):
    """How key 7 is encoded: k7, 7, or as a four-byte big-endian integer like Java's serializer."""

    NAME = "name"
    DIGITS = "digits"
    INTEGER = "integer"


class Publishing(msgspec.Struct, frozen=True, kw_only=True, tag="publish"):
    """What to send and how.

    `config` holds settings of the library in addition to the connection. The keys are k0, k1, …, or
    begin with the number `first_key`. With `by_number`, key kN goes to partition N modulo that
    number. A transaction holds `transaction` records, and every `abort_every`-th transaction is
    aborted. `warm` waits for the acknowledgement of the first record, so that the time to connect
    does not count. The process kills itself with -9 after `dies_after` records were handed to the
    client. With `note_retries`, the history has a fault for each retry that the client reports.
    With `sampled`, it has only the first and the last operation of each kind, for measurements.
    """

    topic: str
    count: int
    keys: int = 10
    seed: int | str = 0
    size: int = 100
    first: int = 0
    first_key: int = 0
    keyed: bool = True
    encoding: KeyEncoding = KeyEncoding.NAME
    by_number: int | None = None
    config: dict[str, Any] = {}
    mode: DeliveryMode = DeliveryMode.CALLBACK
    flush: bool = True
    flush_timeout_s: float = 60.0
    per_s: float | None = None
    warm: bool = False
    transaction: int | None = None
    abort_every: int | None = None
    dies_after: int | None = None
    timestamp_ms: int | None = None
    note_retries: bool = False
    sampled: bool = False
    library: Library = Library.LIBRDKAFKA
    member: str = "publisher"

    @property
    def learns_offsets(self) -> bool:
        """Whether the sender hears where each record is: not without acknowledgements."""
        return self._setting("acks") != "0" and self.mode is not DeliveryMode.FORGET

    @property
    def sets_timestamps(self) -> bool:
        """Whether the clock of the sender gives each record its timestamp."""
        return self.timestamp_ms is None

    @property
    def idempotent(self) -> bool:
        return self._setting("enable.idempotence") == "true"

    def _setting(self, name: str) -> str:
        return str(self.config.get(name, DEFAULTS[name])).lower()


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A producer whose speed is measured: how many records it sends at full speed and paced."""

    name: str
    count: int
    paced: int = 0
    paced_per_s: float = 1_000
    config: dict[str, Any] = {}
    mode: DeliveryMode = DeliveryMode.CALLBACK


class Measuring(msgspec.Struct, frozen=True, kw_only=True, tag="measure"):
    """How fast producers are: each sends at full speed, and then at a steady rate, in turns.

    There is no history: writing it would be measured too. One more round, which comes first,
    warms up and does not count.
    """

    topic: str
    variants: list[Variant]
    rounds: int
    size: int = 100
    library: Library = Library.LIBRDKAFKA
    member: str = "measured"

    @property
    def sends(self) -> int:
        """The number of records that all rounds send.

        Each producer sends one record to connect, and the round that warms up sends a quarter.
        """
        warm_up = sum(1 + one.count // WARM_UP_PART for one in self.variants)
        return warm_up + self.rounds * sum(1 + one.count + one.paced for one in self.variants)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer achieved in one round: records per second, and ms to the answer."""

    variant: str
    per_s: float
    median_ms: float | None = None
    late_ms: float | None = None
    failed: int = 0


# safe unless a trial says otherwise: with the client's own defaults, retries reorder records
DEFAULTS: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": 1_000_000,
    "log_level": 0,  # errors are part of a trial, and the history has them
}


def publish(
    plan: Publishing,
    connection: Mapping[str, Any],
    history_writer: HistoryWriter,
    stop: threading.Event | None = None,
) -> None:
    """Send all records, or until stopped, and record the outcome of each."""
    sender = _Sender(plan, connection, history_writer)
    records = workload.records(
        plan.seed, plan.count, plan.keys, plan.size, plan.first, plan.first_key
    )
    began = time.monotonic()
    for number, record in enumerate(records):
        if stop is not None and stop.is_set():
            break
        if plan.per_s and (ahead := number / plan.per_s - (time.monotonic() - began)) > 0:
            sender.serve(ahead)
        sender.send(record)
        if plan.warm and number == 0:
            sender.wait()
            began = time.monotonic()
        if plan.dies_after == number + 1:
            os.kill(os.getpid(), signal.SIGKILL)
    sender.end()


def rejection(config: Mapping[str, Any]) -> str | None:
    """Return why the client rejects these settings; None if it accepts them."""
    try:
        Producer({**DEFAULTS, "bootstrap.servers": "", **config})
    except KafkaException as error:
        return str(error.args[0].str())
    return None


class _RetryHandler(logging.Handler):
    """Records in the history what librdkafka's log says about rejected requests."""

    def __init__(self, history_writer: HistoryWriter, member: str) -> None:
        super().__init__()
        self._history_writer, self._member = history_writer, member

    def emit(self, record: logging.LogRecord) -> None:
        _, found, error = record.getMessage().partition(" encountered error: ")
        if found:
            self._history_writer.note(
                ClientOperation(
                    kind=OperationKind.FAULT,
                    outcome=OperationStatus.FAIL,
                    member=self._member,
                    note=error,
                )
            )


class _Sender:
    def __init__(
        self, plan: Publishing, connection: Mapping[str, Any], history_writer: HistoryWriter
    ) -> None:
        self._plan, self._history_writer = plan, history_writer
        config = {**DEFAULTS, **plan.config, **connection}
        if plan.mode is DeliveryMode.FORGET:
            # all that such a sender may learn of is an error of the client as a whole
            config["error_cb"] = lambda error: self._note_fault(error.name())
        if plan.note_retries:
            config |= {"debug": "msg", "log_level": 7, "logger": self._retry_logger()}
        self._producer = Producer(config)
        self._in_transaction = 0
        self._transactions = 0
        self._id = uuid.uuid4().hex[:8]
        self._handed_over = 0
        self._open: set[tuple[str, int]] = set()
        if plan.transaction:
            self._producer.init_transactions(30)

    def _retry_logger(self) -> logging.Logger:
        """Return a logger that records the errors that librdkafka retries."""
        logger = logging.Logger("librdkafka", logging.DEBUG)  # noqa: LOG001 - not for others
        logger.addHandler(_RetryHandler(self._history_writer, self._plan.member))
        return logger

    def send(self, record: workload.WorkloadRecord) -> None:
        plan = self._plan
        if plan.transaction and self._in_transaction == 0:
            self._producer.begin_transaction()
            self._transactions += 1
        began, began_ms = time.monotonic_ns(), time.time_ns() // 1_000_000
        place: dict[str, Any] = {}
        if plan.by_number is not None:
            place["partition"] = _key_number(record) % plan.by_number
        if plan.timestamp_ms is not None:
            place["timestamp"] = plan.timestamp_ms
        if plan.keyed:
            place["key"] = _encode_key(record, plan.encoding)
        self._open.add((record.key, record.number))
        headers = workload.headers(self._id, self._handed_over)
        self._handed_over += 1
        if plan.mode is not DeliveryMode.FORGET:
            place["on_delivery"] = self._noter(record, began, began_ms)
        while True:
            try:
                self._producer.produce(plan.topic, record.value, headers=headers, **place)
                break
            except BufferError:  # the queue is full until deliveries are reported
                self._producer.poll(0.05)
            except KafkaException as error:
                # after a fatal error the client accepts no more records
                self._open.discard((record.key, record.number))
                self._note(record.key, record.number, OperationStatus.FAIL, error.args[0].name())
                return
        self._note_blocked(time.monotonic_ns() - began)
        if plan.mode is DeliveryMode.WAIT:
            self.wait()
        else:
            self._producer.poll(0)
        if plan.transaction:
            self._in_transaction += 1
            if self._in_transaction == plan.transaction:
                self._end_transaction()

    def wait(self) -> None:
        """Wait until every record has an outcome; record what the client reports as undelivered."""
        left = self._producer.flush(self._plan.flush_timeout_s)
        if left and self._plan.mode is DeliveryMode.FORGET:
            self._note_fault(f"flush() left {left} records")

    def serve(self, s: float) -> None:
        """Handle delivery reports for this time, in which there is nothing to send."""
        until = time.monotonic() + s
        # poll returns after the first reports, not at the end of the time.
        while (left := until - time.monotonic()) > 0:
            self._producer.poll(left)

    def end(self) -> None:
        """End the last transaction and flush; records without an outcome by then are unknown."""
        if self._in_transaction:
            self._end_transaction()
        if self._plan.flush:
            self.wait()
        why = "no delivery report"
        if self._plan.mode is DeliveryMode.FORGET:
            why = "fire and forget"
        for key, number in sorted(self._open):
            self._note(key, number, OperationStatus.UNKNOWN, note=why)
        self._open.clear()

    def _end_transaction(self) -> None:
        name = self._transaction
        aborts = (
            self._plan.abort_every is not None and self._transactions % self._plan.abort_every == 0
        )
        began = time.monotonic_ns()
        try:
            if aborts:
                # Without the flush, most records would be dropped unsent, and a reader of
                # uncommitted data would have nothing to find.
                self._producer.flush(self._plan.flush_timeout_s)
                self._producer.abort_transaction(30)
                outcome = OperationStatus.FAIL
            else:
                self._producer.commit_transaction(30)
                outcome = OperationStatus.OK
        except KafkaException as error:
            outcome = OperationStatus.UNKNOWN
            self._history_writer.note(
                ClientOperation(
                    kind=OperationKind.FAULT, outcome=OperationStatus.FAIL, note=str(error.args[0])
                )
            )
        self._in_transaction = 0
        took = time.monotonic_ns() - began
        self._history_writer.note(
            ClientOperation(
                kind=OperationKind.COMMIT,
                outcome=outcome,
                member=self._plan.member,
                transaction=name,
                took_ns=took,
            )
        )

    @property
    def _transaction(self) -> str | None:
        if not self._plan.transaction:
            return None
        return f"{self._plan.member}-{self._transactions}"

    def _noter(
        self, record: workload.WorkloadRecord, began: int, began_ms: int
    ) -> Callable[[KafkaError | None, Message], None]:
        transaction, plan_learns = self._transaction, self._plan.learns_offsets

        def note(error: KafkaError | None, message: Message) -> None:
            self._open.discard((record.key, record.number))
            ended = time.monotonic_ns()
            self._history_writer.note(
                ClientOperation(
                    kind=OperationKind.SEND,
                    outcome=outcome_of(error),
                    at_ns=ended,
                    took_ns=ended - began,
                    member=self._plan.member,
                    key=record.key,
                    number=record.number,
                    topic=self._plan.topic,
                    partition=message.partition(),
                    # Without a response, the client makes offsets up.
                    offset=message.offset() if error is None and plan_learns else None,
                    timestamp_ms=began_ms,
                    transaction=transaction,
                    note=error.name() if error else "",
                )
            )

        return note

    def _note_blocked(self, took_ns: int) -> None:
        if took_ns > BLOCKED_NS:
            self._history_writer.note(
                ClientOperation(kind=OperationKind.FAULT, took_ns=took_ns, note=BLOCKED)
            )

    def _note_fault(self, what: str) -> None:
        self._history_writer.note(
            ClientOperation(
                kind=OperationKind.FAULT,
                outcome=OperationStatus.FAIL,
                member=self._plan.member,
                note=what,
            )
        )

    def _note(self, key: str, number: int, outcome: OperationStatus, note: str = "") -> None:
        self._history_writer.note(
            ClientOperation(
                kind=OperationKind.SEND,
                outcome=outcome,
                member=self._plan.member,
                key=key,
                number=number,
                transaction=self._transaction,
                note=note,
            )
        )


def _key_number(record: workload.WorkloadRecord) -> int:
    return int(record.key.removeprefix("k"))


def _encode_key(record: workload.WorkloadRecord, encoding: KeyEncoding) -> bytes:
    return encoded(_key_number(record), encoding)


def encoded(number: int, encoding: KeyEncoding) -> bytes:
    """Return the bytes of the key with this number."""
    match encoding:
        case KeyEncoding.NAME:
            return f"k{number}".encode()
        case KeyEncoding.DIGITS:
            return str(number).encode()
        case KeyEncoding.INTEGER:
            return number.to_bytes(4, "big")


def outcome_of(error: KafkaError | None) -> OperationStatus:
    """Return ok, fail, or unknown after an error with which the record may be in the log."""
    if error is None:
        return OperationStatus.OK
    if error.code() in NOT_WRITTEN:
        return OperationStatus.FAIL
    return OperationStatus.UNKNOWN
