"""Commands along the road: servers lent, tables made, events published, pipelines run and looked at."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from instep import errors, settings
from instep.cli import completing, grouping, shared, watching
from instep.cli.shared import GIVEN, AsJson, Config, Debug, Master, Pipelines
from instep.cli.watching import Watch
from instep.document import lines
from instep.document.showing import counted

if TYPE_CHECKING:
    from instep.operate.status import PipelineStatus

STATUSES_MAX = 1_000


class KeyType(StrEnum):
    """What the ids of a CSV file are sent as."""

    AUTO = "auto"
    TEXT = "text"
    INTEGER = "integer"


app = typer.Typer()
up_app = typer.Typer(name="up", cls=grouping.GroupedCommands, rich_markup_mode=None)
app.add_typer(up_app)

Server = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A broker by its number (1, 2, 3), or postgres, mariadb."),
]


class FailOn(StrEnum):
    """What makes a run that ended as asked a failure."""

    SET_ASIDE = "set-aside"


@app.command()
def init(
    pipelines: Pipelines = None,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the statements, and change nothing.")
    ] = False,
    add_columns: Annotated[
        bool, typer.Option("--add-columns", help="Add the columns that an existing table lacks.")
    ] = False,
    infer: Annotated[
        bool | None,
        typer.Option(
            "--infer/--no-infer",
            help="Take the types of new columns from the topic's last records; by default if it can be read at once.",
        ),
    ] = None,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Create the tables that a pipeline needs in its database, or report what does not fit."""
    from instep.cli import preparing

    declared = settings.load(GIVEN.config)
    faults = {}
    for name in shared.chosen(declared, pipelines):
        faults[name] = preparing.prepare(
            declared, name, sql=sql, add_columns=add_columns, infer=infer
        )
        if sql or faults[name]:
            continue
        pipeline = settings.pipeline(declared, name)
        if pipeline.transitions:
            _judge_statuses(declared, name, pipeline)
        shared.say(f"{name}: ready")
    preparing.report(faults)
    if not sql and declared.spark.master.startswith("local"):
        _keep_ready()


def _keep_ready() -> None:
    """What makes later starts quicker, on a machine that has what a start needs."""
    from instep.local import class_archives

    with contextlib.suppress(errors.MissingPart):
        shared.need_spark()
        class_archives.prepare_in_background(class_archives.SPARK, shared.say)


@up_app.callback(invoke_without_command=True)
def up(
    context: typer.Context,
    brokers: Annotated[int | None, typer.Option(help="Kafka brokers: 1 or 3.")] = None,
    with_: Annotated[
        str,
        typer.Option(
            "--with", metavar="NAMES", help="Databases to start as well: postgres,mariadb."
        ),
    ] = "",
    port: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PORT", help="A port for kafka, postgres or mariadb."),
    ] = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Start real servers on this machine; they stay until `instep down`."""
    from instep.local import class_archives, local_servers

    if context.invoked_subcommand:
        if brokers or with_ or port or as_json:
            raise errors.SettingsError(
                f"options of `instep up` do not go with `up {context.invoked_subcommand}`",
                "leave them out",
            )
        return
    names = [name for name in with_.replace(" ", "").split(",") if name]
    started = local_servers.up(
        brokers=brokers, databases=names, given_ports=shared.given_ports(port or []), say=shared.say
    )
    shared.print_servers(started, as_json)
    class_archives.prepare_in_background(class_archives.KAFKA, shared.say)


@up_app.command("status")
def up_status(as_json: AsJson = False, _debug: Debug = False) -> None:
    """The state of each local server: running, paused or dead. Starts nothing."""
    from instep.local import registry

    found = registry.known()
    if not found:
        shared.say("no local server was started")
    shared.print_servers(found, as_json)


@up_app.command("kill")
def up_kill(server: Server, _debug: Debug = False) -> None:
    """Kill a server with SIGKILL; it stays dead until it is started."""
    from instep.local import local_servers

    shared.say(f"{local_servers.kill(server).name} is dead")


@up_app.command("start")
def up_start(server: Server, _debug: Debug = False) -> None:
    """Start a dead server again, on its port and its data."""
    from instep.local import local_servers

    shared.say(f"{local_servers.start(server).name} runs")


@up_app.command("pause")
def up_pause(server: Server, _debug: Debug = False) -> None:
    """Freeze a server: its connections stay open and nothing answers."""
    from instep.local import local_servers

    shared.say(f"{local_servers.pause(server).name} is paused")


@up_app.command("resume")
def up_resume(server: Server, _debug: Debug = False) -> None:
    """Let a paused server go on."""
    from instep.local import local_servers

    shared.say(f"{local_servers.resume(server).name} runs")


@app.command()
def down(
    purge: Annotated[bool, typer.Option("--purge", help="Remove their data as well.")] = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Stop the servers that `instep up` started."""
    from instep.local import local_servers

    stopped = local_servers.down(purge=purge)
    shared.say(f"{len(stopped)} stopped" if stopped else "nothing was running")
    shared.print_servers(stopped, as_json)


