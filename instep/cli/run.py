"""`instep run`: run pipelines."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from instep import settings
from instep.cli import options, output, resources
from instep.cli.options import GLOBAL, Config, Debug, Master, MetricsPort, PipelineNames


class FailOn(StrEnum):
    """What turns a run that ended normally into a failure."""

    QUARANTINE = "quarantine"


app = typer.Typer()


@app.command()
def run(
    pipelines: PipelineNames = None,
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
    """Apply status events to the target tables until stopped."""
    declared = options.with_master(settings.load(GLOBAL.config), master)
    names = options.select_pipelines(declared, pipelines)
    with resources.spark_files(queries=settings.any_query(declared, names)) as files:
        # Only now: these import pyspark, and spark_files has checked that it is installed.
        from instep.pipeline import quarantine_summary, supervisor

        with resources.cluster(declared) as cluster:
            runners = supervisor.run(
                declared,
                names,
                cluster,
                files,
                once=once,
                metrics_port=metrics,
                verbose=GLOBAL.debug,
            )
        quarantined = sum(map(quarantine_summary.count, runners))
    if quarantined and fail_on is FailOn.QUARANTINE:
        output.say(
            f"{output.ERROR}{quarantined:,} events were quarantined (--fail-on quarantine)\n"
            "see: instep dead list; instep parked list"
        )
        raise typer.Exit(1)
