"""`instep run`: run pipelines, streams, KPIs and archives."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from instep import settings
from instep.cli import options, output, resources
from instep.cli.options import GLOBAL, Config, Debug, JobNames, Master, MetricsPort, Once


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
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Run pipelines, streams, KPIs and archives until stopped.

    With --once, apply everything up to the end of each log, then exit.
    """
    declared = options.with_master(settings.load(GLOBAL.config), master)
    chosen = options.select_jobs(declared, names)
    with resources.spark_files(queries=settings.any_query(declared, chosen)) as files:
        # Only now: these import pyspark, and spark_files has checked that it is installed.
        from instep import jobs
        from instep.pipeline import quarantine_summary, supervisor

        with resources.cluster(declared) as cluster:
            ended = supervisor.run(
                declared.spark,
                jobs.groups(declared, chosen),
                cluster,
                files,
                once=once,
                metrics_port=metrics,
                verbose=GLOBAL.debug,
            )
        quarantined = sum(quarantine_summary.count(job.progress.totals) for job in ended)
    if quarantined and fail_on is FailOn.QUARANTINE:
        output.say(
            f"{output.ERROR}{quarantined:,} events were quarantined (--fail-on quarantine)\n"
            "see: instep dead list; instep parked list"
        )
        raise typer.Exit(1)
