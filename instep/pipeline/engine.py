"""What a runner needs of an engine: start a pipeline's flow, follow it, and stop it.

There are two engines. `resident` keeps tasks running that read the topic themselves; `micro_batch`
is a streaming query. Both apply the same transaction, so the guarantees are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from instep import errors
from instep.document.decoding import Record
from instep.document.results import Result
from instep.pipeline.applier import TaskPlan
from instep.sinks.target import Position


class Report(msgspec.Struct, frozen=True):
    """What was committed since the last report: counts, and the position of each partition."""

    counts: dict[str, int]
    positions: dict[int, int]
    ends: dict[int, int] = {}  # the committed ends of the log, as far as the engine knows them


class Flow(Protocol):
    """A pipeline that an engine runs, from one start to its end or failure."""

    poll_interval_s: float  # how often to look at it, unless it wakes the runner

    def is_active(self) -> bool:
        """Return whether it still runs."""

    def failure(self) -> errors.InstepError | None:
        """Return why it is no longer active; None if it reached its end or was stopped."""

    def waits_for(self) -> str | None:
        """Return what it waits for, if it has been unable to work for a while."""

    def reports(self) -> Sequence[Report]:
        """Return the reports that are new since the last call."""

    def add_partitions(self, partitions: Collection[int]) -> None:
        """Read these partitions too, if it does not read them yet."""

    def stop(self) -> None:
        """Stop it after the current transaction, or after a short time."""


@runtime_checkable
class Transforms(Protocol):
    """A flow with a transformation, which it can also apply to other records."""

    def transform(self, records: Sequence[Record]) -> list[Result]:
        """Return the results of records of the log."""


class Engine(Protocol):
    """Runs the flows of pipelines in a Spark session."""

    def start(
        self,
        plan: TaskPlan,
        ledger: Mapping[int, Position],
        *,
        once: bool,
        wake: Callable[[], None],
    ) -> Flow:
        """Start a flow at the ledger's offsets; with `once` it ends at the end of the log.

        It may call `wake` when there is something new to see.
        """
