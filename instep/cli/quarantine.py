"""What the commands `dead` and `parked` share: choosing records, printing them and decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from instep import errors, settings
from instep.cli import options, output

if TYPE_CHECKING:
    from instep.pipeline.apply.maintenance import Change, MaintenanceSession
    from instep.sinks.journal_entries import (
        DecisionRecord,
        QuarantinedRecord,
        RecordPosition,
        Selection,
    )

DECISION_COLUMNS = ("DECIDED", "ACTION", "PLACE", "OUTCOME", "ACTOR", "REASON")
POSITION_CHARACTERS_MAX = 29  # 9 digits, a colon and 19 digits


def select(
    session: MaintenanceSession,
    places: Sequence[str] = (),
    reason: str | None = None,
    since: str | None = None,
    until: str | None = None,
    document: str | None = None,
) -> Selection:
    """Return the selection that the options describe."""
    from instep.document.reasons import Reason
    from instep.sinks.journal_entries import Selection

    if reason is not None and reason not in set(Reason):
        near = settings.nearest(reason, [known.value for known in Reason])
        raise errors.SettingsError(f"there is no reason {reason!r}{near}", "run: instep dead list")
    return Selection(
        reason=reason,
        since=options.parse_time(since),
        until=options.parse_time(until),
        document=document,
        positions=tuple(parse_position(session, text) for text in places),
    )


def parse_position(session: MaintenanceSession, text: str) -> RecordPosition:
    """Parse PARTITION:OFFSET in the pipeline's topic, or load:NUMBER:ROW."""
    from instep.sinks.journal_entries import LOAD_PREFIX, RecordPosition

    if text.startswith(LOAD_PREFIX):
        load, _, row = text.removeprefix(LOAD_PREFIX).partition(":")
        if all(part.isascii() and part.isdigit() and len(part) < 20 for part in (load, row)):
            return RecordPosition(f"{LOAD_PREFIX}{load}", 0, int(row))
    partition, _, offset = text.partition(":")
    is_position = all(part.isascii() and part.isdigit() for part in (partition, offset))
    if not is_position or len(text) > POSITION_CHARACTERS_MAX:
        raise errors.SettingsError(
            f"{text!r} is not a place", "write PARTITION:OFFSET, such as 2:1745, or load:NUMBER:ROW"
        )
    return RecordPosition(session.sink.target.topic, int(partition), int(offset))


def print_changes(
    changes: Sequence[Change],
    execute: bool,
    as_json: bool,
    *,
    nothing: str,
    missing: Mapping[str, str],
    list_command: str,
) -> None:
    """Print what happens to the chosen items. Exit with an error if a named one does not exist.

    `missing` maps the names that do not exist to their errors. These come first, so that the last
    line of a plan stays the last one. The other items have been processed by then, unless there
    were none.
    """
    remedy = f"run: {list_command}"
    if missing and not changes:
        raise errors.SettingsError(f"nothing was done: {'; '.join(missing.values())}", remedy)
    for problem in missing.values():
        output.say(f"{output.ERROR}{problem}")
    if missing:
        output.say(remedy)
    output.print_changes(changes, execute, as_json, nothing=nothing, not_found=list(missing))
    if missing:
        raise typer.Exit(1)


def print_decisions(decisions: Sequence[DecisionRecord]) -> None:
    """Print decisions as a table after an empty line, or nothing if there are none."""
    if not decisions:
        return
    rows = [
        (
            one.at,
            one.action,
            one.position,
            one.outcome,
            one.actor,
            output.shortened(one.reason, 100),
        )
        for one in decisions
    ]
    typer.echo("\n" + output.table(DECISION_COLUMNS, rows))


def json_record(pipeline: str, record: QuarantinedRecord) -> dict[str, Any]:
    """Return a dead letter or a waiting event for JSON."""
    return {
        "pipeline": pipeline,
        "place": record.position,
        "document": record.document,
        "reason": record.reason,
        "detail": record.detail,
        "at": record.at,
        "timestamp_ms": record.record.timestamp_ms,
        "key": output.json_bytes(record.record.key),
        "value": output.json_bytes(record.record.value),
    }
