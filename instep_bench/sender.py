"""The source system of a benchmark: sends events by a fixed schedule in its own process.

An event happens when it is due, whether or not earlier events were answered, and its age counts
from then. The sender skips no event: a late event is sent as soon as possible, and its delay is
reported. The sender has its own process so that neither the benchmark's other work nor the
pipeline's Python code makes it late.
"""

from __future__ import annotations

import array
import functools
import gc
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Self, TypeVar

import msgspec

from instep import errors
from instep.emit import Delivery, Publisher
from instep_bench import load
from instep_bench.latency_join import SentEvent

SECOND_NS = 1_000_000_000
LEAD_NS = 20_000_000  # time to prepare, so that the first event is not late
ANSWER_PATIENCE_S = 180.0


class EventSource(msgspec.Struct, frozen=True):
    """The destination of the events, and the number of documents."""

    bootstrap: str
    topic: str
    documents: int
    size: int = 150


class Leg(msgspec.Struct, frozen=True, tag=True):
    """Events at an even rate, numbered from `first`."""

    first: int
    count: int
    rate: float


class EndLeg(msgspec.Struct, frozen=True, tag=True):
    """Send no more events of the current leg."""


class LegStarted(msgspec.Struct, frozen=True, tag=True):
    """A leg has begun; its first event is due at this time."""

    at_ns: int


class LegDone(msgspec.Struct, frozen=True, tag=True):
    """Every event of a leg was answered."""

    sent: list[SentEvent]


class SenderFailed(msgspec.Struct, frozen=True, tag=True):
    """Events were not delivered, or the sender cannot continue."""

    what: str
    remedy: str = ""


SenderOrder = Leg | EndLeg
Answer = LegStarted | LegDone | SenderFailed
AnswerKind = TypeVar("AnswerKind", LegStarted, LegDone)


def due_times(begin_ns: int, leg: Leg) -> Iterator[int]:
    """Yield when each event of a leg is due.

    A leg that is going to be ended early may have millions of events, so they are not listed.
    """
    return (begin_ns + round(index * SECOND_NS / leg.rate) for index in range(leg.count))


def pace(
    due_ns: Iterable[int],
    send: Callable[[int], None],
    is_over: Callable[[], bool] = lambda: False,
    clock: Callable[[], int] = time.monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> array.array[int]:
    """Send each event when it is due, or at once if it is late; return when each was sent."""
    sent_ns = array.array("q")
    for index, due in enumerate(due_ns):
        while (left_ns := due - clock()) > 0:
            sleep(left_ns / SECOND_NS)
        if is_over():
            break
        sent_ns.append(clock())
        send(index)
    return sent_ns


# --- in the benchmark's process -------------------------------------------------------------------


class EventSender:
    """The sender's process. It ends with the block, and with the process that started it."""

    def __init__(self, source: EventSource) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "instep_bench.sender", msgspec.json.encode(source).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C reaches only the benchmark; the sender ends when its input is closed.
            start_new_session=True,
        )

    def begin(self, leg: Leg) -> int:
        """Start a leg and return when its first event is due, by the monotonic clock."""
        self._order(leg)
        return self._answer(LegStarted).at_ns

    def end(self) -> None:
        """Let the leg end now, before its last event; `finish` returns what was sent."""
        self._order(EndLeg())

    def finish(self) -> list[SentEvent]:
        """Wait for the end of the leg and return its events in the order of sending."""
        return self._answer(LegDone).sent

    def send(self, leg: Leg) -> list[SentEvent]:
        """Send one complete leg."""
        self.begin(leg)
        return self.finish()

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _order(self, order: SenderOrder) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the sender's last answer gives the reason

    def _answer(self, kind: type[AnswerKind]) -> AnswerKind:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise errors.InstepError(
                "the benchmark's sender ended without an answer", "run it again"
            )
        answer = msgspec.json.decode(line, type=Answer)
        if isinstance(answer, SenderFailed):
            raise errors.InstepError(f"the benchmark's sender failed: {answer.what}", answer.remedy)
        assert isinstance(answer, kind)
        return answer


# --- in the sender's process ----------------------------------------------------------------------


class _LegRunner:
    def __init__(self, source: EventSource, publisher: Publisher) -> None:
        self._source, self._publisher = source, publisher
        self._refused: list[errors.Undelivered] = []

    def run(
        self, leg: Leg, is_over: Callable[[], bool], report_start: Callable[[int], None]
    ) -> list[SentEvent]:
        """Send one leg, up to its end or until it is over, and wait for its answers."""
        begin_ns, begin_at = time.monotonic_ns() + LEAD_NS, time.time() + LEAD_NS / SECOND_NS
        answers = tuple(array.array("q") for _ in range(3))
        report_start(begin_ns)

        def send(index: int) -> None:
            version, which = divmod(leg.first + index, self._source.documents)
            name, at = (
                load.document(which),
                datetime.fromtimestamp(begin_at + index / leg.rate, UTC),
            )
            value = load.value(name, version + 1, at, self._source.size)
            for answer in answers:
                answer.append(0)  # room for the answer to this event
            self._publisher.send_raw(
                name.encode(), value, on_delivery=functools.partial(self._answered, answers, index)
            )

        gc.collect()
        gc.disable()  # a full collection would delay events
        try:
            sent_ns = pace(due_times(begin_ns, leg), send, is_over)
            self._publisher.flush(ANSWER_PATIENCE_S)
        finally:
            gc.enable()
        if self._refused:
            raise self._refused[0]
        return [
            SentEvent(leg.first + index, due, *times_and_place)
            for index, (due, *times_and_place) in enumerate(
                zip(due_times(begin_ns, leg), sent_ns, *answers, strict=False)
            )
        ]

    def _answered(
        self,
        answers: tuple[array.array[int], ...],
        index: int,
        error: errors.Undelivered | None,
        place: Delivery | None,
    ) -> None:
        answers[0][index] = time.monotonic_ns()
        if place is None:
            self._refused.append(error or errors.Undelivered("an event was not delivered"))
        else:
            answers[1][index], answers[2][index] = place.partition, place.offset


def read_legs() -> tuple[queue.SimpleQueue[Leg], threading.Event]:
    """Return a queue of the legs read from standard input, and whether the latest is to end now.

    When the input ends, the process exits at once, whatever it is doing.
    """
    legs: queue.SimpleQueue[Leg] = queue.SimpleQueue()
    over = threading.Event()

    def listen() -> None:
        for line in sys.stdin.buffer:
            order = msgspec.json.decode(line, type=SenderOrder)
            if isinstance(order, EndLeg):
                over.set()
            else:
                over.clear()  # the order may have come after the last event of the leg before
                legs.put(order)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    return legs, over


def write_answer(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def main(encoded_source: str) -> None:
    source = msgspec.json.decode(encoded_source, type=EventSource)
    legs, over = read_legs()
    try:
        publisher = Publisher(
            source.bootstrap,
            source.topic,
            source="print-system",
            queue_buffering_max_messages=1_000_000,  # a full queue would delay the schedule
        )
        runner = _LegRunner(source, publisher)
        while True:
            leg = legs.get()
            write_answer(
                LegDone(runner.run(leg, over.is_set, lambda at: write_answer(LegStarted(at))))
            )
    except errors.InstepError as error:
        write_answer(SenderFailed(error.what, error.remedy))
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
