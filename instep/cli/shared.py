"""What commands share: options, the choice of a pipeline, the cluster, tables and JSON."""

from __future__ import annotations

import base64
import getpass
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import msgspec
import typer

from instep import errors, extras, settings, spark_options, terminal
from instep.cli import completing
from instep.document.showing import plain, plain_json
from instep.terminal import Tone

if TYPE_CHECKING:
    from instep.kafka.admin.outcomes import AdminResult
    from instep.kafka.connection import Cluster
    from instep.pipeline.apply.maintenance import Change, MaintenanceSession
    from instep.report.tables import ReportTable

ERROR = "instep: "
SHOWN_MAX = 50
TONED = frozenset({"STATE", "VERDICT", "OUTCOME", "KIND"})  # columns whose words have a colour
SIZES = ("B", "kB", "MB", "GB", "TB", "PB")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Named = Annotated[
    str | None,
    typer.Option(
        "--pipeline",
        metavar="NAME",
        help="Which pipeline; left out: the only one.",
        autocompletion=completing.pipelines,
    ),
]
Execute = Annotated[bool, typer.Option("--execute", help="Do it; left out: only show the plan.")]
Master = Annotated[
    str | None, typer.Option(help="The Spark master, e.g. local[2] or spark://host:7077.")
]
Pipelines = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PIPELINE]...",
        help="Which pipelines; left out: all.",
        autocompletion=completing.pipelines,
    ),
]


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


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_take_config,
        help="The settings file; else INSTEP_CONFIG, else ./instep.toml.",
    ),
]
Debug = Annotated[
    bool, typer.Option("--debug", callback=_take_debug, help="Show tracebacks, and Spark's log.")
]


def chosen(declared: settings.Settings, names: list[str] | None) -> list[str]:
    if names:
        for name in names:
            settings.pipeline(declared, name)
        return list(dict.fromkeys(names))
    if not declared.pipelines:
        here = settings.file_of(GIVEN.config)
        what = (
            "the settings declare no pipeline"
            if here.exists()
            else f"there is no {here} in {Path.cwd()}"
        )
        raise errors.SettingsError(
            what, f"write a [pipelines.NAME] table into {here}, or name another file with --config"
        )
    return list(declared.pipelines)


def named(declared: settings.Settings, name: str | None) -> str:
    """The pipeline that is meant: the named one, or the only one there is."""
    names = chosen(declared, [name] if name else None)
    if len(names) > 1:
        raise errors.SettingsError(
            "which pipeline is meant is not clear",
            f"say --pipeline NAME (declared: {', '.join(names)})",
        )
    return names[0]


def session(declared: settings.Settings, name: str) -> MaintenanceSession:
    """Where decisions about one pipeline are made."""
    from instep.pipeline.apply.maintenance import MaintenanceSession

    return MaintenanceSession(name, settings.pipeline(declared, name), who())


def when(text: str | None) -> datetime | None:
    """A time on the command line, as in a place in the log: with or without its @."""
    if text is None:
        return None
    from instep.kafka import places

    try:
        return places.moment(places.parse_place(f"@{text.removeprefix('@')}"))
    except errors.SettingsError:
        raise errors.SettingsError(
            f"{text!r} is no time", "write 2026-11-01T08:00 (UTC), 2026-11-01T08:00+01:00 or -1h"
        ) from None


def only_topic(declared: settings.Settings) -> str:
    topics = sorted({pipeline.topic for pipeline in declared.pipelines.values()})
    if len(topics) != 1:
        raise errors.SettingsError(
            "which topic is meant is not clear",
            f"say --topic NAME (declared: {', '.join(topics) or 'none'})",
        )
    return topics[0]


def bootstrap(declared: settings.Settings) -> str:
    if declared.kafka.bootstrap is not None:
        return declared.kafka.bootstrap
    from instep.local import registry

    running = registry.bootstrap()
    if running is not None:
        return running
    from instep.local import local_servers

    return local_servers.broker_on_demand(say)


@contextmanager
def running_cluster(declared: settings.Settings) -> Iterator[Cluster | None]:
    """The cluster, for a command that starts nothing: None when the settings name none and no local one runs."""
    from instep.kafka.connection import Cluster
    from instep.local import registry

    address = declared.kafka.bootstrap or registry.bootstrap()
    if address is None:
        yield None
        return
    with Cluster(declared.kafka, address) as opened:
        yield opened


