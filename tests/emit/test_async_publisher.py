"""Test the publisher for asyncio on a real broker."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from confluent_kafka import Message

from instep import errors
from instep.emit import AsyncPublisher, StatusEvent
from instep.local.broker import LocalCluster

Read = Callable[..., list[Message]]
TOO_LARGE = b"x" * 2_000_000


def event(number: int, document: str = "d-1") -> StatusEvent:
    return StatusEvent(document=document, status="PRINTED", version=number)


def versions(messages: list[Message]) -> list[int]:
    return [json.loads(message.value() or b"{}")["version"] for message in messages]


def test_sending_returns_the_delivery_and_leaving_the_block_delivers_the_rest(
    broker: LocalCluster, topic: str, read_all: Read
) -> None:
    async def publish() -> None:
        async with AsyncPublisher(broker.bootstrap, topic) as publisher:
            assert [(await publisher.send(event(number))).offset for number in range(3)] == [
                0,
                1,
                2,
            ]
            for number in range(3, 1000):
                await publisher.enqueue(event(number))
            receipt = await publisher.enqueue(event(1000))
            assert (await receipt).offset == 1000
            assert (await publisher.delete("d-2")).topic == topic
            assert (await publisher.send_raw(b"d-2", b'{"version": 1}')).topic == topic
            await publisher.flush()
            found = publisher.metrics()
            assert (found.sent, found.delivered, found.open) == (1003, 1003, 0)
            await publisher.enqueue(event(1001))

    asyncio.run(publish())
    sent = [message for message in read_all(topic) if message.key() == b"d-1"]
    assert versions(sent) == list(range(1002))


def test_many_tasks_share_a_small_queue_and_the_event_loop_goes_on(
    broker: LocalCluster, topic: str, read_all: Read
) -> None:
    """Let the queue be full nearly always: a task that counts shows that the loop goes on."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def publish() -> None:
        counting = asyncio.create_task(count())
        async with AsyncPublisher(
            broker.bootstrap, topic, queue_buffering_max_messages=10, linger_ms=20
        ) as publisher:

            async def send(document: str) -> None:
                for number in range(20):
                    await publisher.enqueue(event(number, document))

            async with asyncio.TaskGroup() as tasks:
                for task in range(10):
                    tasks.create_task(send(f"d-{task}"))
        counting.cancel()

    asyncio.run(publish())
    found: dict[bytes, list[int]] = {}
    for message in read_all(topic):
        found.setdefault(message.key() or b"", []).extend(versions([message]))
    assert found == {f"d-{task}".encode(): list(range(20)) for task in range(10)}
    assert turns > 200


def test_a_queue_that_stays_full_is_reported_after_the_time(
    broker: LocalCluster, topic: str
) -> None:
    async def publish() -> None:
        async with AsyncPublisher(
            broker.bootstrap,
            topic,
            block_timeout_s=0.1,
            linger_ms=1000,
            queue_buffering_max_messages=1,
        ) as publisher:
            await publisher.enqueue(event(1))
            with pytest.raises(errors.Undelivered, match=r"no space in the queue.* after 0\.1 s"):
                await publisher.enqueue(event(2))

    asyncio.run(publish())


def test_a_cancelled_task_leaves_its_record_sent(
    broker: LocalCluster, topic: str, read_all: Read
) -> None:
    async def publish() -> None:
        async with AsyncPublisher(broker.bootstrap, topic, linger_ms=300) as publisher:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(publisher.send(event(1)), 0.01)
            assert publisher.metrics().open == 1

    asyncio.run(publish())
    assert versions(read_all(topic)) == [1]


def test_failures_are_raised_once_to_the_task_or_to_the_flush(
    broker: LocalCluster, topic: str
) -> None:
    async def publish() -> None:
        async with AsyncPublisher(broker.bootstrap, topic) as publisher:
            with pytest.raises(errors.Undelivered, match="document 'a' is too large"):
                await publisher.send_raw(b"a", TOO_LARGE)
            await publisher.flush()
            await publisher.enqueue_raw(b"b", TOO_LARGE)
            with pytest.raises(errors.Undelivered, match=r"1 record was not delivered.*'b'"):
                await publisher.flush()
            await publisher.enqueue_raw(b"c", TOO_LARGE)
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        asyncio.run(publish())
    assert "document 'c' is too large" in caught.value.__notes__[0]


def test_a_flush_that_is_cancelled_leaves_failures_to_the_next_one(
    broker: LocalCluster, topic: str
) -> None:
    async def publish() -> None:
        async with AsyncPublisher(broker.bootstrap, topic, linger_ms=300) as publisher:
            await publisher.enqueue(event(1))  # keeps the flush waiting
            await publisher.enqueue_raw(b"a", TOO_LARGE)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(publisher.flush(), 0.01)
            await asyncio.sleep(1)  # the thread of the flush ends
            with pytest.raises(errors.Undelivered, match="1 record was not delivered"):
                await publisher.flush()

    asyncio.run(publish())


def test_it_belongs_to_one_event_loop(broker: LocalCluster, topic: str) -> None:
    publisher = AsyncPublisher(broker.bootstrap, topic)
    first = asyncio.new_event_loop()
    with pytest.raises(RuntimeError, match="was not started: use `async with`"):
        first.run_until_complete(publisher.send(event(1)))
    first.run_until_complete(publisher.start())
    with pytest.raises(RuntimeError, match="belongs to another event loop"):
        asyncio.run(publisher.send(event(1)))
    with pytest.raises(RuntimeError, match="started already"):
        first.run_until_complete(publisher.start())
    assert first.run_until_complete(publisher.send(event(1))).offset == 0
    first.run_until_complete(publisher.close())
    with pytest.raises(errors.Undelivered, match="is closed"):
        first.run_until_complete(publisher.send(event(2)))
    first.run_until_complete(first.shutdown_default_executor())
    first.close()


def test_a_start_that_fails_or_is_cancelled_leaves_nothing(
    broker: LocalCluster, topic: str
) -> None:
    async def publish() -> None:
        with pytest.raises(errors.TopicMissing):
            await AsyncPublisher(broker.bootstrap, "missing").start()
        before = signal.getsignal(signal.SIGTERM)
        starting = asyncio.create_task(AsyncPublisher(broker.bootstrap, topic).start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert signal.getsignal(signal.SIGTERM) == before

    asyncio.run(publish())


SENDING = """
import asyncio, signal, sys
from instep.emit import AsyncPublisher, StatusEvent

async def publish():
    stopping = asyncio.Event()
    if sys.argv[3] == "handled":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with AsyncPublisher(sys.argv[1], sys.argv[2], linger_ms=500) as publisher:
        for number in range(100):
            await publisher.enqueue(StatusEvent(document="d-1", status="A", version=number))
        print("sent", flush=True)
        await stopping.wait()
        print("stopping", flush=True)

asyncio.run(publish())
"""


@pytest.mark.parametrize(("handled", "status"), [("handled", 0), ("not handled", -signal.SIGTERM)])
def test_sigterm_delivers_what_was_sent(
    broker: LocalCluster, topic: str, read_all: Read, handled: str, status: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SENDING, broker.bootstrap, topic, handled],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "sent\n"
    process.send_signal(signal.SIGTERM)
    output, error_output = process.communicate(timeout=90)
    assert (process.returncode, error_output) == (status, "")
    assert output == ("stopping\n" if handled == "handled" else "")
    assert versions(read_all(topic)) == list(range(100))
