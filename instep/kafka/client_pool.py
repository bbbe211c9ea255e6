"""Clients that are borrowed for one request at a time, and kept for the next one.

A new client connects, signs in and asks for the brokers before its first answer. A server that
answers many requests keeps some; a command keeps none, and each client ends with its request.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Generic, Self, TypeVar

Client = TypeVar("Client")


class ClientPool(Generic[Client]):
    """Idle clients of one kind, for one cluster with one set of credentials."""

    def __init__(
        self, make: Callable[[], Client], close: Callable[[Client], None], idle_max: int
    ) -> None:
        """Take how to make a client, and how many are kept while nobody uses them."""
        self._make, self._close, self._idle_max = make, close, idle_max
        self._lock = threading.Lock()
        self._idle: list[Client] = []

    def borrow(self) -> Loan[Client]:
        """Return a client, for a `with` statement."""
        return Loan(self)

    def take(self) -> Client | None:
        """Return the client that was used last: its connections are the least likely to be old."""
        with self._lock:
            return self._idle.pop() if self._idle else None

    def make(self) -> Client:
        return self._make()

    def keep(self, client: Client) -> None:
        """Keep a client for the next borrower, or close it if there are enough."""
        with self._lock:
            is_kept = len(self._idle) < self._idle_max
            if is_kept:
                self._idle.append(client)
        if not is_kept:
            self.discard(client)

    def discard(self, client: Client) -> None:
        """Close a client. What it answers then has nobody to read it."""
        with contextlib.suppress(Exception):
            self._close(client)

    def discard_idle(self) -> None:
        """Close the idle clients, for example because they may know an older state."""
        with self._lock:
            idle, self._idle = self._idle, []
        for client in idle:
            self.discard(client)

    def close(self) -> None:
        """Close the idle clients; each of the others is closed when it comes back."""
        with self._lock:
            self._idle_max = 0
        self.discard_idle()


class Loan(Generic[Client]):
    """A client that one borrower has. An error in its `with` statement closes the client."""

    def __init__(self, pool: ClientPool[Client]) -> None:
        self._pool = pool
        kept = pool.take()
        self.is_new = kept is None
        self.client = pool.make() if kept is None else kept
        self.is_kept = True  # at the end; a borrower may know that the client is of no use

    def replace(self) -> None:
        """Continue with a new client: a kept one may not have noticed what has changed."""
        self._pool.discard(self.client)
        self.client, self.is_new = self._pool.make(), True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # a borrower that has enough records leaves its generator early
        if self.is_kept and kind in (None, GeneratorExit):
            self._pool.keep(self.client)
        else:
            self._pool.discard(self.client)
