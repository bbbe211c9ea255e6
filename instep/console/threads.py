"""Threads that answer requests: a limited number, which counts those that were given up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from instep import errors

BUSY_AFTER_S = 3.0
CHECK_S = 0.02

Returned = TypeVar("Returned")


class ThreadLimit:
    """Runs functions in a limited number of threads.

    A function that nobody waits for any more counts until it ends: a server that does not answer
    must not use up threads and connections without end.
    """

    def __init__(self, most: int) -> None:
        self._most, self._free = most, threading.BoundedSemaphore(most)

    async def run(self, work: Callable[[], Returned], patience_s: float | None = None) -> Returned:
        """Return the result; raise Unreachable if no thread is free, TimeoutError if it is late."""
        await self._take()
        future: Future[Returned] = Future()

        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - who waits for it gets it
                self._free.release()
                future.set_exception(error)
            else:
                self._free.release()
                future.set_result(result)

        future.set_running_or_notify_cancel()
        threading.Thread(target=run, daemon=True).start()
        waiting = asyncio.wrap_future(future)
        waiting.add_done_callback(_seen)
        return await asyncio.wait_for(asyncio.shield(waiting), patience_s)

    async def _take(self) -> None:
        deadline_s = time.monotonic() + BUSY_AFTER_S
        while not self._free.acquire(blocking=False):
            if time.monotonic() > deadline_s:
                raise errors.Unreachable(
                    f"the console is busy: {self._most} requests wait for servers that do not"
                    " answer. Nothing was started.",
                    "try again in a moment; `instep doctor` tries each server",
                )
            await asyncio.sleep(CHECK_S)


def _seen(future: asyncio.Future[Returned]) -> None:
    """Take the error of a function that nobody waits for: asyncio would write it to the log."""
    if not future.cancelled():
        future.exception()
