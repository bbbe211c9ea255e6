"""What the commands `dead` and `parked` share: choosing records, printing them and decisions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from instep import errors, settings
from instep.cli import options, output, resources
from instep.document import showing

if TYPE_CHECKING:
    from instep.operate.dead_letters import FindOvertaken
    from instep.pipeline.apply.maintenance import Change, MaintenanceSession
    from instep.sinks.journal_entries import (
        DecisionRecord,
        QuarantinedRecord,
        Selection,
    )

DECISION_COLUMNS = ("DECIDED", "ACTION", "PLACE", "OUTCOME", "ACTOR", "REASON")


class Owners:
    """Who has a quarantine: the declared pipelines, or the tables of Spark sinks."""

    def __init__(self, sink_url: str | None) -> None:
        """Read the settings file, or what the sinks of a database keep."""
        self._tables = None
        if sink_url is None:
            self.settings = settings.load(options.GLOBAL.config)
            return
        from instep.spark_sink.quarantine import SinkTables

        self._tables = SinkTables(settings.expanded(sink_url, "--url", os.environ))
        self.settings = self._tables.settings

    def session(self, name: str, *, reads: bool = False) -> MaintenanceSession:
        """Return a session in which a person works on the quarantine of one of them."""
        if self._tables is None:
            return resources.maintenance_session(self.settings, name, reads=reads)
        return self._tables.session(name, resources.current_user())

    def overtaken(self, session: MaintenanceSession) -> FindOvertaken:
        """Return the search for events that a later event of their document has overtaken.

        A sink has no log to search. Without an order, nothing says what is newer.
        """
        from instep.operate import log_replay

        if self._tables is None:
            return log_replay.OvertakenInLog(session, lambda: resources.cluster(self.settings))
        if not session.sink.target.rules.ordered:
            raise errors.SettingsError(
                f"the sink of table {session.sink.target.table} has no order: a dead letter could"
                " overwrite a newer row",
                "write the row with a batch of Spark, and drop the dead letter: instep dead drop",
            )
        return lambda _position, _events: set()

    def document(self, text: str) -> str:
        """Return an id as a list shows it: there, the separator in a sink's key is escaped."""
        if self._tables is None:
            return text
        from instep.spark_sink.definition import SEPARATOR

        return text.replace(showing.plain(SEPARATOR), SEPARATOR)

    def selected(self, name: str | None) -> str:
        """Return the named one, or the only one."""
        return options.select_pipeline(self.settings, name)


def select(
    session: MaintenanceSession,
    places: Sequence[str] = (),
    reason: str | None = None,
    since: str | None = None,
    until: str | None = None,
    document: str | None = None,
) -> Selection:
    """Return the selection that the options describe."""
    from instep.operate import selection

    return selection.select(session.sink.target.topic, places, reason, since, until, document)


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