@app.command(cls=watching.WatchCommand)
def status(
    pipelines: Pipelines = None,
    watch: Watch = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show state, lag, last commit and what was set aside of every pipeline. Starts nothing, and only reads."""
    from instep.operate import status as reading

    declared = settings.load(GIVEN.config)
    names = shared.chosen(declared, pipelines)
    with shared.running_cluster(declared) as cluster:

        def look() -> list[PipelineStatus]:
            return [
                reading.read(cluster, name, settings.pipeline(declared, name)) for name in names
            ]

        if watch is not None:
            watching.repeat(lambda: _status_block(look(), as_json), watch)
        found = look()
    if as_json:
        shared.print_json({"pipelines": found})
    else:
        if tables := _status_tables(found):
            typer.echo(tables)
        for line in _status_notes(found):
            shared.say(line)
    if any(one.error for one in found):
        raise typer.Exit(1)


def _status_block(found: Sequence[PipelineStatus], as_json: bool) -> str:
    """Return what one look of `--watch` shows, errors included."""
    if as_json:
        return shared.as_json({"pipelines": found})
    return "\n".join(filter(None, [_status_tables(found), *_status_notes(found)]))


def _status_tables(found: Sequence[PipelineStatus]) -> str:
    """Return a row per pipeline, then a row per partition; nothing when no pipeline could be looked at."""
    known = [one for one in found if one.run is not None]
    blocks = []
    if known:
        head = ("PIPELINE", "LAG", "LAG-SECONDS", "LAST-COMMIT", "DEAD", "PARKED", "STATE")
        rows: list[Sequence[Any]] = [
            (
                one.pipeline,
                one.lag_records,
                one.lag_seconds,
                one.committed_at,
                one.dead_letters,
                one.parked_documents,
                one.run.words if one.run else None,
            )
            for one in known
        ]
        blocks.append(shared.table(head, rows))
    parts: list[Sequence[Any]] = [
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
        for one in known
        for part in one.partitions
    ]
    if parts:
        columns = (
            "PIPELINE",
            "TOPIC",
            "PARTITION",
            "NEXT-OFFSET",
            "END-OFFSET",
            "LAG",
            "LAG-SECONDS",
            "LAST-COMMIT",
        )
        blocks.append(shared.table(columns, parts))
    return "\n\n".join(blocks)


def _status_notes(found: Sequence[PipelineStatus]) -> list[str]:
    """Return what holds pipelines back, and which could not be looked at."""
    notes = [f"{one.pipeline}: {note}" for one in found for note in one.notes]
    return notes + [
        shared.error_line(f"{one.pipeline}: {one.error}", sys.stdout) for one in found if one.error
    ]


@app.command()
def emit(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|-|ID...",
            help="JSON lines or CSV; - reads JSON lines from stdin. With --delete: documents' ids.",
        ),
    ],
    topic: Annotated[
        str | None,
        typer.Option(
            help="The topic; left out: that of the only pipeline.", autocompletion=completing.topics
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="The field that holds the document's id, and becomes the record's key; dots descend."
            " For a composite key the fields of its parts: tenant,number."
            " Left out: `event.document` of the pipeline that follows the topic, else doc_id.",
        ),
    ] = None,
    key_type: Annotated[
        KeyType,
        typer.Option(
            help="What a CSV file's ids are sent as; auto: as the key column of the pipeline's table holds them."
        ),
    ] = KeyType.AUTO,
    delete: Annotated[
        bool,
        typer.Option(
            "--delete",
            help="Publish a deletion, a record without a value, for each document named.",
        ),
    ] = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Publish status events or deletions, keyed by document, acknowledged by all replicas."""
    from instep.emit import publishing

    declared = settings.load(GIVEN.config)
    to = topic or shared.only_topic(declared)
    if delete:
        _refuse_files(given)
        sent = publishing.publish_deletions(declared.kafka, shared.bootstrap(declared), to, given)
        shared.say(f"{counted(sent, 'deletion')} published")
        return
    if len(given) > 1:
        raise errors.SettingsError(
            f"one file at a time, and {len(given)} were given", "publish them one after the other"
        )
    where = publishing.key_of(declared, to) if key is None else _named_key(declared, to, key)
    if key_type is KeyType.INTEGER:
        where = msgspec.structs.replace(where, integers=frozenset(where.fields))
    elif key_type is KeyType.AUTO:
        where = msgspec.structs.replace(
            where, integers=_integer_fields(declared, to, given[0], where.fields)
        )
    sent = publishing.publish_file(
        declared.kafka,
        shared.bootstrap(declared),
        to,
        given[0],
        key=where,
        say=shared.say,
    )
    shared.say(f"{sent} records published")


def _refuse_files(documents: list[str]) -> None:
    for one in documents:
        if one == "-" or Path(one).is_file():
            raise errors.SettingsError(
                f"--delete takes documents' ids, and {one} is a file"
                if one != "-"
                else "--delete takes documents' ids, not stdin",
                'in a file, a line such as {"doc_id": "C-1", "$delete": true} deletes a document',
            )


def _named_key(declared: settings.Settings, topic: str, fields: str) -> lines.Key:
    """The fields that --key names, joined as the pipeline that follows the topic joins the parts of a composite key."""
    named = tuple(fields.split(","))
    separators = {
        one.key_separator
        for one in declared.pipelines.values()
        if one.topic == topic and len(one.keys) == len(named)
    }
    return lines.Key(named, separators.pop()) if len(separators) == 1 else lines.Key(named)


def _integer_fields(
    declared: settings.Settings, topic: str, file: str, fields: tuple[str, ...]
) -> frozenset[str]:
    """Which of these fields of a CSV file are integers to the pipeline that reads its ids from them; the table knows."""
    from instep.sinks import facts

    if not file.lower().endswith(".csv"):
        return frozenset()
    for one in declared.pipelines.values():
        if one.topic == topic and one.event.documents == fields:
            try:
                return facts.integer_fields(one)
            except errors.InstepError as error:
                columns = ", ".join(one.keys)
                shared.say(
                    f"ids are sent as text: the type of column {columns} is not known, as {error.what}; --key-type says it"
                )
    return frozenset()


@app.command()
def run(
    pipelines: Pipelines = None,
    once: Annotated[
        bool, typer.Option("--once", help="Apply up to the end of the log, then end.")
    ] = False,
    master: Master = None,
    metrics: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            metavar="PORT",
            help="Serve Prometheus metrics on this port of localhost.",
        ),
    ] = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option("--fail-on", help="Exit with status 1 if this run set any event aside."),
    ] = None,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Apply status events to the target tables, until stopped."""
    declared = shared.on_master(settings.load(GIVEN.config), master)
    names = shared.chosen(declared, pipelines)
    with shared.spark_jars() as jars:
        from instep.pipeline import supervisor

        with shared.cluster(declared) as cluster:
            ended = supervisor.run(
                declared, names, cluster, jars, once=once, metrics_port=metrics, verbose=GIVEN.debug
            )
        from instep.pipeline import quarantine_summary

        aside = sum(map(quarantine_summary.count, ended))
    if aside and fail_on is FailOn.SET_ASIDE:
        shared.say(
            f"instep: {aside:,} events were set aside (--fail-on set-aside)\nlook: instep dead list; instep parked list"
        )
        raise typer.Exit(1)


def _judge_statuses(declared: settings.Settings, name: str, pipeline: settings.Pipeline) -> None:
    """Say which statuses cannot be reached, may be misspelt, or stand in the table and not in the settings."""
    from instep.document import transitions

    with shared.session(declared, name) as session, session.read() as sink:
        found = sink.table.statuses(STATUSES_MAX)
    for finding in transitions.findings(transitions.declare(pipeline.transitions), found):
        shared.say(f"{name}: {finding}")