def cluster(declared: settings.Settings) -> Cluster:
    from instep.kafka.connection import Cluster

    return Cluster(declared.kafka, bootstrap(declared))


def need_spark() -> None:
    from importlib.util import find_spec

    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise extras.missing(package, "spark")


@contextmanager
def spark_jars() -> Iterator[Sequence[Path]]:
    """What a command needs to start Spark; told to end meanwhile, it leaves no JVM behind."""
    need_spark()
    from instep.local import artifacts, java, processes

    java.find()
    jars = artifacts.jars("spark-kafka")
    try:
        yield jars
    except (
        SystemExit
    ):  # told to end while Spark was starting: a JVM in its first second would outlive us
        for pid in processes.descendants(os.getpid()):
            processes.send(pid, signal.SIGKILL)
        raise


def on_master(declared: settings.Settings, master: str | None) -> settings.Settings:
    """The settings, with another Spark master where one is named."""
    if not master:
        return declared
    spark_options.check(master, declared.spark.memory)
    return msgspec.structs.replace(
        declared, spark=msgspec.structs.replace(declared.spark, master=master)
    )


def given_ports(texts: Iterable[str]) -> dict[str, int]:
    ports = {}
    for text in texts:
        name, _, port = text.partition("=")
        if not port.isdigit():
            raise errors.SettingsError(
                f"--port {text} is not NAME=PORT", "write e.g. --port kafka=9092"
            )
        ports[name] = int(port)
    return ports


def who() -> str:
    """Who gives the command, for the record."""
    try:
        return getpass.getuser()[:100]
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid {os.getuid()}"


def print_servers(servers: Sequence[Any], as_json: bool) -> None:
    if as_json:
        keys = ("name", "state", "address", "log", "pid")
        print_json([{key: getattr(one, key) for key in keys} for one in servers])
    elif servers:
        rows = [(one.name, one.state, one.address, one.log) for one in servers]
        typer.echo(table(("SERVER", "STATE", "ADDRESS", "LOG"), rows))


def hidden(declared: settings.Settings, found: Sequence[Any]) -> str:
    """Why a list is empty: a cluster shows nobody what they may not see."""
    user = declared.kafka.security.username
    return f" that user {user!r} may see (the right DESCRIBE)" if user and not found else ""


def report(outcomes: Sequence[AdminResult], kind: str, as_json: bool) -> None:
    """What became of each; ends with the status of the first that failed."""
    failed = [one.error for one in outcomes if one.error is not None]
    if as_json:
        print_json(
            [
                {"name": one.name, "done": one.done, "error": str(one.error) if one.error else None}
                for one in outcomes
            ]
        )
    elif len(outcomes) == 1 and failed:
        raise failed[0]
    else:
        for one in outcomes:
            say(
                f"{kind} {one.name}: {one.done}"
                if one.error is None
                else f"instep: {kind} {one.name}: {one.error}"
            )
    if failed:
        raise typer.Exit(failed[0].exit_status)


def print_json(value: Any) -> None:
    typer.echo(as_json(value))


