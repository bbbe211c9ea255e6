"""`instep replay`: apply a range of the log again, under the guard."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

from instep import errors, settings, terminal
from instep.cli import completion, options, output, resources
from instep.cli.options import GLOBAL, AsJson, Config, Debug, Execute, Partitions, PipelineName
from instep.terminal import Tone

if TYPE_CHECKING:
    from instep.archive.log import ArchivedLog
    from instep.archive.table import Ranges
    from instep.kafka import places
    from instep.kafka.connection import Cluster
    from instep.kafka.logs import Log
    from instep.pipeline.apply.maintenance import Change, MaintenanceSession

app = typer.Typer()


@app.command()
def replay(
    document: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Only this document. Can be repeated."),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="PLACE", help="Where to start. Default: the start of the log."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Where to end. Default: the ledger's position."),
    ] = None,
    partition: Partitions = None,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Read what Kafka no longer has from this archive of the topic.",
            autocompletion=completion.archives,
        ),
    ] = None,
    skip_lost: options.SkipLost = False,
    pipeline: PipelineName = None,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Apply a range of the log again, under the guard, to repair a damaged table.

    This is safe while the pipeline runs. For dead letters, use `instep dead replay`.
    """
    from instep.kafka import places

    if not document and from_ is None and to is None:
        raise errors.SettingsError(
            "no range and no document is selected",
            "give --document ID, --from PLACE, or --from start for the whole log",
        )
    first = places.parse_place(from_) if from_ is not None else None
    last = places.parse_place(to) if to is not None else None
    declared = settings.load(GLOBAL.config)
    changes = apply_log(
        declared,
        options.select_pipeline(declared, pipeline),
        documents=document or (),
        first=first,
        last=last,
        partitions=options.parse_partitions(partition),
        archive=archive,
        skip_lost=skip_lost,
        execute=execute,
    )
    print_replayed(changes, execute, as_json)


def apply_log(
    declared: settings.Settings,
    pipeline: str,
    *,
    documents: Collection[str] = (),
    first: places.Place | None = None,
    last: places.Place | None = None,
    partitions: Collection[int] = (),
    archive: str | None = None,
    skip_lost: bool = False,
    execute: bool = False,
) -> list[Change]:
    """Apply a part of the log again, or plan it; return what becomes of each document."""
    from instep.operate import log_replay

    changes: list[Change] = []
    with (
        resources.maintenance_session(declared, pipeline) as session,
        resources.cluster(declared) as cluster,
        terminal.ProgressLine(sys.stderr) as line,
    ):
        archived = _archived(declared, archive, session, cluster) if archive is not None else None
        log: Log | None = archived
        selected = log_replay.resolve_range(
            session,
            cluster,
            log=log,
            documents=documents,
            first=first,
            last=last,
            partitions=partitions,
        )
        if archive is not None and archived is not None:
            _refuse_lost(archive, archived.lost(selected.ranges), session, skip_lost=skip_lost)
        output.say(
            f"reading {selected.records:,} offsets of topic {session.sink.target.topic}"
            f" in {len(selected.ranges)} partitions"
        )
        records = itertools.count(1)

        def progress() -> None:
            line.update("replaying", next(records), selected.records, "records")

        # `replay` is a generator: consume it while session and cluster are open.
        changes += log_replay.replay(
            session, cluster, selected, execute=execute, progress=progress, log=log
        )
    return changes


def print_replayed(changes: list[Change], execute: bool, as_json: bool) -> None:
    """Print what became of each document; exit with status 1 if the table refused one."""
    from instep.operate import log_replay

    output.print_changes(changes, execute, as_json, nothing="no row changes")
    if any(change.verdict == log_replay.REFUSED for change in changes):
        raise typer.Exit(1)


def _archived(
    declared: settings.Settings, name: str, session: MaintenanceSession, cluster: Cluster
) -> ArchivedLog:
    """Return the topic of the session's pipeline as a log that begins with its archive."""
    from instep.archive import checks, table
    from instep.archive.files import locate
    from instep.archive.log import ArchivedLog
    from instep.kafka import topics
    from instep.kafka.logs import TopicLog

    target = session.sink.target
    archive = settings.archive(declared, name)
    if archive.topic != target.topic:
        raise errors.SettingsError(
            f"archive {name!r} is of topic {archive.topic!r}, but pipeline {session.name!r} reads"
            f" {target.topic!r}",
            "name the archive of that topic",
        )
    found = table.require(name, locate(archive.path))
    topic = topics.describe(cluster, archive.topic)
    checks.refuse_replaced(name, topic, found)
    # Without `deletes`, a record without a value deletes no document.
    keeps_deleted = target.rules.deletes != "row" or not target.mapping.is_keyed
    return ArchivedLog(
        found, TopicLog(cluster, topic.name), topic.partitions, keeps_deleted=keeps_deleted
    )


def _refuse_lost(
    archive: str, lost: Ranges, session: MaintenanceSession, *, skip_lost: bool
) -> None:
    """Raise if records of the range are lost; with `skip_lost`, only say which."""
    from instep.archive import checks

    if not skip_lost:
        checks.refuse_lost(archive, session.sink.target.topic, lost, "--skip-lost")
    elif lost:
        output.say(f"replaying without lost records: {checks.shown_ranges(lost)}", Tone.BAD)
