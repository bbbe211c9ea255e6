"""The warning at the end of a run that put most of its events into quarantine."""

from __future__ import annotations

import shlex

from instep import errors
from instep.document.showing import counted
from instep.pipeline.runner import Runner
from instep.sinks import ledger_reader

WARNING_SHARE = 0.5


def count(runner: Runner) -> int:
    """Return the number of events of this run that became dead letters or were parked."""
    totals = runner.progress.totals
    return totals["dead"] + totals["parked"]


def warning(runner: Runner) -> str | None:
    """Return the warning: how many, why, and the commands that list them; None if there are few."""
    totals = runner.progress.totals
    quarantined = count(runner)
    if not quarantined or quarantined <= totals["records"] * WARNING_SHARE:
        return None
    name = shlex.quote(runner.name)
    commands = []
    if totals["dead"]:
        commands.append(f"instep dead list {name}")
    if totals["parked"]:
        commands.append(f"instep parked list {name}")
    return (
        f"WARNING: {runner.name}: {quarantined:,} of {counted(totals['records'], 'record')} went to"
        f" quarantine ({counted(totals['dead'], 'dead letter')}, {totals['parked']:,} parked)"
        f"{_main_reason(runner)}; list them: {'; '.join(commands)}"
    )


def _main_reason(runner: Runner) -> str:
    try:
        reasons = ledger_reader.reasons(runner.name, runner.pipeline, runner.started_at)
    except errors.InstepError:  # warn without the reason
        return ""
    if not reasons:
        return ""
    reason, events = next(iter(reasons.items()))
    share = "all" if len(reasons) == 1 else f"{events:,} of them"
    return f", {share} for {reason}"
