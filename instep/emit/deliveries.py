"""Deliveries: every failure of a sent record is reported to somebody.

A `Receipt` is the future of one record. Its failure is reported when `result()` or `exception()`
returns it, or an `on_delivery` callback receives it. The `DeliveryCounter` counts the unreported
failures, which `flush` then raises.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

import msgspec

from instep import errors

log = logging.getLogger("instep.emit")

Answer = TypeVar("Answer")


class Delivery(msgspec.Struct, frozen=True):
    """The position of a delivered record in the log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


OnDelivery = Callable[[errors.Undelivered | None, Delivery | None], None]


class Receipt(concurrent.futures.Future[Delivery]):
    """The future of one sent record. It cannot be cancelled."""

    def __init__(
        self, counter: DeliveryCounter, number: int, on_delivery: OnDelivery | None
    ) -> None:
        super().__init__()
        self.number = number
        self.on_delivery = on_delivery
        self.failed = False
        self.waiters = 0
        self.unreported_in: int | None = None
        self._counter = counter
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Delivery:
        """Wait for the delivery and return it; raise Undelivered if it failed."""
        return self._counter.report(self, super().result, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the delivery and return its failure; None if it succeeded."""
        return self._counter.report(self, super().exception, timeout)


class DeliveryCounter:
    """Counts open records and unreported failures.

    `reporter` is the thread that settles receipts; it must not wait for one, because no other
    thread would settle it.
    """

    def __init__(self) -> None:
        self.reporter: int | None = None
        self._changed = threading.Condition()
        self._sent = 0
        self._open: dict[int, Receipt] = {}
        self._round = 0
        self._unreported = 0
        self._first_unreported: errors.Undelivered | None = None

    def begin(self, on_delivery: OnDelivery | None) -> Receipt:
        """Return a receipt for a record that is about to be sent."""
        with self._changed:
            self._sent += 1
            receipt = self._open[self._sent] = Receipt(self, self._sent, on_delivery)
        return receipt

    def withdraw(self, receipt: Receipt) -> None:
        """Remove a record that is settled, or that was not sent."""
        with self._changed:
            self._open.pop(receipt.number, None)
            self._changed.notify_all()

    def settle(
        self, receipt: Receipt, failure: errors.Undelivered | None, delivery: Delivery | None
    ) -> None:
        """Report the outcome of a record to its callback, then to those who wait for it."""
        is_reported = receipt.on_delivery is not None and _called(
            receipt.on_delivery, failure, delivery
        )
        if failure is not None:
            with self._changed:
                receipt.failed = True
                if not is_reported and not receipt.waiters:
                    receipt.unreported_in = self._round
                    self._unreported += 1
                    self._first_unreported = self._first_unreported or failure
            receipt.set_exception(failure)
        elif delivery is not None:
            receipt.set_result(delivery)
        self.withdraw(receipt)

    def report(
        self, receipt: Receipt, wait: Callable[[float | None], Answer], timeout: float | None
    ) -> Answer:
        """Return the future's answer; a failure counts as reported to the caller."""
        if threading.get_ident() == self.reporter and not receipt.done():
            raise RuntimeError(
                "a delivery callback cannot wait for another delivery: it would wait for itself"
            )
        with self._changed:
            receipt.waiters += 1
        try:
            answer = wait(timeout)
        except concurrent.futures.TimeoutError:
            # It may have failed just now. Then `settle` counted on this caller to report it, so
            # return the failure instead of the timeout.
            if self._leave(receipt):
                return wait(None)
            raise
        except errors.Undelivered:
            self._leave(receipt)
            raise
        self._leave(receipt)
        return answer

    def take_undelivered(self) -> tuple[int, errors.Undelivered | None]:
        """Return the number of unreported failures and the first one; the caller reports them."""
        with self._changed:
            count, first = self._unreported, self._first_unreported
            self._unreported, self._first_unreported = 0, None
            self._round += 1
        return count, first if count else None

    @property
    def mark(self) -> int:
        """Return the number of the last record sent."""
        return self._sent

    def open_up_to(self, mark: int) -> int:
        """Return how many of the records sent up to the mark are not settled."""
        with self._changed:
            return sum(number <= mark for number in self._open)

    def is_settled(self, mark: int) -> bool:
        """Return whether all records sent up to the mark are settled."""
        with self._changed:
            return self._is_settled(mark)

    def wait_settled(self, mark: int, timeout_s: float) -> bool:
        """Wait until all records up to the mark are settled; return False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_settled(mark), timeout_s)

    def wait_change(self, timeout_s: float) -> None:
        """Wait until a record is settled, or until the timeout."""
        with self._changed:
            self._changed.wait(timeout_s)

    def _leave(self, receipt: Receipt) -> bool:
        """Stop waiting; return whether there is a failure, which is reported with this."""
        with self._changed:
            receipt.waiters -= 1
            # A flush in between has raised it already: then there is nothing to take back.
            if receipt.failed and receipt.unreported_in == self._round:
                self._unreported -= 1
            receipt.unreported_in = None
            return receipt.failed

    def _is_settled(self, mark: int) -> bool:
        """Return whether all are settled: receipts are in order, so the first open one decides."""
        return next(iter(self._open), mark + 1) > mark


def _called(
    on_delivery: OnDelivery, failure: errors.Undelivered | None, delivery: Delivery | None
) -> bool:
    try:
        on_delivery(failure, delivery)
    except BaseException:  # the reporting thread must survive every error
        log.exception("a delivery callback failed")
        return False
    return True
