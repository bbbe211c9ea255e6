"""`instep status`: state, lag, last commit and quarantine of every pipeline."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from instep import settings
from instep.cli import options, output, resources, watch
from instep.cli.options import GLOBAL, AsJson, Config, Debug, JobNames
from instep.cli.watch import Watch

if TYPE_CHECKING:
    from instep.archive.status import ArchiveStatus
    from instep.kafka.connection import Cluster
    from instep.operate.status import PipelineStatus
    from instep.streams.status import StreamStatus

PIPELINE_COLUMNS = ("PIPELINE", "LAG", "LAG-SECONDS", "LAST-COMMIT", "DEAD", "PARKED", "STATE")
PARTITION_COLUMNS = (
    "PIPELINE",
    "TOPIC",
    "PARTITION",
    "NEXT-OFFSET",
    "END-OFFSET",
    "LAG",
    "LAG-SECONDS",
    "LAST-COMMIT",
)

STREAM_COLUMNS = ("STREAM", "LAG", "LAG-SECONDS", "LAST-COMMIT", "PUBLISHED", "DEAD")
STREAM_PARTITION_COLUMNS = ("STREAM", *PARTITION_COLUMNS[1:])
ARCHIVE_COLUMNS = ("ARCHIVE", "TOPIC", "LAG", "LAST-COMMIT", "RECORDS", "FILES", "SIZE")

app = typer.Typer()


@app.command(cls=watch.WatchCommand)
def status(
    names: JobNames = None,
    interval: Watch = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show state, lag, last commit and quarantine of pipelines and KPIs. Starts nothing.

    Of streams and archives it shows lag, last commit, and what they published or keep.
    """
    declared = settings.load(GLOBAL.config)
    chosen = options.select_jobs(declared, names)
    with resources.running_cluster(declared) as cluster:
        if interval is not None:  # does not return
            watch.repeat(lambda: _read(declared, chosen, cluster).block(as_json), interval)
        statuses = _read(declared, chosen, cluster)
    if as_json:
        typer.echo(statuses.block(as_json))
    else:
        if tables := statuses.tables():
            typer.echo(tables)
        for line in statuses.notes():
            output.say(line)
    if statuses.has_errors():
        raise typer.Exit(1)


class _Statuses(msgspec.Struct, frozen=True):
    """The statuses of all jobs that were asked for."""

    pipelines: list[PipelineStatus]
    archives: list[ArchiveStatus]
    streams: list[StreamStatus]

    def block(self, as_json: bool) -> str:
        """Return one block of `--watch`, errors included."""
        if not as_json:
            return "\n".join(filter(None, [self.tables(), *self.notes()]))
        archives = {"archives": self.archives} if self.archives else {}
        streams = {"streams": self.streams} if self.streams else {}
        return output.as_json({"pipelines": self.pipelines, **streams, **archives})

    def tables(self) -> str:
        """Return the tables of what could be read."""
        tables = [_tables(self.pipelines), *_stream_tables(self.streams)]
        return "\n\n".join(filter(None, [*tables, _archive_table(self.archives)]))

    def notes(self) -> list[str]:
        """Return what holds jobs back, then the errors of those that could not be read."""
        notes = [f"{one.stream}: {note}" for one in self.streams for note in one.notes]
        failures = [f"{one.stream}: {one.error}" for one in self.streams if one.error]
        failures += [f"{one.archive}: {one.error}" for one in self.archives if one.error]
        lines = [output.error_line(failure, sys.stdout) for failure in failures]
        return _notes(self.pipelines) + notes + lines

    def has_errors(self) -> bool:
        """Return whether one could not be read."""
        found = [one.error for one in self.pipelines] + [one.error for one in self.archives]
        return any(found + [one.error for one in self.streams])


def _read(declared: settings.Settings, names: Sequence[str], cluster: Cluster | None) -> _Statuses:
    from instep.operate import status as pipeline_status

    kinds = {name: settings.job_kind(declared, name) for name in names}
    tables = [name for name in names if kinds[name] in ("pipeline", "kpi")]
    chosen = options.select_tables(declared, tables) if tables else {}
    pipelines = [pipeline_status.read(cluster, name, chosen[name]) for name in chosen]
    archives: list[ArchiveStatus] = []
    if "archive" in kinds.values():
        from instep.archive import status as archive_status

        archives = [
            archive_status.read(cluster, name, declared.archives[name])
            for name in names
            if kinds[name] == "archive"
        ]
    streams: list[StreamStatus] = []
    if "stream" in kinds.values():
        from instep.streams import status as stream_status

        streams = [
            stream_status.read(cluster, name, declared.streams[name])
            for name in names
            if kinds[name] == "stream"
        ]
    return _Statuses(pipelines, archives, streams)


def _stream_tables(statuses: Sequence[StreamStatus]) -> list[str]:
    """Return a row per stream, then a row per partition; leave out those with an error."""
    readable = [one for one in statuses if not one.error]
    if not readable:
        return []
    rows = [
        (
            one.stream,
            one.lag_records,
            one.lag_seconds,
            one.committed_at,
            one.published,
            one.dead_letters,
        )
        for one in readable
    ]
    partitions = [
        (
            one.stream,
            one.source,
            part.partition,
            part.next_offset,
            part.end_offset,
            part.lag_records,
            part.lag_seconds,
            part.committed_at,
        )
        for one in readable
        for part in one.partitions
    ]
    return [output.table(STREAM_COLUMNS, rows), output.table(STREAM_PARTITION_COLUMNS, partitions)]


def _archive_table(statuses: Sequence[ArchiveStatus]) -> str:
    """Return a row per archive; leave out those that could not be read."""
    rows = [
        (
            one.archive,
            one.topic,
            one.lag_records,
            one.committed_at or "never",
            one.records or 0,
            one.files or 0,
            output.size(one.bytes or 0),
        )
        for one in statuses
        if not one.error
    ]
    return output.table(ARCHIVE_COLUMNS, rows) if rows else ""


def _tables(statuses: Sequence[PipelineStatus]) -> str:
    """Return a row per pipeline, then a row per partition. Leave out pipelines with an error."""
    readable = [one for one in statuses if one.run is not None]
    tables = []
    if readable:
        tables.append(output.table(PIPELINE_COLUMNS, [_pipeline_row(one) for one in readable]))
    rows: list[Sequence[Any]] = [
        (
            one.pipeline,
            one.topic,
            part.partition,
            part.next_offset,
            part.end_offset,
            part.lag_records,
            part.lag_seconds,
            part.committed_at,
        )
        for one in readable
        for part in one.partitions
    ]
    if rows:
        tables.append(output.table(PARTITION_COLUMNS, rows))
    return "\n\n".join(tables)


def _pipeline_row(one: PipelineStatus) -> Sequence[Any]:
    return (
        one.pipeline,
        one.lag_records,
        one.lag_seconds,
        one.committed_at,
        one.dead_letters,
        one.parked_documents,
        one.run.description if one.run else None,
    )


def _notes(statuses: Sequence[PipelineStatus]) -> list[str]:
    """Return what holds pipelines back, then the errors of those that could not be read."""
    notes = [f"{one.pipeline}: {note}" for one in statuses for note in one.notes]
    failures = [f"{one.pipeline}: {one.error}" for one in statuses if one.error]
    return notes + [output.error_line(failure, sys.stdout) for failure in failures]
