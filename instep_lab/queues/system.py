"""The interface of a queueing system, and how its server is killed and restarted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Protocol

from instep import errors

BATCH_MESSAGES = 500
BATCH_BYTES = 1 << 20
PATIENCE_S = 2.0


class Queue(Protocol):
    """One queue of a running system, with its connections open."""

    def enqueue(self, messages: Sequence[bytes]) -> None:
        """Enqueue, and wait until the system has acknowledged or accepted every message."""

    def dequeue(self, count: int) -> list[bytes]:
        """Return up to `count` messages, acknowledged if durable; fewer if no more arrive."""

    def release(self) -> str:
        """Return the releases of the server, which it reports itself, and of the client."""

    def close(self) -> None:
        """Close the connections; a durable queue remains."""


class Holder(Protocol):
    """The server, cluster or process with the messages; the lab started it and may kill it."""

    @property
    def alive(self) -> bool: ...

    def kill(self) -> None: ...

    def start(self) -> None: ...


class SendingSide(Protocol):
    """The sending side after messages were handed over."""

    def close(self) -> None: ...


class System(Protocol):
    """A queueing system, in durable or not durable use."""

    @property
    def name(self) -> str: ...

    @property
    def durable(self) -> bool: ...

    @property
    def holder(self) -> Holder: ...

    def open(self, queue: str) -> Queue:
        """Connect to a queue; create it if needed."""

    def hand_over(self, queue: str, messages: Sequence[bytes]) -> SendingSide:
        """Enqueue and leave the connection open."""

    def take_up(self, queue: str) -> Queue:
        """Connect to dequeue the messages that were handed over."""


@dataclass(frozen=True)
class ServerSystem:
    """A system whose server holds the messages and needs `settle_s` after creating a queue."""

    name: str
    durable: bool
    holder: Holder
    connect: Callable[[str], Queue]
    settle_s: float = 0.0

    def open(self, queue: str) -> Queue:
        return self.connect(queue)

    def hand_over(self, queue: str, messages: Sequence[bytes]) -> Queue:
        connected = self.connect(queue)
        time.sleep(self.settle_s)
        connected.enqueue(messages)
        return connected

    def take_up(self, queue: str) -> Queue:
        return self.connect(queue)


def survivors(
    systems: Sequence[System], queue: str, messages: Sequence[bytes], *, killed: bool = True
) -> list[list[bytes]]:
    """Enqueue to each system, kill and restart the process with the messages, and dequeue.

    Without `killed` this is the control.
    """
    with ExitStack() as handed:
        for index, system in enumerate(systems):
            handed.enter_context(closing(system.hand_over(f"{queue}-{index}", messages)))
        if killed:
            holders = {id(system.holder): system.holder for system in systems}.values()
            for holder in holders:
                holder.kill()
                if holder.alive:
                    raise errors.InstepError(
                        f"the process with the messages of {systems[0].name} survived kill -9"
                    )
            handed.close()  # a client that reconnects must not resend
            for holder in holders:
                holder.start()
        found = []
        for index, system in enumerate(systems):
            with closing(system.take_up(f"{queue}-{index}")) as reader:
                found.append(reader.dequeue(len(messages)))
        return found


def batches(messages: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield the messages in batches that are small enough to be in flight at once."""
    size = batch_size(len(messages[0])) if messages else 1
    for first in range(0, len(messages), size):
        yield messages[first : first + size]


def next_batch(count: int, found: Sequence[bytes]) -> int:
    """Return how many messages to request next if `count` are wanted in total."""
    size = len(found[0]) if found else BATCH_BYTES
    return min(count - len(found), batch_size(size))


def batch_size(message_bytes: int) -> int:
    """Return how many messages of this size may be in flight at once."""
    return max(1, min(BATCH_MESSAGES, BATCH_BYTES // message_bytes))
