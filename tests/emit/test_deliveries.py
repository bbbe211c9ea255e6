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
    counter: deliveries.DeliveryCounter, on_delivery: deliveries.OnDelivery | None = None
) -> deliveries.Receipt:
    receipt = counter.begin(on_delivery)
    counter.settle(receipt, FAILURE, None)
    return receipt


def test_the_result_of_a_receipt_is_its_delivery() -> None:
    counter = deliveries.DeliveryCounter()
    receipt = counter.begin(None)
    assert not counter.is_settled(counter.mark)
    counter.settle(receipt, None, PLACE)
    assert counter.is_settled(counter.mark)
    assert receipt.result() == PLACE
    assert counter.take_undelivered() == (0, None)


def test_ignored_failures_are_counted_with_the_first_reason() -> None:
    counter = deliveries.DeliveryCounter()
    for _ in range(3):
        failed(counter)
    assert counter.take_undelivered() == (3, FAILURE)
    assert counter.take_undelivered() == (0, None)


def test_a_failure_that_the_caller_received_is_not_raised_again() -> None:
    counter = deliveries.DeliveryCounter()
    with pytest.raises(errors.Undelivered):
        failed(counter).result()
    assert failed(counter).exception() is FAILURE
    assert counter.take_undelivered() == (0, None)


def test_reading_a_failure_twice_counts_once() -> None:
    counter = deliveries.DeliveryCounter()
    answers, ignored = failed(counter), failed(counter)
    for _ in range(2):
        assert answers.exception() is FAILURE
    assert ignored.done()
    assert counter.take_undelivered() == (1, FAILURE)


def test_reading_a_failure_after_the_flush_does_not_affect_the_next_flush() -> None:
    counter = deliveries.DeliveryCounter()
    early = failed(counter)
    assert counter.take_undelivered() == (1, FAILURE)
    failed(counter)
    assert early.exception() is FAILURE
    assert counter.take_undelivered() == (1, FAILURE)


def test_a_callback_receives_failures_and_deliveries() -> None:
    counter, reported = deliveries.DeliveryCounter(), []
    failed(counter, lambda error, delivery: reported.append((error, delivery)))
    receipt = counter.begin(lambda error, delivery: reported.append((error, delivery)))
    counter.settle(receipt, None, PLACE)
    assert reported == [(FAILURE, None), (None, PLACE)]
    assert counter.take_undelivered() == (0, None)


def test_a_failure_counts_as_undelivered_if_the_callback_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(error: errors.Undelivered | None, delivery: deliveries.Delivery | None) -> None:
        raise SystemExit

    counter = deliveries.DeliveryCounter()
    with caplog.at_level(logging.ERROR, "instep.emit"):
        receipt = failed(counter, broken)
    assert "a delivery callback failed" in caplog.text
    assert receipt.done()
    assert counter.take_undelivered() == (1, FAILURE)


def test_a_waiting_caller_receives_the_failure_before_a_flush_can() -> None:
    counter = deliveries.DeliveryCounter()
    receipt = counter.begin(None)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receipt.exception)
        while not receipt.waiters:
            threading.Event().wait(0.001)
        counter.settle(receipt, FAILURE, None)
        assert counter.take_undelivered() == (0, None)
        assert waiting.result(5) is FAILURE


def test_a_failure_counts_as_undelivered_if_the_caller_stopped_waiting() -> None:
    counter = deliveries.DeliveryCounter()
    receipt = counter.begin(None)
    with pytest.raises(concurrent.futures.TimeoutError):
        receipt.result(timeout=0.01)
    counter.settle(receipt, FAILURE, None)
    assert counter.take_undelivered() == (1, FAILURE)


def test_a_receipt_cannot_be_cancelled() -> None:
    counter = deliveries.DeliveryCounter()
    receipt = counter.begin(None)
    assert not receipt.cancel()
    counter.settle(receipt, None, PLACE)
    assert receipt.result() == PLACE


def test_a_receipt_can_be_awaited() -> None:
    counter = deliveries.DeliveryCounter()

    async def wait() -> deliveries.Delivery:
        return await asyncio.wrap_future(failed(counter))

    with pytest.raises(errors.Undelivered):
        asyncio.run(wait())
    assert counter.take_undelivered() == (0, None)


def test_the_reporting_thread_cannot_wait_for_itself() -> None:
    counter = deliveries.DeliveryCounter()
    counter.reporter = threading.get_ident()
    with pytest.raises(RuntimeError, match="wait for itself"):
        counter.begin(None).result()


