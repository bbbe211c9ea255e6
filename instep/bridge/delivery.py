"""The publisher in an event loop: open it without blocking, and await acknowledgements."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from instep import errors
from instep.emit import MemoryPublisher, Publisher
from instep.emit.deliveries import Delivery, OnDelivery

AnyPublisher = Publisher | MemoryPublisher


async def opened(connect: Callable[[], AnyPublisher]) -> AnyPublisher:
    """Connect to the brokers in a daemon thread: one that waits for them holds up no stop."""
    answer: asyncio.Future[AnyPublisher] = asyncio.get_running_loop().create_future()

    def work() -> None:
        try:
            publisher = connect()
        except Exception as error:  # noqa: BLE001 - raised to the caller
            _from_thread(answer, partial(answer.set_exception, error))
        else:
            _from_thread(answer, partial(answer.set_result, publisher))

    threading.Thread(target=work, name="instep-bridge-connect", daemon=True).start()
    return await answer


async def acknowledged(send: Callable[[OnDelivery], object]) -> None:
    """Send a record and wait until the broker has acknowledged it; raise Undelivered if not."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_delivery(failure: errors.Undelivered | None, _: Delivery | None) -> None:
        if failure is None:
            _from_thread(answer, partial(answer.set_result, None))
        else:
            _from_thread(answer, partial(answer.set_exception, failure))

    send(on_delivery)
    await answer


def close(publisher: AnyPublisher) -> None:
    """Close a publisher. What it did not deliver is pending in the state file."""
    with contextlib.suppress(errors.Undelivered):
        publisher.close()


def _from_thread(answer: asyncio.Future[Any], settle: Callable[[], None]) -> None:
    """Settle a future from any thread, unless nobody waits for it any more."""

    def settle_once() -> None:
        if not answer.done():
            settle()

    with contextlib.suppress(RuntimeError):  # the loop has ended
        answer.get_loop().call_soon_threadsafe(settle_once)
