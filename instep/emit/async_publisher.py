"""The publisher for asyncio: a thin layer over `Publisher` that never blocks the event loop.

    async with AsyncPublisher("broker:9092", "print-status", source="print-system") as publisher:
        # wait: returns the position in the log, or raises Undelivered
        delivery = await publisher.send(event)
        # do not wait: leaving the block raises if the record failed
        receipt = await publisher.enqueue(event)
        delivery = await receipt
        # with `outcomes`: what the pipeline did with the record
        outcome = await receipt.applied_async(timeout=30.0)

A full queue suspends the sender, and nobody else. Senders get space in the order in which they
asked for it, so that the order per document is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from instep import errors, settings
from instep.document import event
from instep.emit import deliveries, outgoing
from instep.emit.publisher import Publisher, add_to_exception
from instep.kafka import connection

if TYPE_CHECKING:
    from instep.emit.memory import MemoryPublisher
    from instep.emit.metrics import PublisherMetrics

TURN_RECORDS = 256  # how often the other tasks of the event loop get a turn


class AsyncPublisher:
    """Sends to one topic from one event loop. The parameters are those of `Publisher`."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        source: str = "instep",
        security: settings.Security | None = None,
        guarantee: settings.Guarantee = "exactly-once",
        flush_timeout_s: float = 30.0,
        block_timeout_s: float = 60.0,
        start_timeout_s: float = connection.TIMEOUT_S,
        outcomes: deliveries.Outcomes | None = None,
        **librdkafka: Any,
    ) -> None:
        """Keep the parameters. `async with`, or `start`, checks the topic and the access to it."""
        self.topic = topic
        self.source = source
        self.flush_timeout_s = flush_timeout_s
        self.block_timeout_s = block_timeout_s
        self._create: Callable[[], Publisher | MemoryPublisher] = functools.partial(
            Publisher,
            bootstrap,
            topic,
            source=source,
            security=security,
            guarantee=guarantee,
            flush_timeout_s=flush_timeout_s,
            block_timeout_s=block_timeout_s,
            start_timeout_s=start_timeout_s,
            outcomes=outcomes,
            **librdkafka,
        )
        self._publisher: Publisher | MemoryPublisher | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queueing = asyncio.Lock()  # lets senders queue up while there is no space

    async def start(self) -> None:
        """Check the topic and the access to it. `async with` does this.

        Raises SettingsError, BrokerUnreachable, NotAuthorised or TopicMissing.
        """
        if self._publisher is not None:
            raise RuntimeError(f"the publisher to topic {self.topic!r} was started already")
        self._loop = asyncio.get_running_loop()
        creating = self._loop.run_in_executor(None, self._create)
        try:
            self._publisher = await asyncio.shield(creating)
        except asyncio.CancelledError:
            creating.add_done_callback(self._discard)
            raise
        if isinstance(self._publisher, Publisher):
            # A program that handles the signal in its event loop closes the publisher itself.
            self._publisher._termination.install(only_default=True)

    async def send(self, status_event: event.StatusEvent) -> deliveries.Delivery:
        """Send an event, wait for its delivery and return it; raise Undelivered if it failed.

        If the waiting task is cancelled, the record stays sent; `flush` raises if it failed.
        """
        return await (await self.enqueue(status_event))

    async def delete(self, document: str, *, at: datetime | None = None) -> deliveries.Delivery:
        """Send a delete, wait for its delivery and return it."""
        return await (await self.enqueue_delete(document, at=at))

    async def send_raw(
        self, key: bytes, value: bytes | None, headers: outgoing.Headers | None = None
    ) -> deliveries.Delivery:
        """Send encoded bytes, wait for their delivery and return it."""
        return await (await self.enqueue_raw(key, value, headers))

    async def enqueue(self, status_event: event.StatusEvent) -> deliveries.Receipt:
        """Send an event without waiting for its delivery; wait only for space in the queue.

        The receipt can be awaited. It may be ignored: `flush` raises unreported failures.
        """
        return await self._enqueue(outgoing.from_event(status_event, self.source))

    async def enqueue_delete(
        self, document: str, *, at: datetime | None = None
    ) -> deliveries.Receipt:
        """Send a delete without waiting for its delivery."""
        return await self._enqueue(outgoing.from_deletion(document, self.source, at))

    async def enqueue_raw(
        self, key: bytes, value: bytes | None, headers: outgoing.Headers | None = None
    ) -> deliveries.Receipt:
        """Send encoded bytes without waiting for their delivery."""
        return await self._enqueue(outgoing.from_bytes(key, value, headers, self.source))

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the records sent before are settled.

        Raises Undelivered for unreported failures, and for records that are still open. If the
        waiting task is cancelled, the next flush raises the failures.
        """
        publisher = self._usable()
        # Only the wait is in a thread, which goes on if this task is cancelled. The failures are
        # taken where they are raised.
        await asyncio.to_thread(publisher._settle, timeout_s)
        deliveries.raise_undelivered(publisher._counter, self.topic)

    def metrics(self) -> PublisherMetrics:
        """Return the counts of records so far, and how long acknowledgements took."""
        return self._started().metrics()

    async def close(self) -> None:
        """Flush and close. Records that are open after `flush_timeout_s` count as failures."""
        publisher = self._usable()
        try:
            # Even if this task is cancelled, the publisher is closed, in its thread.
            await asyncio.shield(asyncio.to_thread(publisher.close))
        finally:
            if isinstance(publisher, Publisher):
                publisher._termination.end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except errors.Undelivered as failure:
            if value is None:
                raise
            add_to_exception(value, failure)

    # --- sending -------------------------------------------------------------------------------

    async def _enqueue(self, record: outgoing.OutgoingRecord) -> deliveries.Receipt:
        publisher = self._usable()
        async with self._queueing:
            receipt = publisher._try_send(record, None)
            if receipt is None:
                receipt = await self._enqueue_when_possible(publisher, record)
        if receipt.number % TURN_RECORDS == 0:
            await asyncio.sleep(0)
        return receipt

    async def _enqueue_when_possible(
        self, publisher: Publisher | MemoryPublisher, record: outgoing.OutgoingRecord
    ) -> deliveries.Receipt:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.block_timeout_s
        while True:
            left_s = max(0.0, deadline - loop.time())
            await self._wait_space(publisher, publisher._counter.open // 2, min(left_s, 1.0))
            receipt = publisher._try_send(record, None)
            if receipt is not None:
                return receipt
            if loop.time() >= deadline:
                raise publisher._queue_full(self.block_timeout_s)

    async def _wait_space(
        self, publisher: Publisher | MemoryPublisher, open_max: int, timeout_s: float
    ) -> None:
        """Wait until at most this many records are open, or until the time is over."""
        loop, space = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(space.set)

        with publisher._counter.calling(wake, open_max), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await space.wait()

    def _started(self) -> Publisher | MemoryPublisher:
        if self._publisher is None:
            raise RuntimeError(
                f"the publisher to topic {self.topic!r} was not started:"
                " use `async with`, or await its `start()`"
            )
        return self._publisher

    def _usable(self) -> Publisher | MemoryPublisher:
        publisher = self._started()
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                f"the publisher to topic {self.topic!r} belongs to another event loop:"
                " create a publisher in each event loop"
            )
        return publisher

    def _discard(self, creating: asyncio.Future[Publisher | MemoryPublisher]) -> None:
        """Close a publisher whose start was cancelled."""
        if not creating.cancelled() and creating.exception() is None and self._loop is not None:
            self._loop.run_in_executor(None, creating.result().close)
