"""ActiveMQ as a queue, with STOMP.

Durable means persistent messages with one receipt each, acknowledged by the reader. Not durable
means neither, and one receipt for the last message.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from importlib import metadata
from typing import Any
from urllib.parse import urlparse

import stomp

from instep import errors
from instep_lab.queues import system

ANSWER_S = 30.0
READER = "reader"
# The broker loads this many messages into memory at once, and more once some are acknowledged.
PAGE_MESSAGES = 200

logging.getLogger("stomp.py").setLevel(logging.CRITICAL)


class MessageCounter(stomp.ConnectionListener):  # type: ignore[misc]
    """Counts receipts and messages in the client's thread, for a waiter in another thread."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.receipts = 0
        self.messages: list[Any] = []
        self.failure = ""
        self.server = ""

    def on_connected(self, frame: Any) -> None:
        self.server = frame.headers.get("server", "ActiveMQ").replace("/", " ")

    def on_receipt(self, frame: Any) -> None:  # noqa: ARG002 - the library's name
        with self.changed:
            self.receipts += 1
            self.changed.notify_all()

    def on_message(self, frame: Any) -> None:
        with self.changed:
            self.messages.append(frame)
            self.changed.notify_all()

    def on_error(self, frame: Any) -> None:
        with self.changed:
            self.failure = frame.headers.get("message", "an error without a message")
            self.changed.notify_all()

    def on_disconnected(self) -> None:
        with self.changed:
            self.failure = self.failure or "the connection broke"
            self.changed.notify_all()


class ActiveQueue:
    def __init__(self, url: str, name: str, *, durable: bool) -> None:
        parts = urlparse(url)
        self._durable = durable
        self._destination = f"/queue/{name}"
        self._counter = MessageCounter()
        self._connection: Any = stomp.Connection12(
            [(parts.hostname, parts.port)],
            auto_decode=False,
            reconnect_attempts_max=1,  # after a kill, the client must not send again
            heartbeats=(0, 0),
        )
        self._connection.set_listener("", self._counter)
        self._connection.connect(wait=True)

    def enqueue(self, messages: Sequence[bytes]) -> None:
        for batch in system.batches(messages):
            expected = self._counter.receipts
            for number, message in enumerate(batch):
                headers = {"persistent": str(self._durable).lower()}
                if self._durable:
                    headers["receipt"] = str(number)
                    expected += 1
                self._connection.send(self._destination, message, headers=headers)
            self._wait_receipts(expected)
        if not self._durable:
            # A receipt for a later frame: the broker handles the frames of a connection in order.
            expected = self._counter.receipts + 1
            self._connection.subscribe("/queue/nothing", "nothing", headers={"receipt": "last"})
            self._wait_receipts(expected)
            self._connection.unsubscribe("nothing")

    def dequeue(self, count: int) -> list[bytes]:
        acknowledged = 0
        prefetch = {"activemq.prefetchSize": str(2 * system.BATCH_MESSAGES)}
        self._connection.subscribe(
            self._destination, READER, ack="client" if self._durable else "auto", headers=prefetch
        )
        while len(self._counter.messages) < count and self._wait_message():
            arrived = len(self._counter.messages)
            if self._durable and arrived - acknowledged >= PAGE_MESSAGES // 2:
                self._acknowledge(arrived)
                acknowledged = arrived
        with self._counter.changed:
            found, self._counter.messages = self._counter.messages[:count], []
        if self._durable and len(found) > acknowledged:
            self._connection.ack(found[-1].headers["ack"])
        expected = self._counter.receipts + 1
        self._connection.unsubscribe(READER, headers={"receipt": "end"})
        self._wait_receipts(expected)
        return [frame.body for frame in found]

    def release(self) -> str:
        return f"{self._counter.server}, stomp.py {metadata.version('stomp.py')}"

    def close(self) -> None:
        if self._connection.is_connected():
            self._connection.disconnect()

    def _acknowledge(self, count: int) -> None:
        """Acknowledge all messages up to this one."""
        self._connection.ack(self._counter.messages[count - 1].headers["ack"])

    def _wait_receipts(self, expected: int) -> None:
        with self._counter.changed:
            came = self._counter.changed.wait_for(
                lambda: self._counter.receipts >= expected or self._counter.failure, ANSWER_S
            )
        if self._counter.failure or not came:
            raise errors.Unreachable(
                f"ActiveMQ: {self._counter.failure or f'no response within {ANSWER_S:.0f} s'}"
            )

    def _wait_message(self) -> bool:
        with self._counter.changed:
            before = len(self._counter.messages)
            self._counter.changed.wait_for(
                lambda: len(self._counter.messages) > before or self._counter.failure,
                system.PATIENCE_S,
            )
            return len(self._counter.messages) > before
