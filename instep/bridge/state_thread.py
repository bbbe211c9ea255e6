"""The state file in a separate thread, so that a slow disk does not hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from instep.sinks.bridge_state import BridgeState, PolledDocument

P = ParamSpec("P")
T = TypeVar("T")


class StateThread:
    """Calls the state file. Rows that wait to be stored share a transaction."""

    def __init__(self, state: BridgeState) -> None:
        self.state = state
        self._thread = ThreadPoolExecutor(1, "instep-bridge-state")
        self._unsaved: list[tuple[PolledDocument, bool, asyncio.Future[None]]] = []
        self._saving: asyncio.Task[None] | None = None

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call of the state file in its thread."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: work(*args, **kwargs)
        )

    async def save(self, row: PolledDocument, *, is_postponed: bool = False) -> None:
        """Store a row on disk, or only its schedule."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsaved.append((row, is_postponed, stored))
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save_all())
        await asyncio.shield(stored)

    async def settle(self) -> None:
        """Wait until every row is stored."""
        if self._saving is not None:
            await asyncio.gather(self._saving, return_exceptions=True)

    def close(self) -> None:
        """End the thread and close the file."""
        self._thread.shutdown()
        self.state.close()

    async def _save_all(self) -> None:
        # Rows that arrive while a transaction is written share the next one.
        while self._unsaved:
            batch, self._unsaved = self._unsaved, []
            try:
                await self.call(
                    self.state.save,
                    [row for row, is_postponed, _ in batch if not is_postponed],
                    [row for row, is_postponed, _ in batch if is_postponed],
                )
            except Exception as error:  # noqa: BLE001 - raised to each who waits
                for _, _, stored in batch:
                    stored.set_exception(error)
            else:
                for _, _, stored in batch:
                    stored.set_result(None)
