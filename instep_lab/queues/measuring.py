"""How fast a system takes messages and gives them, and what it loses when killed: plain values, judged by the lab's checkers.

Each message carries its number. That a client's send returned counts as sent, whether a server answered or not: a program that
uses the system in that way believes so.
"""

from __future__ import annotations

import random
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from instep_lab import checkers
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.queues.system import System, survivors

# Message size in bytes, and how many make up one measurement at least: fewer when they are larger.
COUNTS = {100: 400, 1_000: 400, 10_000: 100, 100_000: 20, 1_000_000: 5}
LARGEST_BYTES = 64_000_000
NUMBER_DIGITS = 16


@dataclass(frozen=True)
class Speed:
    """One measurement: so many messages enqueued, then dequeued."""

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
        """Whether every message came once: otherwise the times mean nothing."""
        return not (self.lost or self.repeated)


@dataclass(frozen=True)
class Rate:
    """Messages a second over the repetitions, and what the middle one is in MB/s."""

    lowest: float
    median: float
    highest: float
    mb_per_s: float


@dataclass(frozen=True)
class QueueRate:
    """A system at one size of message. `through` counts the time of both: enqueued and dequeued again."""

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
    """What was still there after the kill, or, as the control, without one."""

    system: str
    durable: bool
    killed: bool
    size: int
    sent: int
    lost: checkers.Anomalies
    repeated: checkers.Anomalies


def messages(count: int, size: int) -> list[bytes]:
    """Messages of exactly that size, numbered from 0."""
    filler = b"." * (size - NUMBER_DIGITS)
    return [b"%0*d" % (NUMBER_DIGITS, number) + filler for number in range(count)]


def speed(system: System, size: int, count: int) -> Speed:
    """Enqueue to an empty queue, then dequeue; connections are made before the clock starts."""
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
    """Enqueue, kill what holds the messages, start it again, and count what can still be read; one kill for all that share it."""
    sent = messages(count, size)
    found = []
    for sharing in _by_holder(systems):
        for system, read in zip(
            sharing, survivors(sharing, _new_name(), sent, killed=killed), strict=True
        ):
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
    tell: Callable[[str], None] = lambda _: None,
) -> list[Speed]:
    """Every system at every size, all in turn and in another order each time: what disturbs the machine hits no single one.

    A first round, which is not counted, warms everything up and finds how many messages take about so many seconds.
    """
    order = random.Random(seed)  # noqa: S311 - nothing secret
    enough: dict[tuple[System, int], int] = {}
    found = []
    for number in range(repetitions + 1):
        tell(f"round {number} of {repetitions}")
        for size, least in counts.items():
            for system in order.sample(systems, len(systems)):
                one = speed(system, size, enough.get((system, size), least))
                if number:
                    found.append(one)
                else:
                    enough[system, size] = enough_for(one, seconds)
    return found


def enough_for(first: Speed, seconds: float) -> int:
    """How many messages take that long at the speed of the first; no fewer than it had, and no more than memory bears."""
    per_s = first.count / (first.enqueue_s + first.dequeue_s)
    return max(first.count, min(int(per_s * seconds), LARGEST_BYTES // first.size))


def summarise(speeds: Iterable[Speed]) -> list[QueueRate]:
    """The measurements of each system and size as one."""
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
    """How many times its slowest repetition a system's fastest is, in the middle of all cells: the machine did other things."""
    return statistics.median(cell.through.highest / cell.through.lowest for cell in cells)


def judge(
    sent: Sequence[bytes], read: Sequence[bytes]
) -> tuple[checkers.Anomalies, checkers.Anomalies]:
    """What of the sent was not read, and what was read more than once."""
    seen = operations(sent, read)
    return checkers.lost(seen, by=OperationKind.READ), checkers.repeated(
        seen, by=OperationKind.READ
    )


def operations(sent: Sequence[bytes], read: Sequence[bytes]) -> list[ClientOperation]:
    """The history of one queue. A message that was changed on the way counts as not read."""
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
