"""A process that applies a log to three tables, and may kill itself at a step.

As a program: URL, number of the configuration, then step and count of the kill, or 0 and 0.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from instep.document.decoding import Decoder
from instep.pipeline.apply.batch import ProbeEvent
from instep.pipeline.apply.transaction import BatchTransaction
from tests.support.further_model import Change
from tests.support.further_tables import CONFIGURATIONS, random_changes, records_of
from tests.support.transactions import WRITER, log_holds_nothing

EVENTS = 600
DOCUMENTS = "abcdefghijklmnopqrstuvwxyz"
ROOT = Path(__file__).parents[2]


def log(number: int) -> list[Change]:
    """Return the events of a configuration: always the same."""
    return random_changes(random.Random(number), EVENTS, DOCUMENTS)


def live(url: str, number: int, kill: tuple[int, int] = (0, 0)) -> bool:
    """Run the process; return whether it was killed."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, url, str(number), *map(str, kill)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def _main(url: str, number: int, step: int, count: int) -> None:
    sink, left = CONFIGURATIONS[number].sink(url), count

    def probe(moment: ProbeEvent) -> None:
        nonlocal left
        left -= moment.step == step
        if step and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    records, decoder = records_of(log(number), 0), Decoder(sink.target.mapping)
    start = sink.ledger.positions()[0].next_offset
    while start < len(records):
        size = random.choice([1, 2, 5, 12])
        batch = records[start : start + size]
        BatchTransaction(WRITER, 0, batch, log_holds_nothing, probe).apply(sink, decoder)
        start += size


if __name__ == "__main__":
    _main(sys.argv[1], *map(int, sys.argv[2:]))
