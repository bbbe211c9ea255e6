"""What every queueing system is asked to do, and how a served one is killed and brought back."""

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
        """Return when the system has answered for every message; where it answers for none, when it has taken the last one."""

    def dequeue(self, count: int) -> list[bytes]:
        """That many messages, acknowledged where the system is durable; fewer when no more come."""

    def close(self) -> None:
        """Close the connections; a queue that is durable stays."""


class Holder(Protocol):
    """What holds the messages: a server, a cluster, a process. It is the lab's own and may be killed."""

    @property
    def alive(self) -> bool: ...

    def kill(self) -> None: ...

    def start(self) -> None: ...


class Handed(Protocol):
    """The end from which messages were handed over."""

    def close(self) -> None: ...


class System(Protocol):
    """A queueing system, used so that it keeps its messages, or so that it need not."""

    @property
    def name(self) -> str: ...

    @property
    def durable(self) -> bool: ...

    @property
    def holder(self) -> Holder: ...

    def open(self, queue: str) -> Queue:
        """Connect to the queue of that name, made when it is not there."""

    def hand_over(self, queue: str, messages: Sequence[bytes]) -> Handed:
        """Enqueue, and leave the connection as it is at that moment."""

    def take_up(self, queue: str) -> Queue:
        """Connect in order to dequeue what was handed over."""


@dataclass(frozen=True)
class Served:
    """A system whose server holds the messages. A kill within `settle_s` of making a queue would be another trial."""

    name: str
    durable: bool
    holder: Holder
    connect: Callable[[str], Queue]
    settle_s: float = 0.0

    def open(self, queue: str) -> Queue:
        return self.connect(queue)

    def hand_over(self, queue: str, messages: Sequence[bytes]) -> Queue:
        made = self.connect(queue)
        time.sleep(self.settle_s)
        made.enqueue(messages)
        return made

    def take_up(self, queue: str) -> Queue:
        return self.connect(queue)


def survivors(
    systems: Sequence[System], queue: str, messages: Sequence[bytes], *, killed: bool = True
) -> list[list[bytes]]:
    """Enqueue to each, kill -9 what holds the messages (unless this is the control), start it again, and dequeue from each."""
    with ExitStack() as handed:
        for index, system in enumerate(systems):
            handed.enter_context(closing(system.hand_over(f"{queue}-{index}", messages)))
        if killed:
            holders = {id(system.holder): system.holder for system in systems}.values()
            for holder in holders:
                holder.kill()
                if holder.alive:
                    raise errors.InstepError(
                        f"what holds the messages of {systems[0].name} survived kill -9"
                    )
            handed.close()  # a client that reconnects must not send again
            for holder in holders:
                holder.start()
        found = []
        for index, system in enumerate(systems):
            with closing(system.take_up(f"{queue}-{index}")) as taken:
                found.append(taken.dequeue(len(messages)))
        return found


def batches(messages: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The messages in parts small enough to wait for the answers of each at once."""
    size = batch_size(len(messages[0])) if messages else 1
    for first in range(0, len(messages), size):
        yield messages[first : first + size]


def batch_size(message_bytes: int) -> int:
    """How many messages of that size are under way at once."""
    return max(1, min(BATCH_MESSAGES, BATCH_BYTES // message_bytes))
