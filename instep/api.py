"""Run pipelines from Python: what `import instep` offers beside the publisher."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from instep import errors, extras, settings

if TYPE_CHECKING:
    from instep.pipeline.job import Job
    from instep.terminal import Tone

PROGRESS_INTERVAL_S = 1.0


class PipelineProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one pipeline, or a job of another kind, is.

    `state` is starting, running, waiting or ended. `lag` is the number of records up to the end of
    the log, None while it is not known. The freshness values are upper bounds over the last ten
    seconds, None if no event was applied in them. `error` is what ended the pipeline.
    """

    pipeline: str
    state: str
    records: int
    applied: int
    stale: int
    repeated: int
    ignored: int
    parked: int
    dead: int
    applied_per_s: float
    lag: int | None
    freshness_p50_s: float | None
    freshness_p99_s: float | None
    restarts: int
    waiting_for: str = ""
    error: errors.InstepError | None = None


def load_settings(path: str | Path | None = None) -> settings.Settings:
    """Read a settings file.

    Without a path: the file that INSTEP_CONFIG names, else `instep.toml` in this folder.
    """
    return settings.load(None if path is None else Path(path))


def init(
    declared: settings.Settings | str | Path, *, pipelines: Sequence[str] | None = None
) -> dict[str, list[str]]:
    """Create what pipelines and KPIs lack in their target databases; return the statements by name.

    These are instep's own tables and, where it does not exist, the target table with the declared
    column types. An existing target table is never changed. Raise TargetUnfit if one does not fit.
    """
    from instep.kpis import definition
    from instep.sinks import facts, inspection, preparation

    declared, names = _chosen(
        declared, pipelines, lambda declared: [*declared.pipelines, *declared.kpis]
    )
    written = dict(declared.pipelines) | definition.tables(declared)
    executed: dict[str, list[str]] = {}
    for name in names:
        pipeline = written[name]
        for fault in preparation.faults(pipeline):
            raise fault
        executed[name] = preparation.prepare(pipeline, is_kpi=name in declared.kpis)
        inspection.inspect(name, pipeline)
        facts.refuse_own_without_rights(name, pipeline)
    return executed


def run(
    declared: settings.Settings | str | Path,
    *,
    pipelines: Sequence[str] | None = None,
    once: bool = False,
    on_progress: Callable[[PipelineProgress], None] | None = None,
    on_message: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    metrics_port: int | None = None,
) -> list[PipelineProgress]:
    """Run pipelines until they end, and return how far each came.

    `declared` is what `load_settings` returned, or the path of a settings file. `pipelines` may
    also name streams, KPIs and archives; without it, everything that is declared runs. With `once`
    they end at the end of the log; else they run until `stop` is set, or, if there is none and this
    is the main thread, until SIGINT or SIGTERM.

    `on_progress` is called from this thread once a second and at every change of state, for each
    pipeline. `on_message` gets the lines that `instep run` prints; without it they go to stderr.

    Raise the first error that ended a pipeline, once all have ended. Everything that was applied
    is committed by then, and the next run continues there.
    """
    declared, names = _chosen(declared, pipelines, settings.job_names)
    if stop is None and threading.current_thread() is not threading.main_thread():
        raise errors.SettingsError(
            "instep.run was called from a thread that cannot receive signals, without `stop`",
            "pass stop=threading.Event(), and set it to end the run",
        )
    extras.require_spark()
    from instep import jobs
    from instep.kafka.connection import Cluster
    from instep.local import class_archives, java, local_servers
    from instep.pipeline import supervisor
    from instep.pipeline.stop import Stop

    say = on_message or functools.partial(print, file=sys.stderr)
    java.find()
    files = class_archives.spark_files(queries=settings.any_query(declared, names))
    bootstrap = declared.kafka.bootstrap or local_servers.broker_on_demand(say)
    with Cluster(declared.kafka, bootstrap) as cluster:
        ended = supervisor.run(
            declared.spark,
            jobs.groups(declared, names),
            cluster,
            files,
            once=once,
            metrics_port=metrics_port,
            observe=functools.partial(_Callbacks, on_progress=on_progress, say=say),
            stop=Stop(stop),
        )
    return [_progress(job, "ended") for job in ended]


def _chosen(
    declared: settings.Settings | str | Path,
    given: Sequence[str] | None,
    known: Callable[[settings.Settings], list[str]],
) -> tuple[settings.Settings, list[str]]:
    if not isinstance(declared, settings.Settings):
        declared = load_settings(declared)
    names = list(dict.fromkeys(known(declared) if given is None else given))
    if not names:
        raise errors.SettingsError("no pipeline is declared or named", "declare [pipelines.NAME]")
    for name in names:
        if name not in known(declared):
            settings.pipeline(declared, name)  # raises an error that suggests the nearest one
    return declared, names


class _Callbacks:
    """Passes on what happens in a run."""

    def __init__(
        self,
        jobs: Sequence[Job],
        on_progress: Callable[[PipelineProgress], None] | None,
        say: Callable[[str], object],
    ) -> None:
        self._jobs, self._on_progress, self._say = jobs, on_progress, say
        self._states: dict[str, str] = {}
        self._due = 0.0

    def say(self, text: str, _tone: Tone | None = None) -> None:
        self._say(text)

    def tick(self) -> None:
        due = time.monotonic() >= self._due
        if due:
            self._due = time.monotonic() + PROGRESS_INTERVAL_S
        for job in self._jobs:
            changed = self._states.get(job.name) != job.state
            self._states[job.name] = job.state
            if self._on_progress and (due or changed):
                self._on_progress(_progress(job))

    def stop(self) -> None:
        """Nothing to remove: a callback draws nothing."""

    def end(self) -> None:
        for job in self._jobs:
            if self._on_progress:
                self._on_progress(_progress(job, "ended"))


def _progress(job: Job, state: str | None = None) -> PipelineProgress:
    done = job.progress
    counts = ("records", "applied", "stale", "repeated", "ignored", "parked", "dead")
    return PipelineProgress(
        pipeline=job.name,
        state=state or job.state.value,
        applied_per_s=done.rate(),
        lag=done.lag,
        freshness_p50_s=done.freshness_s(0.5),
        freshness_p99_s=done.freshness_s(0.99),
        restarts=job.restarts,
        waiting_for=job.waiting_for,
        error=job.error,
        **{name: done.totals[name] for name in counts},
    )
