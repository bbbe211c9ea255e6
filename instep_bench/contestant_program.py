"""A program that applies a topic for each order that it reads, and the process that controls it.

The program reads orders from its standard input, one JSON object per line, and appends its answers
to a file. `serve` runs in the program, `ContestantProgram` in its owner. The program ends when its
owner ends, even after kill -9. Times are from the wall clock, which processes share.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from instep import errors
from instep.local import keeper_client, paths
from instep.waiting import wait_until

POLL_INTERVAL_S = 0.01
PATIENCE_S = 1_800.0
TAIL_LINES = 15
ERROR_CHARACTERS = 900


class Order(msgspec.Struct, frozen=True):
    """Apply this pipeline's topic to its table, up to the end; or what the options say."""

    config: str
    pipeline: str
    options: list[str] = []


class OrderResult(msgspec.Struct, frozen=True):
    """The end of an order: done, with the time of each micro-batch if asked for, or an error."""

    error: str = ""
    batches_ms: list[float] = []


def serve(apply: Callable[[Order], OrderResult]) -> None:
    """Carry out orders until the input ends."""
    answers = Path(sys.argv[1])
    for line in sys.stdin:
        try:
            answer = apply(msgspec.json.decode(line, type=Order))
        except Exception as error:  # noqa: BLE001 - every error is reported to the owner
            answer = OrderResult(error=brief(f"{type(error).__name__}: {error}"))
        with answers.open("ab") as file:
            file.write(msgspec.json.encode(answer) + b"\n")


def brief(text: str) -> str:
    """Return the beginning and the end of an error message, without traceback lines.

    In Spark's messages the cause is in the middle or at the end, after tracebacks.
    """
    lines = [
        line.strip()
        for line in text.splitlines()
        if not line.lstrip().startswith(("at ", "File ", "^", "~"))
    ]
    text = " ".join(line for line in lines if line)
    if len(text) <= ERROR_CHARACTERS:
        return text
    half = ERROR_CHARACTERS // 2
    return f"{text[:half]} … {text[-half:]}"


class ContestantProgram:
    """One such program, started with `python -m MODULE`."""

    def __init__(self, module: str, folder: Path) -> None:
        self._argv: Sequence[str] = [sys.executable, "-m", module]
        self._folder = folder
        self._keeper: keeper_client.KeeperClient | None = None
        self._orders = -1
        self._answers_read = 0
        self.pid = 0

    @property
    def log(self) -> Path:
        return self._folder / "program.log"

    @property
    def _answers(self) -> Path:
        return self._folder / "answers"

    def start(self) -> None:
        self._folder.mkdir()
        self._answers.touch()
        orders = self._folder / "orders"
        os.mkfifo(orders, 0o600)
        # Opened for reading and writing, so that neither end waits for the other to be opened.
        self._orders = os.open(orders, os.O_RDWR)
        self._keeper = keeper_client.KeeperClient()
        self.pid = self._keeper.launch(
            [*self._argv, str(self._answers)],
            log=self.log,
            given=orders,
            env=paths.python_environment(),
        )

    def send(self, order: Order) -> None:
        os.write(self._orders, msgspec.json.encode(order) + b"\n")

    def receive(self, timeout_s: float) -> OrderResult:
        """Return the answer to the oldest unanswered order."""

        def has_answered() -> bool:
            if self.has_answered():
                return True
            self.check()
            return False

        if not wait_until(has_answered, timeout_s, interval_s=POLL_INTERVAL_S):
            raise errors.InstepError(
                f"{self._argv[-1]} gave no answer within {timeout_s:.0f} s; {self._tail()}"
            )
        self._answers_read += 1
        line = self._answers.read_bytes().split(b"\n")[self._answers_read - 1]
        return msgspec.json.decode(line, type=OrderResult)

    def carry_out(self, order: Order, name: str) -> float:
        """Give an order and wait for its end; return the seconds that it took.

        `name` is the contestant's, for the error if it fails.
        """
        began = time.monotonic()
        self.send(order)
        result = self.receive(PATIENCE_S)
        seconds = time.monotonic() - began
        if result.error:
            raise errors.InstepError(f"{name} failed: {result.error}")
        return seconds

    def has_answered(self) -> bool:
        # A line without its end is still being written.
        return self._answers.read_bytes().count(b"\n") > self._answers_read

    def check(self) -> None:
        """Raise if the program has ended."""
        if self._keeper is None or (status := self._keeper.poll()) is not None:
            raise errors.InstepError(
                f"{self._argv[-1]} ended unexpectedly"
                f" (status {status if self._keeper else None}); {self._tail()}"
            )

    def _tail(self) -> str:
        lines: list[str] = []
        if self.log.exists():
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(["the end of its log:", *lines[-TAIL_LINES:]])

    def close(self) -> None:
        if self._keeper:
            self._keeper.close()
            self._keeper = None
        if self._orders >= 0:
            with contextlib.suppress(OSError):
                os.close(self._orders)
            self._orders = -1