def as_json(value: Any) -> str:
    return plain_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table for stdout. On a terminal its head is bold, and cells of the columns in TONED have their meaning's colour."""
    texts = [head, *([cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(head))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in texts]
    if not terminal.has_colour(sys.stdout):
        return "\n".join("  ".join(line).rstrip() for line in lines)
    toned = [name in TONED for name in head]
    painted = [[terminal.paint(name, Tone.STRONG, sys.stdout) for name in lines[0]]]
    painted += [
        [
            terminal.paint(text, terminal.tone_of(text), sys.stdout) if tinted else text
            for text, tinted in zip(line, toned, strict=True)
        ]
        for line in lines[1:]
    ]
    return "\n".join("  ".join(line).rstrip() for line in painted)


def tabulated(data: ReportTable) -> str:
    """A table of figures with its title, each row as long as its head."""
    from instep.report.markup import figure

    width = len(data.columns)
    rows = [[figure(value) for value in (row + [""] * width)[:width]] for row in data.rows]
    return "\n".join([cell(data.title), table([cell(name) for name in data.columns], rows)])


def refuse_page(kind: str, file: Path, *, force: bool, option: str = "--out") -> None:
    """Refuse a place where no file can be, and to write over one that is no page of this kind unless forced to."""
    from instep.report import web_page

    over = ", or write over it with --force" if option == "--out" else ""
    with _written(file, option):
        if not file.parent.is_dir():
            raise errors.SettingsError(
                f"there is no folder {file.parent}", f"make it, or name another file with {option}"
            )
        if file.exists() and not force and not web_page.is_one(kind, file):
            raise errors.SettingsError(
                f"{file} is there already, and is no report of instep {kind}",
                f"name another file with {option}{over}",
            )


def write_page(
    kind: str, render: Callable[[], str], file: Path, *, force: bool, option: str = "--out"
) -> None:
    """Write a page of this kind, also over another such."""
    from instep.report import web_page

    refuse_page(kind, file, force=force, option=option)
    with _written(file, option):
        web_page.write(render(), file)


@contextmanager
def _written(file: Path, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.SettingsError(
            f"{file} cannot be written: {error.strerror or error}",
            f"name another file with {option}",
        ) from error


def print_lines(
    lines: Sequence[Change],
    executed: bool,
    as_json: bool,
    *,
    nothing: str,
    how: str = "with --execute it is",
    not_found: Sequence[str] = (),
) -> None:
    """Outcomes row by row, with what changes in the table, and counted; `how` says what a plan still needs."""
    if as_json:
        print_json(
            {
                "executed": executed,
                "events": lines,
                **({"not_found": not_found} if not_found else {}),
            }
        )
    elif lines:
        rows = [
            (
                line.place,
                line.document or "",
                line.verdict,
                line.reason or "",
                shortened(_change(line) or line.detail, 120),
            )
            for line in lines[:SHOWN_MAX]
        ]
        typer.echo(table(("PLACE", "DOCUMENT", "VERDICT", "REASON", "CHANGE"), rows))
        if len(lines) > SHOWN_MAX:
            say(f"the first {SHOWN_MAX} of {len(lines)}; --json has all")
    counts = {
        verdict: sum(line.verdict == verdict for line in lines)
        for verdict in sorted({line.verdict for line in lines})
    }
    say(", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or nothing)
    if lines and not executed:
        say(f"nothing was changed; {how}")


def _change(line: Change) -> str:
    if not line.changes:
        return ""
    if line.after is None:
        return "row deleted"
    before = line.before or {}
    changed = [
        f"{name}: {_held(before[name])} → {_held(value)}"
        if line.before is not None
        else f"{name}: {_held(value)}"
        for name, value in line.after.items()
        if line.before is None or before[name] != value
    ]
    return ("" if line.before is not None else "new row: ") + ", ".join(changed)


def _held(value: Any) -> str:
    """A column's value; null is one too, and known."""
    return "null" if value is None else cell(value)


def cell(value: Any) -> str:
    match value:
        case None:
            return "unknown"
        case datetime():
            return f"{value:%Y-%m-%dT%H:%M:%SZ}"
        case float():
            return f"{value:.1f}"
        case _:
            return plain(str(value))


def size(count: int | None) -> str | None:
    """Bytes, for people."""
    if count is None:
        return None
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(SIZES) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.1f} {SIZES[unit]}" if unit else f"{count} B"


def shortened(text: str | None, characters: int) -> str:
    """A text for a table's cell: its beginning."""
    text = plain(text or "")
    return text if len(text) <= characters else text[: characters - 1] + "…"


def shown_bytes(value: bytes | None) -> str:
    """A key or value of a record, for people: as text where it is one."""
    if value is None:
        return "null"
    try:
        return plain(value.decode("utf-8"))
    except UnicodeDecodeError:
        return str(value)


def json_bytes(value: bytes | None) -> dict[str, str] | None:
    """A key or value of a record, for programs: as text where it is one, else in base 64."""
    if value is None:
        return None
    try:
        return {"text": value.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def say(text: str, tone: Tone = Tone.NONE) -> None:
    """Print to stderr. The first line of an error is red."""
    if text.startswith(ERROR):
        typer.echo(error_line(text.removeprefix(ERROR), sys.stderr), err=True)
    else:
        typer.echo(
            "\n".join(terminal.paint(plain(line), tone, sys.stderr) for line in text.split("\n")),
            err=True,
        )


def error_line(text: str, stream: TextIO) -> str:
    """Return an error as this stream shows it: what happened in red, what to do below it."""
    first, *others = map(plain, text.split("\n"))
    return "\n".join([terminal.paint(f"{ERROR}{first}", Tone.BAD, stream), *others])