def test_a_mark_covers_only_the_records_sent_before_it() -> None:
    counter = deliveries.DeliveryCounter()
    first, second = counter.begin(None), counter.begin(None)
    mark = counter.mark
    later = counter.begin(None)
    counter.settle(second, None, PLACE)
    assert not counter.is_settled(mark)
    assert not counter.wait_settled(mark, 0.01)
    assert counter.open_up_to(mark) == 1
    counter.settle(first, None, PLACE)
    assert counter.wait_settled(mark, 0)
    assert not counter.is_settled(counter.mark)
    counter.withdraw(later)
    assert counter.is_settled(counter.mark)


def test_counts_are_right_with_many_threads() -> None:
    counter = deliveries.DeliveryCounter()
    receipts = [counter.begin(None) for _ in range(2000)]

    def ask(receipt: deliveries.Receipt) -> None:
        assert receipt.exception(10) is FAILURE

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, receipt) for receipt in receipts[::2]]
        for receipt in receipts:
            counter.settle(receipt, FAILURE, None)
        for done in answers:
            done.result(20)
    assert counter.take_undelivered() == (1000, FAILURE)


def test_a_receipt_settles_for_all_kinds_of_waiters() -> None:
    """Wait as concurrent.futures does, which needs the locks that a receipt creates late."""
    counter = deliveries.DeliveryCounter()
    first, second = counter.begin(), counter.begin()
    called: list[object] = []
    first.add_done_callback(called.append)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(concurrent.futures.wait, [first, second], 10)
        while second._lock_of_waiters is None:
            threading.Event().wait(0.001)
        counter.settle(first, None, PLACE)
        counter.settle(second, FAILURE, None)
        assert waiting.result(10).not_done == set()
    assert called == [first]
    assert "finished" in repr(first)


def test_awaiting_reports_the_failure_before_a_flush_can() -> None:
    counter = deliveries.DeliveryCounter()
    receipt = counter.begin()

    async def wait() -> None:
        waiting = asyncio.ensure_future(receipt)
        await asyncio.sleep(0)
        await asyncio.to_thread(counter.settle, receipt, FAILURE, None)
        assert counter.take_undelivered() == (0, None)
        with pytest.raises(errors.Undelivered):
            await waiting

    asyncio.run(wait())


def test_a_failure_counts_as_undelivered_if_the_awaiting_task_was_cancelled() -> None:
    counter = deliveries.DeliveryCounter()
    early, late = counter.begin(), counter.begin()

    async def wait() -> None:
        waiting = [asyncio.ensure_future(early), asyncio.ensure_future(late)]
        await asyncio.sleep(0)
        counter.settle(early, FAILURE, None)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        counter.settle(late, FAILURE, None)

    asyncio.run(wait())
    assert counter.take_undelivered() == (2, FAILURE)


def test_waiting_for_space_ends_when_enough_records_are_settled() -> None:
    counter = deliveries.DeliveryCounter()
    receipts = [counter.begin(size=10) for _ in range(4)]
    woken: list[int] = []
    with counter.calling(lambda: woken.append(counter.open), 2):
        for receipt in receipts:
            counter.settle(receipt, None, PLACE)
    assert woken == [2]
    counter.wait_space(0, 0)
    assert counter.open_bytes == 0


def test_a_sender_waits_for_the_turn_of_the_reporter() -> None:
    counter = deliveries.DeliveryCounter()
    counter.reporter = threading.get_ident()
    sender = threading.Thread(target=counter.begin)
    with counter.hold_senders():
        counter.begin()  # the reporter itself, in a callback, does not wait
        sender.start()
    sender.join(30)
    assert counter.sent == 2


def test_a_callback_may_wait_for_a_sender_that_is_held() -> None:
    """Let the turn last until another thread has sent: without a limit both would wait for ever."""
    counter = deliveries.DeliveryCounter()
    with counter.hold_senders():
        sender = threading.Thread(target=counter.begin)
        sender.start()
        sender.join(30)
        assert not sender.is_alive()
        assert not counter._holds_senders, "the next record would wait again"
    with counter.hold_senders():
        assert counter._holds_senders


def test_a_gate_that_somebody_left_closed_only_ends_the_turns() -> None:
    counter = deliveries.DeliveryCounter()
    counter._gate.acquire()
    with counter.hold_senders():
        counter.begin()
    assert counter.open == 1


def test_who_begins_to_wait_ends_a_pause() -> None:
    counter = deliveries.DeliveryCounter()
    receipt = counter.begin()
    for begin_to_wait in (
        lambda: receipt.add_done_callback(lambda _: None),
        lambda: counter.wait_settled(counter.mark, 0),
        lambda: counter.wait_space(0, 0),
    ):
        begin_to_wait()
        counter.pause(600)
