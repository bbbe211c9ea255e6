"""Test that failures are reported exactly once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading

import pytest

from instep import errors
from instep.emit import deliveries

FAILURE = errors.Undelivered("not taken")
PLACE = deliveries.Delivery("t", 0, 1, 2)


def failed(
    tally: deliveries.DeliveryCounter, on_delivery: deliveries.OnDelivery | None = None
) -> deliveries.Receipt:
    receipt = tally.begin(on_delivery)
    tally.settle(receipt, FAILURE, None)
    return receipt


def test_the_result_of_a_receipt_is_its_delivery() -> None:
    tally = deliveries.DeliveryCounter()
    receipt = tally.begin(None)
    assert not tally.is_settled(tally.mark)
    tally.settle(receipt, None, PLACE)
    assert tally.is_settled(tally.mark)
    assert receipt.result() == PLACE
    assert tally.take_undelivered() == (0, None)


def test_ignored_failures_are_counted_with_the_first_reason() -> None:
    tally = deliveries.DeliveryCounter()
    for _ in range(3):
        failed(tally)
    assert tally.take_undelivered() == (3, FAILURE)
    assert tally.take_undelivered() == (0, None)


def test_a_failure_that_the_caller_received_is_not_raised_again() -> None:
    tally = deliveries.DeliveryCounter()
    with pytest.raises(errors.Undelivered):
        failed(tally).result()
    assert failed(tally).exception() is FAILURE
    assert tally.take_undelivered() == (0, None)


def test_reading_a_failure_twice_counts_once() -> None:
    tally = deliveries.DeliveryCounter()
    asked, ignored = failed(tally), failed(tally)
    for _ in range(2):
        assert asked.exception() is FAILURE
    assert ignored.done()
    assert tally.take_undelivered() == (1, FAILURE)


def test_reading_a_failure_after_the_flush_does_not_affect_the_next_flush() -> None:
    tally = deliveries.DeliveryCounter()
    early = failed(tally)
    assert tally.take_undelivered() == (1, FAILURE)
    failed(tally)
    assert early.exception() is FAILURE
    assert tally.take_undelivered() == (1, FAILURE)


def test_a_callback_receives_failures_and_deliveries() -> None:
    tally, reported = deliveries.DeliveryCounter(), []
    failed(tally, lambda error, delivery: reported.append((error, delivery)))
    receipt = tally.begin(lambda error, delivery: reported.append((error, delivery)))
    tally.settle(receipt, None, PLACE)
    assert reported == [(FAILURE, None), (None, PLACE)]
    assert tally.take_undelivered() == (0, None)


def test_a_failure_counts_as_undelivered_if_the_callback_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(error: errors.Undelivered | None, delivery: deliveries.Delivery | None) -> None:
        raise SystemExit

    tally = deliveries.DeliveryCounter()
    with caplog.at_level(logging.ERROR, "instep.emit"):
        receipt = failed(tally, broken)
    assert "a delivery callback failed" in caplog.text
    assert receipt.done()
    assert tally.take_undelivered() == (1, FAILURE)


def test_a_waiting_caller_receives_the_failure_before_a_flush_can() -> None:
    tally = deliveries.DeliveryCounter()
    receipt = tally.begin(None)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receipt.exception)
        while not receipt.waiters:
            threading.Event().wait(0.001)
        tally.settle(receipt, FAILURE, None)
        assert tally.take_undelivered() == (0, None)
        assert waiting.result(5) is FAILURE


def test_a_failure_counts_as_undelivered_if_the_caller_stopped_waiting() -> None:
    tally = deliveries.DeliveryCounter()
    receipt = tally.begin(None)
    with pytest.raises(concurrent.futures.TimeoutError):
        receipt.result(timeout=0.01)
    tally.settle(receipt, FAILURE, None)
    assert tally.take_undelivered() == (1, FAILURE)


def test_a_receipt_cannot_be_cancelled() -> None:
    tally = deliveries.DeliveryCounter()
    receipt = tally.begin(None)
    assert not receipt.cancel()
    tally.settle(receipt, None, PLACE)
    assert receipt.result() == PLACE


def test_a_receipt_can_be_awaited() -> None:
    tally = deliveries.DeliveryCounter()

    async def wait() -> deliveries.Delivery:
        return await asyncio.wrap_future(failed(tally))

    with pytest.raises(errors.Undelivered):
        asyncio.run(wait())
    assert tally.take_undelivered() == (0, None)


def test_the_reporting_thread_cannot_wait_for_itself() -> None:
    tally = deliveries.DeliveryCounter()
    tally.reporter = threading.get_ident()
    with pytest.raises(RuntimeError, match="wait for itself"):
        tally.begin(None).result()


def test_a_mark_covers_only_the_records_sent_before_it() -> None:
    tally = deliveries.DeliveryCounter()
    first, second = tally.begin(None), tally.begin(None)
    mark = tally.mark
    later = tally.begin(None)
    tally.settle(second, None, PLACE)
    assert not tally.is_settled(mark)
    assert not tally.wait_settled(mark, 0.01)
    assert tally.open_up_to(mark) == 1
    tally.settle(first, None, PLACE)
    assert tally.wait_settled(mark, 0)
    assert not tally.is_settled(tally.mark)
    tally.withdraw(later)
    assert tally.is_settled(tally.mark)


def test_counts_are_right_with_many_threads() -> None:
    tally = deliveries.DeliveryCounter()
    receipts = [tally.begin(None) for _ in range(2000)]

    def ask(receipt: deliveries.Receipt) -> None:
        assert receipt.exception(10) is FAILURE

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, receipt) for receipt in receipts[::2]]
        for receipt in receipts:
            tally.settle(receipt, FAILURE, None)
        for done in asked:
            done.result(20)
    assert tally.take_undelivered() == (1000, FAILURE)
