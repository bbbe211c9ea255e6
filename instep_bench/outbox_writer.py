"""The application of a benchmark: commits events to an outbox by a fixed schedule.

It has its own process, as the sender has, so that neither the relay nor the pipeline makes it late.
Several connections share the schedule: one alone could not commit often enough on a slow disk.
"""

from __future__ import annotations

import array
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec

from instep import errors
from instep.document.event import StatusEvent
from instep.emit.outbox import Outbox
from instep.sources.connection import SourceConnection
from instep_bench import load
from instep_bench.latency_join import SentEvent
from instep_bench.sender import (
    LEAD_NS,
    EventSender,
    Leg,
    LegDone,
    LegStarted,
    SenderFailed,
    due_times,
    pace,
    read_legs,
    write_answer,
)

SOURCE = "INSTEP_BENCH_OUTBOX"  # environment variable: the URL may contain a password
CONNECTIONS = 4
UNKNOWN = -1  # the writer does not know the record's place in the log


class OutboxSource(msgspec.Struct, frozen=True):
    """The outbox, and the number of documents."""

    url: str
    outbox: str
    documents: int
    size: int = 150

    @property
    def connections(self) -> int:
        """Return how many connections commit: SQLite has one writer."""
        return 1 if self.url.startswith("sqlite") else CONNECTIONS


class OutboxWriter(EventSender):
    """The writer's process. Its events have no place in the log yet: the relay gives them one."""

    def __init__(self, source: OutboxSource) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "instep_bench.outbox_writer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, SOURCE: msgspec.json.encode(source).decode()},
            start_new_session=True,
        )


def event(source: OutboxSource, number: int) -> StatusEvent:
    """Return the event with this number. The documents take turns, as in `load`."""
    version, which = divmod(number, source.documents)
    return StatusEvent(
        document=load.document(which),
        status=load.status(version + 1),
        version=version + 1,
        at=datetime.now(UTC),
        fields={"number": number, "pad": "." * max(0, source.size - 120)},
    )


# --- in the writer's process ----------------------------------------------------------------------


class _LegWriter:
    """One connection: it commits every n-th event of a leg."""

    def __init__(self, source: OutboxSource) -> None:
        self._source, self._outbox = source, Outbox(source.outbox)
        self._opened = SourceConnection(source.url)
        self._begin = "BEGIN IMMEDIATE" if source.url.startswith("sqlite") else "BEGIN"
        self._run = self._opened.execute

    def write(
        self, leg: Leg, begin_ns: int, which: int, is_over: Callable[[], bool]
    ) -> list[SentEvent]:
        step = self._source.connections
        due_ns = list(due_times(begin_ns, leg))[which::step]
        commit_ns, answered_ns = array.array("q"), array.array("q")

        def commit(index: int) -> None:
            self._run(self._begin)
            number = leg.first + which + index * step
            self._outbox.add(self._opened.driver, event(self._source, number))
            commit_ns.append(time.monotonic_ns())
            self._run("COMMIT")
            answered_ns.append(time.monotonic_ns())

        pace(due_ns, commit, is_over)
        return [
            SentEvent(leg.first + which + index * step, due, committed, answered, UNKNOWN, UNKNOWN)
            for index, (due, committed, answered) in enumerate(
                zip(due_ns, commit_ns, answered_ns, strict=False)
            )
        ]


def main(encoded_source: str) -> None:
    source = msgspec.json.decode(encoded_source, type=OutboxSource)
    legs, over = read_legs()
    try:
        writers = [_LegWriter(source) for _ in range(source.connections)]
        with ThreadPoolExecutor(len(writers)) as pool:
            while True:
                leg = legs.get()
                begin_ns = time.monotonic_ns() + LEAD_NS
                write_answer(LegStarted(begin_ns))
                gc.collect()
                gc.disable()  # a full collection would delay events
                tasks = [
                    pool.submit(writer.write, leg, begin_ns, number, over.is_set)
                    for number, writer in enumerate(writers)
                ]
                sent = [one for task in tasks for one in task.result()]
                gc.enable()
                write_answer(LegDone(sorted(sent, key=lambda one: one.number)))
    except errors.InstepError as error:
        write_answer(SenderFailed(error.what, error.remedy))
        os._exit(1)


if __name__ == "__main__":
    main(os.environ[SOURCE])
