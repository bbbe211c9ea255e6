"""`instep run`: run pipelines, streams and KPIs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from instep import settings
from instep.cli import options, output, resources
from instep.cli.options import GLOBAL, Config, Debug, JobNames, Master, MetricsPort


class FailOn(StrEnum):
    """What turns a run that ended normally into a failure."""

    QUARANTINE = "quarantine"


app = typer.Typer()


@app.command()
def run(
    names: JobNames = None,
    once: Annotated[
        bool, typer.Option("--once", help="Apply everything up to the end of the log, then exit.")
    ] = False,
    master: Master = None,
    metrics: MetricsPort = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option("--fail-on", help="Exit with status 1 if this run quarantined any event."),
    ] = None,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Run pipelines, streams and KPIs until stopped."""
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
