"""Deliveries: every failure of a sent record is reported to somebody.

A `Receipt` is the future of one record. Its failure is reported when `result()` or `exception()`
returns it, an `await` raises it, or an `on_delivery` callback receives it. The `DeliveryCounter`
counts the unreported failures, which `flush` then raises.

Most receipts are never waited for, so they cost little: a receipt gets its own lock, and its lists
of waiters, only when somebody asks for them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

import msgspec

from instep import errors
from instep.document.decoding import Record
from instep.document.outcome import Outcome
from instep.emit.outgoing import OutgoingRecord

LATENCIES_KEPT = 10_000
HOLD_MAX_S = 0.02  # the reporter holds a sender no longer than this
RUNNING, FINISHED = "RUNNING", "FINISHED"  # states of a future in concurrent.futures

log = logging.getLogger("instep.emit")

Answer = TypeVar("Answer")


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """The position of a delivered record in the log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


OnDelivery = Callable[[errors.Undelivered | None, Delivery | None], None]


class Outcomes(Protocol):
    """Knows what became of records in the pipeline that follows their topic."""

    def outcome(
        self, topic: str, record: Record, timeout_s: float | None, topic_id: str | None = None
    ) -> Outcome:
        """Wait until the pipeline has reached a record, and return what became of it."""

    async def outcome_async(
        self, topic: str, record: Record, timeout_s: float | None, topic_id: str | None = None
    ) -> Outcome:
        """Do the same without blocking the event loop."""


class FollowedRecord(msgspec.Struct, frozen=True):
    """A sent record, and who knows what becomes of it."""

    outcomes: Outcomes
    sent: OutgoingRecord
    topic_id: str | None = None

    def at(self, delivery: Delivery) -> Record:
        """Return the record as it is in the log."""
        return Record(
            delivery.offset,
            delivery.timestamp_ms,
            self.sent.key,
            self.sent.value,
            delivery.partition,
            tuple(self.sent.headers),
        )


