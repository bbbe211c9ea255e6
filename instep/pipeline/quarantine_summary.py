"""What a run set aside: a warning at its end when that is most of what came."""

from __future__ import annotations

import shlex

from instep import errors
from instep.document.showing import counted
from instep.pipeline.runner import Runner
from instep.sinks import ledger_reader

MOST = 0.5


def count(runner: Runner) -> int:
    """Events of this run that became dead letters or were parked."""
    totals = runner.progress.totals
    return totals["dead"] + totals["parked"]


def warning(runner: Runner) -> str | None:
    """A line for the end of a run that set most of its events aside: how many, why, and how to look at them."""
    totals = runner.progress.totals
    aside = count(runner)
    if not aside or aside <= totals["records"] * MOST:
        return None
    name = shlex.quote(runner.name)
    looks = [f"instep dead list {name}"] * bool(totals["dead"]) + [
        f"instep parked list {name}"
    ] * bool(totals["parked"])
    return (
        f"WARNING: {runner.name}: {aside:,} of {counted(totals['records'], 'record')} were set aside"
        f" ({counted(totals['dead'], 'dead letter')}, {totals['parked']:,} parked){_main_reason(runner)};"
        f" look: {'; '.join(looks)}"
    )


def _main_reason(runner: Runner) -> str:
    try:
        found = ledger_reader.reasons(runner.name, runner.pipeline, runner.started_at)
    except errors.InstepError:  # the warning itself is worth more than its reason
        return ""
    if not found:
        return ""
    reason, many = next(iter(found.items()))
    return f", {'all' if len(found) == 1 else f'{many:,} of them'} for {reason}"
