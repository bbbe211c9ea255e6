"""What becomes of a sent record: a delivery or an error, told to whoever asks, and never to nobody.

A `Receipt` is the future of one record. Its failure counts as told when `result()` or `exception()` hands it over or an
`on_delivery` callback takes it. The `Tally` counts the failures that nobody was told of, which `flush` then raises.
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
    """Where the record stands in the log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


OnDelivery = Callable[[errors.Undelivered | None, Delivery | None], None]


class Receipt(concurrent.futures.Future[Delivery]):
    """The future of one sent record. It cannot be cancelled: what is sent is sent."""

    def __init__(self, tally: DeliveryCounter, number: int, on_delivery: OnDelivery | None) -> None:
        super().__init__()
        self.number = number
        self.on_delivery = on_delivery
        self.failed = False
        self.askers = 0
        self.untold_in: int | None = None
        self._tally = tally
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Delivery:
        return self._tally.hand_over(self, super().result, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._tally.hand_over(self, super().exception, timeout)


class DeliveryCounter:
    """What is on its way, and how many failures nobody was told of.

    `reporter` is the thread that settles receipts; it must not wait for one, as nobody else would settle it.
    """

    def __init__(self) -> None:
        self.reporter: int | None = None
        self._changed = threading.Condition()
        self._sent = 0
        self._open: dict[int, Receipt] = {}
        self._round = 0
        self._untold = 0
        self._first_untold: errors.Undelivered | None = None

    def begin(self, on_delivery: OnDelivery | None) -> Receipt:
        """A receipt for a record that is about to be sent."""
        with self._changed:
            self._sent += 1
            receipt = self._open[self._sent] = Receipt(self, self._sent, on_delivery)
        return receipt

    def withdraw(self, receipt: Receipt) -> None:
        """The record was not sent, as its sender learns from an exception."""
        with self._changed:
            self._open.pop(receipt.number, None)
            self._changed.notify_all()

    def settle(
        self, receipt: Receipt, failure: errors.Undelivered | None, delivery: Delivery | None
    ) -> None:
        """Tell what became of the record: to its callback, then to those who wait for the future."""
        told = receipt.on_delivery is not None and _called(receipt.on_delivery, failure, delivery)
        if failure is not None:
            with self._changed:
                receipt.failed = True
                if not told and not receipt.askers:
                    receipt.untold_in = self._round
                    self._untold += 1
                    self._first_untold = self._first_untold or failure
            receipt.set_exception(failure)
        elif delivery is not None:
            receipt.set_result(delivery)
        self.withdraw(receipt)

    def hand_over(
        self, receipt: Receipt, ask: Callable[[float | None], Answer], timeout: float | None
    ) -> Answer:
        """The future's answer; whoever gets a failure here was told."""
        if threading.get_ident() == self.reporter and not receipt.done():
            raise RuntimeError(
                "a delivery callback cannot wait for another delivery: it would wait for itself"
            )
        with self._changed:
            receipt.askers += 1
        try:
            answer = ask(timeout)
        except concurrent.futures.TimeoutError:
            if self._leave(receipt):
                return ask(None)
            raise
        except errors.Undelivered:
            self._leave(receipt)
            raise
        self._leave(receipt)
        return answer

    def take_untold(self) -> tuple[int, errors.Undelivered | None]:
        """Count and first reason of the failures that nobody was told of; the caller tells them now."""
        with self._changed:
            count, first = self._untold, self._first_untold
            self._untold, self._first_untold = 0, None
            self._round += 1
        return count, first if count else None

    @property
    def mark(self) -> int:
        """The number of the last record sent."""
        return self._sent

    def open_up_to(self, mark: int) -> int:
        """How many of the records sent up to the mark are not settled."""
        with self._changed:
            return sum(number <= mark for number in self._open)

    def is_settled(self, mark: int) -> bool:
        with self._changed:
            return self._is_settled(mark)

    def wait_settled(self, mark: int, timeout_s: float) -> bool:
        """Whether everything sent up to the mark is settled in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_settled(mark), timeout_s)

    def wait_change(self, timeout_s: float) -> None:
        """Until a record is settled, or the time is over."""
        with self._changed:
            self._changed.wait(timeout_s)

    def _leave(self, receipt: Receipt) -> bool:
        """An asker goes: whether there is a failure, of which it is told."""
        with self._changed:
            receipt.askers -= 1
            if receipt.failed and receipt.untold_in == self._round:
                self._untold -= 1
            receipt.untold_in = None
            return receipt.failed

    def _is_settled(self, mark: int) -> bool:
        """Receipts are kept in the order of sending, so the first open one decides."""
        return next(iter(self._open), mark + 1) > mark


def _called(
    on_delivery: OnDelivery, failure: errors.Undelivered | None, delivery: Delivery | None
) -> bool:
    try:
        on_delivery(failure, delivery)
    except BaseException:  # whatever it is, the thread that reports must live on
        log.exception("a delivery callback failed")
        return False
    return True
