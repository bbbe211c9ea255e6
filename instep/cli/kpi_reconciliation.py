"""`instep reconcile --kpi`: compare KPI rows with a recomputation from the log, or count again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from instep import settings, terminal
from instep.cli import output, resources
from instep.cli.exit_status import HELD_BACK_STATUS
from instep.cli.options import GLOBAL
from instep.document.showing import counted
from instep.terminal import Tone

if TYPE_CHECKING:
    from instep.kpis.counting import KpiValues
    from instep.reconcile.kpi import KpiReport

SHOWN_MAX = 20
COLUMNS = ("KPI", "ROWS", "IN-STEP", "MISSING", "EXTRA", "DIFFERENT", "BEHIND", "NOT-COMPARED")
DIFFERENCE_COLUMNS = ("DIFFERENCE", "MINUTE", "KIND", "NAME", "EXPECTED", "FOUND")


def run(
    declared: settings.Settings,
    names: Sequence[str],
    *,
    wait_s: float,
    fix: bool,
    execute: bool,
    as_json: bool,
) -> None:
    """Reconcile KPIs, print the reports, and exit with the status of `instep reconcile`."""
    for name in names:
        settings.kpi(declared, name)
    reports: list[KpiReport] = []
    with resources.spark_files(queries=True) as files:
        # Only now: these import pyspark, and spark_files has checked that it is installed.
        from instep.reconcile import kpi
        from instep.reconcile.report import ReconcileVerdict

        request = kpi.KpiRequest(wait_s=wait_s, fix=fix, execute=execute)
        with resources.cluster(declared) as cluster, terminal.ProgressLine(sys.stderr) as line:

            def say(text: str) -> None:
                line.clear()  # messages and the progress line share stderr
                output.say(text)

            for report in kpi.run(
                declared,
                names,
                cluster,
                files,
                request,
                say=say,
                progress=line.update,
                verbose=GLOBAL.debug,
            ):
                reports.append(report)
                line.clear()
                if not as_json:
                    _print(report)
    if as_json:
        executed = {"executed": execute} if fix else {}
        output.print_json({**executed, "kpis": reports})
    if fix and not execute:
        output.say_dry_run()
    verdicts = {report.verdict for report in reports}
    if ReconcileVerdict.NOT_IN_STEP in verdicts:
        raise typer.Exit(1)
    if ReconcileVerdict.HELD_BACK in verdicts:
        raise typer.Exit(HELD_BACK_STATUS)


def _print(report: KpiReport) -> None:
    counts = (
        report.kpi,
        report.rows,
        report.rows_in_step,
        report.missing,
        report.extra,
        report.different,
        report.behind.records,
        report.not_compared,
    )
    typer.echo(output.table(COLUMNS, [counts]))
    if report.differences:
        rows = [
            (
                one.kind,
                one.minute,
                one.counts,
                output.shortened(one.name, 40),
                _values(one.expected),
                _values(one.found),
            )
            for one in report.differences[:SHOWN_MAX]
        ]
        typer.echo("\n" + output.table(DIFFERENCE_COLUMNS, rows))
    for note in report.notes:
        output.say(f"{report.kpi}: {note}")
    if report.fixed:
        changed = counted(len(report.differences), "row")
        output.say(f"{report.kpi}: counted again up to the end of the log; {changed} changed")
    output.say(f"{report.kpi}: {report.verdict}", Tone.GOOD if report.in_step else Tone.BAD)


def _values(values: KpiValues | None) -> str:
    if values is None:
        return "-"
    if values.p50_ms is None:
        return f"{values.count:,}"
    return f"{values.count:,} (p50 {values.p50_ms:,} ms, p95 {values.p95_ms:,} ms)"
