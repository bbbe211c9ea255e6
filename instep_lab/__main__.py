"""The second process of a run, which `worker.py` starts: `python -m instep_lab RUN TAKEN`.

It prints one line for each step, which the first process shows.
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from instep_lab import claims, lab
from instep_lab.worker import TakenClaims


def main(run: str, taken: str) -> None:
    # through every `finally` block, so that its brokers and clients are stopped
    signal.signal(signal.SIGTERM, _exit_on_signal)
    say = partial(print, flush=True)
    lab.Lab(Path(run), claims.ALL, say=say).assist(TakenClaims(Path(taken)))


def _exit_on_signal(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main(*sys.argv[1:3])
