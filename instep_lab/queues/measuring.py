"""Measures how fast a system is, and what it loses when it is killed.

Results are plain values, judged by the lab's checkers. Each message carries its number. A message
counts as sent when the client's send has returned, even if no server acknowledged it: that is what
a program that uses the system in this way assumes.
"""

from __future__ import annotations

import random
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from instep_lab import checkers
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.queues.system import System, survivors

# By message size in bytes: the minimum number of messages in one measurement.
COUNTS = {100: 400, 1_000: 400, 10_000: 100, 100_000: 20, 1_000_000: 5}
LARGEST_BYTES = 64_000_000
NUMBER_DIGITS = 16


@dataclass(frozen=True)
class Speed:
    """One measurement: messages enqueued, then dequeued."""

    system: str
    durable: bool
    size: int
    count: int
    enqueue_s: float
    dequeue_s: float
    lost: checkers.Anomalies
    repeated: checkers.Anomalies

    @property
    def sound(self) -> bool:
        """Whether every message arrived exactly once: otherwise the times mean nothing."""
        return not (self.lost or self.repeated)


@dataclass(frozen=True)
class Rate:
    """Messages per second over the repetitions, and the median in MB/s."""

    lowest: float
    median: float
    highest: float
    mb_per_s: float


@dataclass(frozen=True)
class QueueRate:
    """The rates of a system at one message size; `through` is enqueue and dequeue together."""

    system: str
    durable: bool
    size: int
    count: int
    repetitions: int
    enqueue: Rate
    dequeue: Rate
    through: Rate
    lost: int
    repeated: int


@dataclass(frozen=True)
class Loss:
    """The messages lost and repeated after a kill or, as the control, without one."""

    system: str
    durable: bool
    killed: bool
    size: int
    sent: int
    lost: checkers.Anomalies
    repeated: checkers.Anomalies


def messages(count: int, size: int) -> list[bytes]:
    """Return messages of exactly this size, numbered from 0."""
    filler = b"." * (size - NUMBER_DIGITS)
    return [b"%0*d" % (NUMBER_DIGITS, number) + filler for number in range(count)]


def speed(system: System, size: int, count: int) -> Speed:
    """Measure enqueueing to an empty queue and dequeueing, over open connections."""
    sent = messages(count, size)
    with closing(system.open(_new_name())) as queue:
        started = time.perf_counter()
        queue.enqueue(sent)
        enqueued = time.perf_counter()
        read = queue.dequeue(count)
        dequeued = time.perf_counter()
    lost, repeated = judge(sent, read)
    return Speed(
        system.name,
        system.durable,
        size,
        count,
        enqueued - started,
        dequeued - enqueued,
        lost,
        repeated,
    )


def losses(
    systems: Sequence[System],
    size: int,
    count: int,
    *,
    killed: bool = True,
    note: Callable[[System, ClientOperation], None] = lambda *_: None,
) -> list[Loss]:
    """Enqueue, kill the process that holds the messages, restart it, and count what can be read.

    Systems that share a process share one kill; different processes are killed and restarted at
    the same time.
    """
    sent = messages(count, size)
    found = []
    shared = list(_by_holder(systems))
    with ThreadPoolExecutor(len(shared)) as pool:
        left = list(
            pool.map(lambda same: survivors(same, _new_name(), sent, killed=killed), shared)
        )
    for sharing, reads in zip(shared, left, strict=True):
        for system, read in zip(sharing, reads, strict=True):
            lost, repeated = judge(sent, read)
            found.append(Loss(system.name, system.durable, killed, size, count, lost, repeated))
            for operation in operations(sent, read):
                note(system, operation)
    return found


def compare(
    systems: Sequence[System],
    counts: Mapping[int, int],
    *,
    repetitions: int,
    seconds: float,
    seed: int,
    say: Callable[[str], None] = lambda _: None,
) -> list[Speed]:
    """Measure every system at every size, in turns.

    The order changes with each round, so that disturbances do not always hit the same system. A
    first round, which does not count, warms up and finds out how many messages take `seconds`.
    """
    order = random.Random(seed)  # noqa: S311 - nothing secret
    enough: dict[tuple[System, int], int] = {}
    found = []
    for number in range(repetitions + 1):
        say(f"round {number} of {repetitions}")
        for size, least in counts.items():
            for system in order.sample(systems, len(systems)):
                one = speed(system, size, enough.get((system, size), least))
                if number:
                    found.append(one)
                else:
                    enough[system, size] = enough_for(one, seconds)
    return found


def enough_for(first: Speed, seconds: float) -> int:
    """Return how many messages take this long at the measured speed.

    At least as many as in the first measurement, and at most what fits into memory.
    """
    per_s = first.count / (first.enqueue_s + first.dequeue_s)
    return max(first.count, min(int(per_s * seconds), LARGEST_BYTES // first.size))


def summarise(speeds: Iterable[Speed]) -> list[QueueRate]:
    """Summarise the measurements of each system and size."""
    groups: dict[tuple[str, bool, int], list[Speed]] = defaultdict(list)
    for one in speeds:
        groups[one.system, one.durable, one.size].append(one)
    return [
        QueueRate(
            *key,
            count=same[0].count,
            repetitions=len(same),
            enqueue=_rate(same, lambda one: one.enqueue_s),
            dequeue=_rate(same, lambda one: one.dequeue_s),
            through=_rate(same, lambda one: one.enqueue_s + one.dequeue_s),
            lost=sum(one.lost.count for one in same),
            repeated=sum(one.repeated.count for one in same),
        )
        for key, same in groups.items()
    ]


def unsteadiness(cells: Iterable[QueueRate]) -> float:
    """Return the median ratio of the fastest to the slowest repetition.

    A large value means that the machine was busy with other things.
    """
    return statistics.median(cell.through.highest / cell.through.lowest for cell in cells)


def judge(
    sent: Sequence[bytes], read: Sequence[bytes]
) -> tuple[checkers.Anomalies, checkers.Anomalies]:
    """Return the sent messages that were not read, and those that were read more than once."""
    history = operations(sent, read)
    return (
        checkers.lost(history, by=OperationKind.READ),
        checkers.repeated(history, by=OperationKind.READ),
    )


def operations(sent: Sequence[bytes], read: Sequence[bytes]) -> list[ClientOperation]:
    """Return the history of one queue; a message that was altered counts as not read."""
    known = set(sent)
    sends = [ClientOperation(kind=OperationKind.SEND, number=_number(one)) for one in sent]
    return sends + [
        ClientOperation(kind=OperationKind.READ, number=_number(one))
        for one in read
        if one in known
    ]


def _rate(speeds: Sequence[Speed], seconds: Callable[[Speed], float]) -> Rate:
    rates = [one.count / seconds(one) for one in speeds]
    middle = statistics.median(rates)
    return Rate(min(rates), middle, max(rates), middle * speeds[0].size / 1e6)


def _by_holder(systems: Sequence[System]) -> Iterable[list[System]]:
    shared: dict[int, list[System]] = defaultdict(list)
    for system in systems:
        shared[id(system.holder)].append(system)
    return shared.values()


def _number(message: bytes) -> int:
    return int(message[:NUMBER_DIGITS])


def _new_name() -> str:
    return f"instep-lab-{uuid.uuid4().hex[:12]}"
