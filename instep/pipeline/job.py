"""What the supervisor runs: jobs, in groups of one kind.

A job is a pipeline, or a flow of another kind that works in the same Spark session: it has a state,
progress and perhaps an error that ended it. A group knows how to create the jobs of its kind. The
supervisor knows nothing else about them, so packages above this one can add kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec
from prometheus_client.registry import Collector

from instep import errors
from instep.kafka.connection import Cluster
from instep.pipeline.progress import Progress

if TYPE_CHECKING:
    from instep.pipeline.session import Session


class RunnerState(StrEnum):
    """The state of a job."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


class Job(Protocol):
    """One declared pipeline, or a job of another kind, that runs until it ends or is stopped.

    It waits for its servers by itself. An error that does not pass ends this job only.
    """

    @property
    def name(self) -> str:
        """Its name, which no job of another kind has."""

    @property
    def state(self) -> RunnerState:
        """Its state."""

    @property
    def error(self) -> errors.InstepError | None:
        """What ended it."""

    @property
    def waiting_for(self) -> str:
        """What it waits for while it is waiting."""

    @property
    def restarts(self) -> int:
        """How often its flow was restarted."""

    @property
    def progress(self) -> Progress:
        """Its totals, positions, lag, rate and freshness."""

    def start(self) -> None:
        """Start it in its own thread."""

    def stop(self, patience_s: float, /) -> None:
        """Stop it; wait at most this long for its thread."""

    def suspend(self) -> None:
        """Stop the flow, and start none until its group has another Spark session."""

    def waiting_s(self) -> float:
        """Return for how long it has been waiting."""

    def progress_text(self) -> str:
        """Return rate, lag, freshness and totals while it is running, without the name."""

    def totals_text(self) -> str:
        """Return the totals at the end, without the name."""

    def warning(self) -> str | None:
        """Return what to point out at the end, e.g. that most events went to quarantine."""


class RunContext(msgspec.Struct, frozen=True):
    """What the jobs of a run share.

    `slot_users` is the number of users that divide the slots of Spark among themselves: each group
    with resident tasks, and all queries together. Whoever keeps slots takes its share at most.
    """

    opened: Session
    cluster: Cluster
    once: bool
    slot_users: int = 1


class JobGroup(Protocol):
    """The jobs of one kind in a run, from the checks before Spark starts to the end."""

    @property
    def kind(self) -> str:
        """The kind of its jobs in the singular, e.g. "pipeline"."""

    @property
    def names(self) -> Sequence[str]:
        """The names of its jobs."""

    @property
    def is_resident(self) -> bool:
        """Whether it has tasks that keep their slots as long as the run."""

    @property
    def has_queries(self) -> bool:
        """Whether it has queries of Structured Streaming, which need slots that stay free."""

    def check(self, cluster: Cluster) -> list[errors.Unreachable]:
        """Raise before Spark starts if settings are wrong.

        Return an error for each job whose servers cannot be reached: the run goes on if another
        job can.
        """

    def measure(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        """Print what waits for each job, before Spark starts, which takes seconds."""

    def open(self, context: RunContext) -> Sequence[Job]:
        """Create the jobs in the Spark session, without starting them."""

    def tick(self) -> None:
        """Do what is due. Called four times a second."""

    def release(self) -> None:
        """End what belongs to the Spark session, which ends: the jobs are suspended or stopped."""

    def resume(self) -> None:
        """Continue the jobs in the new Spark session that the context has."""

    def collector(self) -> Collector:
        """Return the metrics of its jobs, also before they are created."""
