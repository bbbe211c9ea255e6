"""The warning at the end of a run that put most of its events into quarantine."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime

from instep import errors, settings
from instep.document.showing import counted
from instep.sinks import ledger_reader

WARNING_SHARE = 0.5


def count(totals: Mapping[str, int]) -> int:
    """Return the number of events of a run that became dead letters or were parked."""
    return totals["dead"] + totals["parked"]


def warning(
    name: str, pipeline: settings.Pipeline, totals: Mapping[str, int], since: datetime
) -> str | None:
    """Return the warning: how many, why, and the commands that list them; None if there are few."""
    quarantined = count(totals)
    if not quarantined or quarantined <= totals["records"] * WARNING_SHARE:
        return None
    quoted = shlex.quote(name)
    commands = []
    if totals["dead"]:
        commands.append(f"instep dead list {quoted}")
    if totals["parked"]:
        commands.append(f"instep parked list {quoted}")
    return (
        f"WARNING: {name}: {quarantined:,} of {counted(totals['records'], 'record')} went to"
        f" quarantine ({counted(totals['dead'], 'dead letter')}, {totals['parked']:,} parked)"
        f"{_main_reason(name, pipeline, since)}; list them: {'; '.join(commands)}"
    )


def _main_reason(name: str, pipeline: settings.Pipeline, since: datetime) -> str:
    try:
        reasons = ledger_reader.reasons(name, pipeline, since)
    except errors.InstepError:  # warn without the reason
        return ""
    if not reasons:
        return ""
    reason, events = next(iter(reasons.items()))
    share = "all" if len(reasons) == 1 else f"{events:,} of them"
    return f", {share} for {reason}"