class Receipt(concurrent.futures.Future[Delivery]):
    """The future of one sent record. It can be awaited, but not cancelled."""

    # The state at first. An instance only holds what differs from it.
    _state: str = RUNNING
    _result: Delivery | None = None
    _exception: BaseException | None = None
    _lock_of_waiters: threading.Condition | None = None
    _followed: FollowedRecord | None = None
    on_delivery: OnDelivery | None = None
    failure: errors.Undelivered | None = None
    reported = False
    waiters = 0
    unreported_in: int | None = None
    # Set by the counter, which creates receipts without `__init__`: few of them need the locks and
    # lists of the base class.
    _counter: DeliveryCounter
    number: int
    size: int

    def __call__(self, error: Any, message: Any) -> None:
        """Take the client's answer. As its callback, a receipt needs no further object."""
        self._counter.on_answer(self, error, message)

    def done(self) -> bool:
        """Return whether the record was delivered or has failed."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> Delivery:
        """Wait for the delivery and return it; raise Undelivered if it failed."""
        return self._counter.report(self, super().result, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the delivery and return its failure; None if it succeeded."""
        return self._counter.report(self, super().exception, timeout)

    def applied(self, timeout: float | None = None) -> Outcome:
        """Wait until the pipeline has reached the record, and return what became of it.

        Raise Undelivered if the broker did not accept the record, and NotReached if the broker has
        not answered or the pipeline has not reached it after `timeout` seconds. The publisher must
        know the pipeline.
        """
        followed, began = self._known_pipeline(), time.monotonic()
        try:
            delivery = self.result(timeout)
        except TimeoutError as error:
            raise _not_acknowledged(timeout) from error
        left = _time_left(timeout, began)
        record = followed.at(delivery)
        return followed.outcomes.outcome(delivery.topic, record, left, followed.topic_id)

    async def applied_async(self, timeout: float | None = None) -> Outcome:
        """Do the same as `applied` without blocking the event loop.

        If the waiting task is cancelled, the record stays sent.
        """
        followed, began = self._known_pipeline(), time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                delivery = await self
        except TimeoutError as error:
            raise _not_acknowledged(timeout) from error
        left = _time_left(timeout, began)
        return await followed.outcomes.outcome_async(
            delivery.topic, followed.at(delivery), left, followed.topic_id
        )

    def _known_pipeline(self) -> FollowedRecord:
        """Return the record with its pipeline; raise SettingsError if the publisher knows none."""
        if self._followed is None:
            raise errors.SettingsError(
                "this publisher does not know which pipeline applies its records",
                "give it one: Publisher(..., outcomes=instep.OutcomeReader(settings, pipeline))",
            )
        return self._followed

    def __await__(self) -> Generator[Any, None, Delivery]:
        """Wait for the delivery without blocking the event loop."""
        return self._awaited().__await__()

    async def _awaited(self) -> Delivery:
        loop = asyncio.get_running_loop()
        settled = loop.create_future()

        def wake(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(_finish, settled)

        self._counter.join(self)
        try:
            self.add_done_callback(wake)
            await settled
        except BaseException:
            self._counter.stop_waiting(self)
            raise
        self._counter.leave(self)
        return self.result()

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        """The lock of the base class, created at its first use."""
        return self._lock_of_waiters or self._counter.prepare_waiting(self)

    def _prepare_waiting(self) -> threading.Condition:
        """Create what the base class needs to let others wait."""
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        self._lock_of_waiters = threading.Condition()
        return self._lock_of_waiters


def _not_acknowledged(timeout_s: float | None) -> errors.NotReached:
    return errors.NotReached(
        f"the broker has not acknowledged the record after {timeout_s or 0.0:g} s, so no pipeline"
        " has reached it",
        "the record stays sent: ask again later, and check the broker: instep doctor",
    )


_new_receipt = Receipt.__new__  # half the time of a call of the class


class DeliveryCounter:
    """Counts open records and unreported failures.

    `reporter` is the thread that settles receipts; it must not wait for one, because no other
    thread would settle it.
    """

    def __init__(self) -> None:
        self.reporter: int | None = None
        self.on_answer: Callable[..., None] = self.settle
        self.delivered = 0
        self.failed = 0
        self.last_failure: errors.Undelivered | None = None
        self.last_failure_at = 0.0
        self.latencies_s: deque[float] = deque(maxlen=LATENCIES_KEPT)
        # Reentrant, since a signal handler may use the publisher while the main thread holds it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # Those who wait for space, and for all records up to a mark: with how to wake them.
        self._for_space: list[tuple[int, Callable[[], None]]] = []
        self._for_marks: list[int] = []
        self._is_awaited = False
        self._space_awaited = -1  # at this number of open records, there is somebody to wake
        self._sent = 0
        self._withdrawn = 0
        self._holds_senders = False  # the reporter settles receipts, and senders wait for the gate
        self._gate = threading.Lock()
        # Released when somebody begins to wait. A lock, because unlike an event it may be released
        # by a signal handler that interrupts another release.
        self._hurry = threading.Lock()
        self._hurry.acquire()
        self._open: dict[int, Receipt] = {}
        self._first = 1  # no record before this one is open
        self._flushes = 0
        self._unreported = 0
        self._first_unreported: errors.Undelivered | None = None

    def begin(
        self,
        on_delivery: OnDelivery | None = None,
        followed: FollowedRecord | None = None,
        size: int = 0,
    ) -> Receipt:
        """Return a receipt for a record that is about to be sent."""
        if self._holds_senders:
            self._wait_for_gate()
        receipt = _new_receipt(Receipt)
        receipt._counter, receipt.size = self, size
        with self._lock:
            self._sent = receipt.number = number = self._sent + 1
            self._open[number] = receipt
        if on_delivery is not None:
            receipt.on_delivery = on_delivery
        if followed is not None:
            receipt._followed = followed
        return receipt

    def withdraw(self, receipt: Receipt) -> None:
        """Remove a record that was not sent."""
        with self._lock:
            self._withdrawn += 1
            self._close(receipt)

    def settle(
        self, receipt: Receipt, failure: errors.Undelivered | None, delivery: Delivery | None
    ) -> None:
        """Report the outcome of a record to its callback, then to those who wait for it."""
        on_delivery = receipt.on_delivery
        if failure is None and on_delivery is None:
            # Nearly all records take this way, so it has no further calls.
            with self._lock:
                if receipt._lock_of_waiters is None:
                    self.delivered += 1
                    receipt._result, receipt._state = delivery, FINISHED
                    self._open.pop(receipt.number, None)
                    if self._is_awaited and self._may_wake():
                        self._wake()
                    return
        is_reported = on_delivery is not None and _called(on_delivery, failure, delivery)
        with self._lock:
            if failure is None:
                self.delivered += 1
            else:
                self._count_failure(receipt, failure, is_reported=is_reported)
            if receipt._lock_of_waiters is None:  # nobody waits
                receipt._result = delivery
                if failure is not None:
                    receipt._exception = failure
                receipt._state = FINISHED
                self._close(receipt)
                return
        # This calls functions of the user, so it must not hold the lock.
        if failure is not None:
            receipt.set_exception(failure)
        elif delivery is not None:
            receipt.set_result(delivery)
        with self._lock:
            self._close(receipt)

    @contextlib.contextmanager
    def hold_senders(self) -> Generator[None, None, None]:
        """Let the reporter settle many receipts while senders wait to begin a record.

        If a sender and the reporter both run, they pass Python's lock (the GIL) to each other for
        every record, which takes a fifth of the CPU time of sending it.
        """
        if not self._gate.acquire(blocking=False):
            yield
            return
        self._holds_senders = True
        try:
            yield
        finally:
            self._holds_senders = False
            self._gate.release()

    def _wait_for_gate(self) -> None:
        """Wait until senders may go on, but not long: a callback may wait for this thread."""
        if threading.get_ident() == self.reporter:
            return
        if self._gate.acquire(timeout=HOLD_MAX_S):
            self._gate.release()
        else:
            self._holds_senders = False

    def pause(self, timeout_s: float) -> None:
        """Wait until the timeout, or until somebody begins to wait for records."""
        self._hurry.acquire(timeout=timeout_s)

    def hurry(self) -> None:
        """End a pause: somebody waits."""
        with contextlib.suppress(RuntimeError):  # it is released already
            self._hurry.release()

    def report(
        self, receipt: Receipt, wait: Callable[[float | None], Answer], timeout: float | None
    ) -> Answer:
        """Return the future's answer; a failure counts as reported to the caller."""
        if threading.get_ident() == self.reporter and not receipt.done():
            raise RuntimeError(
                "a delivery callback cannot wait for another delivery: it would wait for itself"
            )
        self.join(receipt)
        try:
            answer = wait(timeout)
        except concurrent.futures.TimeoutError:
            # It may have failed just now. Then `settle` counted on this caller to report it, so
            # return the failure instead of the timeout.
            if self.leave(receipt):
                return wait(None)
            raise
        except errors.Undelivered:
            self.leave(receipt)
            raise
        self.leave(receipt)
        return answer

    def take_undelivered(self) -> tuple[int, errors.Undelivered | None]:
        """Return the number of unreported failures and the first one; the caller reports them."""
        with self._lock:
            count, first = self._unreported, self._first_unreported
            self._unreported, self._first_unreported = 0, None
            self._flushes += 1
        return count, first if count else None

    @property
    def mark(self) -> int:
        """Return the number of the last record sent."""
        return self._sent

    @property
    def sent(self) -> int:
        """Return how many records were sent; those that were refused at once do not count."""
        return self._sent - self._withdrawn

    @property
    def open(self) -> int:
        """Return how many records are not settled."""
        return len(self._open)

    @property
    def open_bytes(self) -> int:
        """Return the bytes of the records that are not settled. It takes a look at each."""
        with self._lock:
            return sum(receipt.size for receipt in self._open.values())

    def open_up_to(self, mark: int) -> int:
        """Return how many of the records sent up to the mark are not settled."""
        with self._lock:
            return sum(number <= mark for number in self._open)

    def is_settled(self, mark: int) -> bool:
        """Return whether all records sent up to the mark are settled."""
        with self._lock:
            return self._is_settled(mark)

    def wait_settled(self, mark: int, timeout_s: float) -> bool:
        """Wait until all records up to the mark are settled; return False after the timeout."""
        self.hurry()
        with self._lock:
            self._for_marks.append(mark)
            self._is_awaited = True
            try:
                return self._changed.wait_for(lambda: self._is_settled(mark), timeout_s)
            finally:
                self._for_marks.remove(mark)

    def wait_space(self, open_max: int, timeout_s: float) -> None:
        """Wait until at most this many records are open, or until the timeout."""
        with self.calling(self._changed.notify_all, open_max), self._lock:
            self._changed.wait_for(lambda: len(self._open) <= open_max, timeout_s)

    @contextlib.contextmanager
    def calling(self, wake: Callable[[], None], open_max: int) -> Generator[None, None, None]:
        """Call a function once at most this many records are open. It must not wait."""
        entry = (open_max, wake)
        self.hurry()
        with self._lock:
            self._for_space.append(entry)
            self._wake()
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._for_space.remove(entry)

    def join(self, receipt: Receipt) -> None:
        """Note that somebody waits for a receipt, who will report its failure."""
        with self._lock:
            receipt.waiters += 1

    def leave(self, receipt: Receipt) -> bool:
        """Stop waiting; return whether there is a failure, which is reported with this."""
        with self._lock:
            receipt.waiters -= 1
            # A flush in between has raised it already: then there is nothing to take back.
            if receipt.failure is not None and receipt.unreported_in == self._flushes:
                self._unreported -= 1
            receipt.unreported_in = None
            receipt.reported = receipt.failure is not None
            return receipt.reported

    def stop_waiting(self, receipt: Receipt) -> None:
        """Stop waiting without reporting: a failure now counts as unreported."""
        with self._lock:
            receipt.waiters -= 1
            is_counted = receipt.reported or receipt.unreported_in is not None
            if receipt.failure is not None and not is_counted and not receipt.waiters:
                self._count_unreported(receipt, receipt.failure)

    def prepare_waiting(self, receipt: Receipt) -> threading.Condition:
        """Let others wait for a receipt, unless it is prepared already."""
        self.hurry()
        with self._lock:
            return receipt._lock_of_waiters or receipt._prepare_waiting()

    def abandon(self, failure: errors.Undelivered) -> None:
        """Fail all open receipts in a process that inherited them: no thread settles them here.

        A thread that does not exist in this process may have held the locks, so replace them.
        """
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._gate, self._holds_senders = threading.Lock(), False
        self._for_space.clear()
        self._for_marks.clear()
        for receipt in self._open.values():
            receipt._lock_of_waiters = None
            receipt._exception, receipt._state = failure, FINISHED
        self._open.clear()

    def _close(self, receipt: Receipt) -> None:
        self._open.pop(receipt.number, None)
        if self._is_awaited and self._may_wake():
            self._wake()

    def _may_wake(self) -> bool:
        """Return False if the last record that was settled cannot end anybody's waiting."""
        return len(self._open) <= self._space_awaited or (
            bool(self._for_marks) and self._first not in self._open
        )

    def _wake(self) -> None:
        """Wake those for whom there is space, once, and those whose records are settled."""
        count = len(self._open)
        due = [entry for entry in self._for_space if count <= entry[0]]
        for entry in due:
            self._for_space.remove(entry)
            entry[1]()
        if self._for_marks and self._is_settled(min(self._for_marks)):
            self._changed.notify_all()
        self._is_awaited = bool(self._for_space or self._for_marks)
        self._space_awaited = max((entry[0] for entry in self._for_space), default=-1)

    def _count_failure(
        self, receipt: Receipt, failure: errors.Undelivered, *, is_reported: bool
    ) -> None:
        self.failed += 1
        self.last_failure, self.last_failure_at = failure, time.monotonic()
        receipt.failure, receipt.reported = failure, is_reported
        if not is_reported and not receipt.waiters:
            self._count_unreported(receipt, failure)

    def _count_unreported(self, receipt: Receipt, failure: errors.Undelivered) -> None:
        receipt.unreported_in = self._flushes
        self._unreported += 1
        self._first_unreported = self._first_unreported or failure

    def _is_settled(self, mark: int) -> bool:
        """Return whether all are settled. The first open number only increases, so keep it.

        The first key of a dictionary would do, but finding it takes longer the more records were
        removed before it.
        """
        first = self._first
        while first <= mark and first not in self._open:
            first += 1
        self._first = first
        return first > mark


def raise_undelivered(counter: DeliveryCounter, topic: str) -> None:
    """Raise the failures that nobody has reported; do nothing if there are none."""
    count, first = counter.take_undelivered()
    if first is not None:
        records = "1 record was" if count == 1 else f"{count} records were"
        raise errors.Undelivered(
            f"{records} not delivered to topic {topic!r}: {first.what}", first.remedy
        ) from first


def _called(
    on_delivery: OnDelivery, failure: errors.Undelivered | None, delivery: Delivery | None
) -> bool:
    try:
        on_delivery(failure, delivery)
    except BaseException:  # the reporting thread must survive every error
        log.exception("a delivery callback failed")
        return False
    return True


def _time_left(timeout: float | None, began: float) -> float | None:
    return None if timeout is None else max(0.0, timeout - (time.monotonic() - began))


def _finish(settled: asyncio.Future[None]) -> None:
    if not settled.done():
        settled.set_result(None)
