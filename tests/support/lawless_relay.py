"""`instep relay run` that ignores the lease: it works although another process is active.

    python -m tests.support.lawless_relay relay run NAME --config FILE

Only the transactional ids in Kafka keep it and the other one apart.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Sequence
from typing import NoReturn

from instep.relay import relay
from instep.sources.lease import Lease, LeaseRow

MODULE = "tests.support.lawless_relay"


class LawlessLease(Lease):
    """A lease that is never taken, and never noticed to be somebody else's."""

    def claim(self) -> bool:
        return True

    def renew(self, published_rows: int | None, *, is_counted: bool) -> LeaseRow:
        del published_rows, is_counted
        return self.read()

    def mark_started(self) -> None:
        """Leave the row to the process that has the lease."""

    def release(self, published_rows: int | None = None) -> None:
        """Give nothing back."""


def stay_lawless() -> None:
    """Continue as this program where the command continues as a new process."""
    execute = os.execv

    def again(path: str, arguments: Sequence[str]) -> NoReturn:
        execute(path, [MODULE if part == "instep" else part for part in arguments])

    vars(os)["execv"] = again


if __name__ == "__main__":
    vars(relay)["Lease"] = LawlessLease
    stay_lawless()
    runpy.run_module("instep", run_name="__main__", alter_sys=True)
