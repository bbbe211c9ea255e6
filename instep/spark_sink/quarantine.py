"""The quarantine of a sink: people see, release, skip and drop rows that a table refused.

A sink has no settings file. Every run of a query therefore keeps how its tables are written in
`instep_sink_tables`, and the commands `instep parked` and `instep dead` see each table as a
pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from instep import errors, settings
from instep.document import kinds
from instep.document.decoding import DeadLetter, Decoder, Event, Record
from instep.document.mapping import Mapping
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.sinks import batches
from instep.sinks.batches import Batches
from instep.sinks.target import Position
from instep.spark_sink.definition import SinkTable


class TableDefinition(msgspec.Struct, frozen=True):
    """How a table of a sink is written: its options, and the columns of its rows."""

    table: SinkTable
    columns: list[str]


def definition_text(table: SinkTable, mapping: Mapping) -> str:
    """Return the definition of a table as text. It has neither the database nor its password."""
    columns = [column.name for column in (*mapping.keys, *mapping.columns)]
    return msgspec.json.encode(TableDefinition(table, columns)).decode()


def with_json_text(mapping: Mapping) -> Mapping:
    """Return a mapping under which text for a JSON column is JSON, as `to_json` of Spark makes."""
    fields = []
    for field in mapping.fields:
        kind = field.column.kind
        if isinstance(kind, kinds.Json):
            kind = msgspec.structs.replace(kind, from_text=True)
        column = msgspec.structs.replace(field.column, kind=kind)
        fields.append(msgspec.structs.replace(field, column=column))
    return msgspec.structs.replace(mapping, fields=tuple(fields))


def deleting(event: Event) -> Event:
    """Return the event as a delete, which needs nothing but key and order."""
    return msgspec.structs.replace(event, values=None, refusal=None)


class SinkTables:
    """The tables of all sinks in a database, each as a pipeline.

    People name them without the prefix that they have in the journal.
    """

    def __init__(self, url: str) -> None:
        """Read the tables. In `url`, `${NAME}` is replaced already."""
        self._stored = {
            name.removeprefix(settings.SINK_PREFIX): (
                sink,
                msgspec.json.decode(text, type=TableDefinition),
            )
            for name, sink, text in batches.stored_tables(url)
        }
        if not self._stored:
            raise errors.SettingsError(
                "no Spark sink has written to this database",
                "see its sinks: instep sink list --url URL",
            )
        self.settings = settings.Settings(
            pipelines={
                pipeline: defined.table.pipeline_settings(url, defined.columns)
                for pipeline, (_, defined) in self._stored.items()
            }
        )

    def session(self, pipeline: str, actor: str) -> SinkMaintenance:
        """Return a session for the quarantine of one table."""
        sink, defined = self._stored[pipeline]
        declared = settings.pipeline(self.settings, pipeline)
        return SinkMaintenance(pipeline, declared, actor, sink, defined.table)


class SinkMaintenance(MaintenanceSession):
    """The quarantine of one table of a sink."""

    def __init__(
        self, name: str, pipeline: settings.Pipeline, actor: str, sink: str, table: SinkTable
    ) -> None:
        super().__init__(f"{settings.SINK_PREFIX}{name}", pipeline, actor)
        self.name, self._sink_name = name, sink
        self.decoder = QuarantineDecoder(
            with_json_text(self.sink.target.mapping), self.sink.record_bytes_max, table
        )

    @contextmanager
    def transaction(self, *, execute: bool) -> Iterator[dict[int, Position]]:
        """Run a transaction that locks the sink, as a batch does; there is no ledger."""
        with self.sink.transaction(keep=execute):
            Batches(self.sink.connection, self._sink_name).lock()
            yield {}


class QuarantineDecoder(Decoder):
    """Decodes rows from quarantine, which still have the column that says they delete their key."""

    def __init__(self, mapping: Mapping, record_bytes_max: int | None, table: SinkTable) -> None:
        super().__init__(mapping, record_bytes_max)
        self._delete_when = table.delete_when

    def decode_all(self, records: Sequence[Record]) -> tuple[list[Event], list[DeadLetter]]:
        """Return events and dead letters, each in the order of their numbers."""
        events, dead = super().decode_all(records)
        if self._delete_when is None:
            return events, dead
        values = {record.offset: record.value or b"{}" for record in records}
        events = [
            deleting(event) if self._is_delete(values[event.offset]) else event for event in events
        ]
        return events, dead

    def _is_delete(self, row: bytes) -> bool:
        assert self._delete_when is not None
        return msgspec.json.decode(row).get(self._delete_when) is True
