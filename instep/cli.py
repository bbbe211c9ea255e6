"""The command line. Each command reads the settings, calls one part of instep, and prints; it decides nothing itself.

Parts are imported by the command that needs them, so that a quick command starts quickly.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer

from instep import __version__, errors, settings

if TYPE_CHECKING:
    from instep.kafka.connection import Cluster

app = typer.Typer(
    name="instep",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
topics_app = typer.Typer(name="topics", no_args_is_help=True, rich_markup_mode=None, help="Topics of the cluster.")
app.add_typer(topics_app)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Pipelines = Annotated[list[str] | None, typer.Argument(metavar="[PIPELINE]...", help="Which pipelines; left out: all.")]


class Given(msgspec.Struct):
    """Options that may stand before or after the command's name."""

    config: Path | None = None
    debug: bool = False


GIVEN = Given()


def _take_config(path: Path | None) -> Path | None:
    GIVEN.config = path or GIVEN.config
    return path


def _take_debug(asked: bool) -> bool:
    GIVEN.debug = asked or GIVEN.debug
    return asked


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"instep {__version__}")
        raise typer.Exit


Config = Annotated[
    Path | None,
    typer.Option("--config", callback=_take_config, help="The settings file; else INSTEP_CONFIG, else ./instep.toml."),
]
Debug = Annotated[bool, typer.Option("--debug", callback=_take_debug, help="Show tracebacks, and Spark's log.")]


