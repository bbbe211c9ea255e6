"""RabbitMQ as a queue: classic, or quorum, which is always durable.

Durable means a durable queue, persistent messages, publisher confirms, and acknowledgements by the
reader. Not durable means a queue in memory and automatic acknowledgements, and only the last
message is confirmed.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import pika

from instep import errors
from instep_lab.queues import system

ANSWER_S = 30.0
PERSISTENT = 2  # a delivery mode of AMQP

logging.getLogger("pika").setLevel(logging.CRITICAL)


class RabbitQueue:
    """One connection, whose event loop runs only during a call.

    Only this interface of pika can wait for many confirms at once.
    """

    def __init__(self, url: str, name: str, *, durable: bool, kind: str) -> None:
        self._name, self._durable, self._kind = name, durable, kind
        self._failure = ""
        self._connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=self._stop,
            on_open_error_callback=self._fail,
            on_close_callback=self._fail,
        )
        self._run()
        self._channel: Any = self._connection.channel(on_open_callback=self._stop)
        self._run()
        self._channel.add_on_close_callback(self._fail)
        self._declare()
        self._confirm: Callable[[Any], None] = lambda _: None
        if durable:
            # Through a lambda: each batch sets its own function.
            self._channel.confirm_delivery(lambda frame: self._confirm(frame), callback=self._stop)
            self._run()
        self._number = 0

    def enqueue(self, messages: Sequence[bytes]) -> None:
        for batch in system.batches(messages):
            self._send(batch)
        if not self._durable:
            self._declare()

    def dequeue(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        last: list[int] = []

        def take(_: object, delivery: Any, __: object, body: bytes) -> None:
            if len(found) < count:
                found.append(body)
                last[:] = [delivery.delivery_tag]
            if len(found) == count:
                self._stop()
            elif self._durable and len(found) % prefetch == 0:
                self._channel.basic_ack(delivery.delivery_tag, multiple=True)

        prefetch = system.BATCH_MESSAGES
        self._channel.basic_qos(prefetch_count=2 * prefetch, callback=self._stop)
        self._run()
        tag = self._channel.basic_consume(self._name, take, auto_ack=not self._durable)
        before = -1
        while len(found) not in (before, count):
            before = len(found)
            self._run(system.PATIENCE_S)
        if self._durable and last:
            self._channel.basic_ack(last[0], multiple=True)
        self._channel.basic_cancel(tag, callback=self._stop)
        self._run()
        return found

    def release(self) -> str:
        server: Any = self._connection.server_properties
        return f"RabbitMQ {server['version']}, pika {pika.__version__}"

    def close(self) -> None:
        if self._connection.is_open:
            self._connection.close()
        deadline = time.monotonic() + ANSWER_S
        while not self._connection.is_closed and time.monotonic() < deadline:
            self._loop(1.0, self._stop)
        # the loop reports the connection as closed one iteration before it closes the socket
        self._loop(0, self._stop)
        self._connection.ioloop.close()

    def _declare(self) -> None:
        """Create the queue if needed; the response follows everything that this channel sent."""
        arguments = {"x-queue-type": self._kind}
        self._channel.queue_declare(
            self._name, durable=self._durable, arguments=arguments, callback=self._stop
        )
        self._run()

    def _send(self, batch: Sequence[bytes]) -> None:
        properties = pika.BasicProperties(delivery_mode=PERSISTENT) if self._durable else None
        last = self._number + len(batch)
        pending = set(range(self._number + 1, last + 1))

        def confirm(frame: Any) -> None:
            method = frame.method
            if isinstance(method, pika.spec.Basic.Nack):
                self._fail(None, "the server rejected a message")
            if method.multiple:
                pending.difference_update(range(min(pending, default=1), method.delivery_tag + 1))
            pending.discard(method.delivery_tag)
            if not pending:
                self._stop()

        self._confirm = confirm
        for message in batch:
            self._channel.basic_publish("", self._name, message, properties)
        self._number = last
        if self._durable:
            self._run()

    def _run(self, patience_s: float | None = None) -> None:
        """Run the event loop until it is stopped; without `patience_s`, a timeout is a failure."""
        if patience_s:
            self._loop(patience_s, self._stop)
        else:
            reason = f"no response within {ANSWER_S:.0f} s"
            self._loop(ANSWER_S, functools.partial(self._fail, None, reason))
        if self._failure:
            raise errors.Unreachable(f"RabbitMQ: {self._failure}")

    def _loop(self, seconds: float, late: Callable[[], None]) -> None:
        timer = self._connection.ioloop.call_later(seconds, late)
        self._connection.ioloop.start()
        self._connection.ioloop.remove_timeout(timer)

    def _stop(self, *_: object) -> None:
        self._connection.ioloop.stop()

    def _fail(self, _: object, reason: object) -> None:
        self._failure = self._failure or str(reason)
        self._stop()
