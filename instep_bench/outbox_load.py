"""The application of `instep bench relay`: commits outbox rows at an even rate in its own process.

The time of a row is that at which its COMMIT is sent. The times are written to a file, because the
row cannot know the time of its own commit. All processes of a machine share the monotonic clock.
"""

from __future__ import annotations

import array
import sys
import time
from pathlib import Path

import msgspec

from instep.document.event import StatusEvent
from instep.emit.outbox import Outbox
from instep.sources.connection import SourceConnection
from instep_bench import sender

MODULE = "instep_bench.outbox_load"


class OutboxLoad(msgspec.Struct, frozen=True):
    """What to commit, and where to write the times."""

    source: str
    outbox: str
    count: int
    rate: float
    documents: int
    times: str


def commit_times(file: Path) -> array.array[int]:
    """Return when each row was committed, by its number."""
    times = array.array("q")
    times.frombytes(file.read_bytes())
    return times


def main(encoded: str) -> None:
    load = msgspec.json.decode(encoded, type=OutboxLoad)
    outbox = Outbox(load.outbox)
    times = array.array("q")
    with SourceConnection(load.source) as opened:
        begin = "BEGIN IMMEDIATE" if opened.dialect.name == "sqlite" else "BEGIN"

        def commit(number: int) -> None:
            with opened.transaction(begin):
                event = StatusEvent(
                    document=f"d{number % load.documents}", status="PRINTED", version=number
                )
                outbox.add(opened.driver, event)
                times.append(time.monotonic_ns())

        leg = sender.Leg(0, load.count, load.rate)
        sender.pace(sender.due_times(time.monotonic_ns(), leg), commit)
    # The reader of the file must never see a part of it.
    part = Path(load.times + ".part")
    part.write_bytes(times.tobytes())
    part.rename(load.times)


if __name__ == "__main__":
    main(sys.argv[1])