@app.callback()
def _before(
    _config: Config = None,
    _debug: Debug = False,
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Keeps a database table in step with another system's records: Kafka to SQL through Spark, in order, exactly once."""


@app.command()
def demo(
    target: Annotated[str | None, typer.Option(help="Tell the story on this database instead of a SQLite file.")] = None,
    documents: Annotated[int, typer.Option(min=100, help="How many documents.")] = 9_000,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """The whole story in about a minute: polling, then events, with a kill -9 in the middle."""
    from instep.trials import story

    result = story.tell(target_url=target, documents=documents, say=_say)
    if as_json:
        _print_json(result)
    else:
        typer.echo(story.table(result))
    if result.differences:
        raise typer.Exit(1)


@app.command()
def init(
    pipelines: Pipelines = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements, and change nothing.")] = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Make the tables that a pipeline needs in its target database, or say what is missing there."""
    from instep.sinks import inspection, preparation

    declared = settings.load(GIVEN.config)
    for name in _chosen(declared, pipelines):
        pipeline = settings.pipeline(declared, name)
        if sql:
            for statement in preparation.statements(pipeline):
                typer.echo(f"{statement};\n")
            continue
        for statement in preparation.prepare(pipeline):
            typer.echo(f"{name}: {' '.join(statement.split())}")
        inspection.inspect(name, pipeline)
        _say(f"{name}: ready")


@app.command()
def up(
    brokers: Annotated[int | None, typer.Option(help="Kafka brokers: 1 or 3.")] = None,
    with_: Annotated[str, typer.Option("--with", metavar="NAMES", help="Databases to start as well: postgres,mariadb.")] = "",
    port: Annotated[list[str] | None, typer.Option(metavar="NAME=PORT", help="A port for kafka, postgres or mariadb.")] = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Start real servers on this machine; they stay until `instep down`."""
    from instep.local import lent

    names = [name for name in with_.replace(" ", "").split(",") if name]
    started = lent.up(brokers=brokers, databases=names, given_ports=_given_ports(port or []), say=_say)
    _print_servers(started, as_json)


@app.command()
def down(
    purge: Annotated[bool, typer.Option("--purge", help="Remove their data as well.")] = False,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Stop the servers that `instep up` started."""
    from instep.local import lent

    stopped = lent.down(purge=purge)
    _say(f"{len(stopped)} stopped" if stopped else "nothing was running")
    _print_servers(stopped, as_json)


@app.command()
def status(
    pipelines: Pipelines = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Where every pipeline stands: offsets, lag in records and seconds, last commit, dead letters."""
    from instep.pipeline import status as reading

    declared = settings.load(GIVEN.config)
    with _cluster(declared) as cluster:
        found = [reading.read(cluster, name, settings.pipeline(declared, name)) for name in _chosen(declared, pipelines)]
    if as_json:
        _print_json({"pipelines": found})
    else:
        head = ("PIPELINE", "TOPIC", "PARTITION", "NEXT-OFFSET", "END-OFFSET", "LAG", "LAG-SECONDS", "LAST-COMMIT", "DEAD")
        rows: list[Sequence[Any]] = []
        for one in found:
            rows += [
                (one.pipeline, one.topic, part.partition, part.next_offset, part.end_offset, part.lag_records,
                 part.lag_seconds, part.committed_at, "")
                for part in one.partitions
            ]  # fmt: skip
            if not one.error:
                rows.append(
                    (one.pipeline, one.topic, "all", "", "", one.lag_records, one.lag_seconds, one.committed_at, one.dead_letters)
                )
        if rows:
            typer.echo(_table(head, rows))
        for one in found:
            if one.error:
                _say(f"instep: {one.pipeline}: {one.error}")
    if any(one.error for one in found):
        raise typer.Exit(1)


@app.command()
def emit(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="JSON lines or CSV; - reads JSON lines from stdin.")],
    topic: Annotated[str | None, typer.Option(help="The topic; left out: that of the only pipeline.")] = None,
    key: Annotated[str, typer.Option(help="The field that holds the document's id, and becomes the record's key.")] = "doc_id",
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Publish status events from a file, keyed by document, with acks from all replicas."""
    from instep.emit import publishing

    declared = settings.load(GIVEN.config)
    sent = publishing.publish_file(declared.kafka, _bootstrap(declared), topic or _only_topic(declared), file, key=key, say=_say)
    _say(f"{sent} records published")


@app.command()
def run(
    pipelines: Pipelines = None,
    once: Annotated[bool, typer.Option("--once", help="Apply up to the end of the log, then end.")] = False,
    master: Annotated[str | None, typer.Option(help="The Spark master, e.g. local[2] or spark://host:7077.")] = None,
    metrics: Annotated[
        int | None, typer.Option(min=1, max=65535, metavar="PORT", help="Serve Prometheus metrics on this port of localhost.")
    ] = None,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Apply status events to the target tables, until stopped."""
    declared = settings.load(GIVEN.config)
    names = _chosen(declared, pipelines)
    if master:
        declared = msgspec.structs.replace(declared, spark=msgspec.structs.replace(declared.spark, master=master))
    _need_spark()
    from instep.local import artifacts, java, processes

    java.find()
    jars = artifacts.jars("spark-kafka")
    from instep.pipeline import supervisor

    with _cluster(declared) as cluster:
        try:
            supervisor.run(declared, names, cluster, jars, once=once, metrics_port=metrics, verbose=GIVEN.debug)
        except SystemExit:  # told to end while Spark was starting: a JVM in its first second would outlive us
            for pid in processes.descendants(os.getpid()):
                processes.send(pid, signal.SIGKILL)
            raise


@topics_app.command("create")
def create_topic(
    name: str,
    partitions: Annotated[int, typer.Option("-p", "--partitions", min=1, help="How many partitions.")] = 6,
    replicas: Annotated[
        int | None, typer.Option("-r", "--replicas", min=1, help="Copies of each; left out: the cluster's default.")
    ] = None,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Make a topic."""
    from instep.kafka import topics

    with _cluster(settings.load(GIVEN.config)) as cluster:
        topics.create(cluster, name, partitions, replicas)
    _say(f"topic {name} has {partitions} partitions")


# --- what commands share ------------------------------------------------------------------------------


def _chosen(declared: settings.Settings, names: list[str] | None) -> list[str]:
    if names:
        for name in names:
            settings.pipeline(declared, name)
        return list(dict.fromkeys(names))
    if not declared.pipelines:
        here = GIVEN.config or Path(settings.FILE_NAME)
        what = "the settings declare no pipeline" if here.exists() else f"there is no {here} in {Path.cwd()}"
        raise errors.SettingsError(what, f"write a [pipelines.NAME] table into {here}, or name another file with --config")
    return list(declared.pipelines)


def _only_topic(declared: settings.Settings) -> str:
    topics = sorted({pipeline.topic for pipeline in declared.pipelines.values()})
    if len(topics) != 1:
        raise errors.SettingsError(
            "which topic is meant is not clear", f"say --topic NAME (declared: {', '.join(topics) or 'none'})"
        )
    return topics[0]


def _bootstrap(declared: settings.Settings) -> str:
    if declared.kafka.bootstrap is not None:
        return declared.kafka.bootstrap
    from instep.local import lent

    return lent.broker_on_demand(_say)


def _cluster(declared: settings.Settings) -> Cluster:
    from instep.kafka.connection import Cluster

    return Cluster(declared.kafka, _bootstrap(declared))


def _need_spark() -> None:
    from importlib.util import find_spec

    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise errors.MissingPart(f"{package} is not installed", "pip install 'instep[spark]'")


def _given_ports(texts: Iterable[str]) -> dict[str, int]:
    ports = {}
    for text in texts:
        name, _, port = text.partition("=")
        if not port.isdigit():
            raise errors.SettingsError(f"--port {text} is not NAME=PORT", "write e.g. --port kafka=9092")
        ports[name] = int(port)
    return ports


def _print_servers(servers: Sequence[Any], as_json: bool) -> None:
    if as_json:
        _print_json([{"name": one.name, "address": one.address, "log": one.log, "pid": one.pid} for one in servers])
    elif servers:
        typer.echo(_table(("SERVER", "ADDRESS", "LOG"), [(one.name, one.address, one.log) for one in servers]))


def _print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    texts = [head, *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "unknown"
        case datetime():
            return f"{value:%Y-%m-%dT%H:%M:%SZ}"
        case float():
            return f"{value:.1f}"
        case _:
            return str(value)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def main() -> NoReturn:
    """Run a command; errors become one or two lines on stderr and the exit status that their type says."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    try:
        app()
    except errors.InstepError as error:
        if GIVEN.debug:
            raise
        _say(f"instep: {error}")
        sys.exit(error.exit_status)
    sys.exit(0)


def _interrupted(number: int, _frame: FrameType | None) -> NoReturn:
    """Leave by every `finally` on the way, so that what a command started is stopped."""
    raise SystemExit(128 + number)
