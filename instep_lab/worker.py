"""A second process that tests claims of a run beside the process that the user started.

Most claims wait most of the time: for time-outs, rebalances and brokers that start again. So two of
them run at the same time, each on brokers of its own process, where no fault of the other can reach
them. Claims that measure speed run alone, when this process has ended: see `Lab.run`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

from instep.local import keeper_client
from instep.waiting import wait_until
from instep_lab.claim import Claim

MODULE = "instep_lab"  # what `python -m` runs
END_TIMEOUT_S = 30.0
POLL_S = 0.1


class TakenClaims:
    """The claims that a process of the run has begun: a folder with an empty file for each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, claim: Claim) -> bool:
        """Take a claim; return False if the other process has taken it."""
        try:
            (self.folder / claim.id).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def take_each(self, claims: Iterable[Claim]) -> Iterator[Claim]:
        """Yield the claims that are free when it is their turn."""
        return (claim for claim in claims if self.take(claim))

    @property
    def count(self) -> int:
        return sum(1 for _ in self.folder.iterdir())


class ClaimWorker:
    """The second process, under a keeper, which ends it when this process ends."""

    def __init__(self, run: Path, taken: TakenClaims, log: Path) -> None:
        self._log = log
        self._log.touch()
        self._shown = 0
        self._keeper = keeper_client.KeeperClient(
            end_signal=signal.SIGTERM, end_timeout_s=END_TIMEOUT_S
        )
        argv = [sys.executable, "-m", MODULE, str(run.absolute()), str(taken.folder)]
        self._keeper.launch(argv, log=log, cwd=Path.cwd())

    def relay(self, say: Callable[[str], None]) -> None:
        """Say the complete lines that the process has printed since the last call."""
        with self._log.open("rb") as stream:
            stream.seek(self._shown)
            lines, _, _ = stream.read().rpartition(b"\n")
        if lines:
            self._shown += len(lines) + 1
            for line in lines.decode("utf-8", errors="replace").split("\n"):
                say(line)

    def wait(self, say: Callable[[str], None]) -> int:
        """Wait until the process has ended; return its exit status."""
        status: int | None = None

        def ended() -> bool:
            nonlocal status
            status = self._keeper.poll()
            self.relay(say)
            return status is not None

        while not wait_until(ended, 60.0, interval_s=POLL_S):
            pass
        return status or 0

    def close(self) -> None:
        """End the process with everything that it started."""
        self._keeper.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
