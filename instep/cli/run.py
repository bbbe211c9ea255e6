"""`instep run`: run pipelines, streams, KPIs and archives."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instep import settings
from instep.cli import options, output, resources
from instep.cli.options import GLOBAL, AsJson, Config, Debug, JobNames, Master, MetricsPort, Once

if TYPE_CHECKING:
    from instep.pipeline.job import Job

TOTALS = ("records", "applied", "stale", "repeated", "ignored", "parked", "dead")


class FailOn(StrEnum):
    """What turns a run that ended normally into a failure."""

    QUARANTINE = "quarantine"


app = typer.Typer()


@app.command()
def run(
    names: JobNames = None,
    once: Once = False,
    master: Master = None,
    metrics: MetricsPort = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option("--fail-on", help="Exit with status 1 if this run quarantined any event."),
    ] = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Run pipelines, streams, KPIs and archives until stopped.

    With --once, apply everything up to the end of each log, then exit. With --json as well, print
    at the end what became of each job.
    """
    options.require_once(once=once, as_json=as_json)
    declared = options.with_master(settings.load(GLOBAL.config), master)
    chosen = options.select_jobs(declared, names)
    with resources.spark_files(queries=settings.any_query(declared, chosen)) as files:
        # Only now: these import pyspark, and spark_files has checked that it is installed.
        from instep import jobs
        from instep.pipeline import quarantine_summary, supervisor
        from instep.pipeline.reporter import Reporter

        running: list[Job] = []

        def observe(jobs_of_run: Sequence[Job]) -> Reporter:
            running[:] = jobs_of_run
            return Reporter(jobs_of_run, verbose=GLOBAL.debug)

        try:
            with resources.cluster(declared) as cluster:
                ended = supervisor.run(
                    declared.spark,
                    jobs.groups(declared, chosen),
                    cluster,
                    files,
                    once=once,
                    metrics_port=metrics,
                    verbose=GLOBAL.debug,
                    observe=observe,
                )
        finally:  # an error that ended one job is raised when all have ended
            if as_json and running:
                output.print_json({"jobs": [_for_json(declared, job) for job in running]})
        quarantined = sum(quarantine_summary.count(job.progress.totals) for job in ended)
    if quarantined and fail_on is FailOn.QUARANTINE:
        output.say(
            f"{output.ERROR}{quarantined:,} events were quarantined (--fail-on quarantine)\n"
            "see: instep dead list; instep parked list"
        )
        raise typer.Exit(1)


def _for_json(declared: settings.Settings, job: Job) -> dict[str, Any]:
    return {
        "job": job.name,
        "kind": settings.job_kind(declared, job.name),
        "state": job.state.value,
        "totals": {name: job.progress.totals[name] for name in TOTALS},
        "lag": job.progress.lag,
        "restarts": job.restarts,
        "error": output.error_for_json(job.error),
    }
