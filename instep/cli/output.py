"""What commands print: tables and JSON to stdout, messages and errors to stderr."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import typer

from instep import errors, terminal
from instep.document.showing import plain, plain_json
from instep.terminal import Tone

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from instep import settings
    from instep.kafka.admin.outcomes import AdminResult
    from instep.local.registry import LocalServer
    from instep.pipeline.apply.maintenance import Change
    from instep.report.tables import ReportTable

ERROR = "instep: "
DRY_RUN = "Dry run: nothing was changed. Re-run with --execute to apply."
SHOWN_MAX = 50
COLOURED_COLUMNS = frozenset({"STATE", "VERDICT", "OUTCOME", "KIND"})
SIZE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


# --- messages -----------------------------------------------------------------------------------


def say(text: str, tone: Tone = Tone.NONE) -> None:
    """Print a message to stderr. The first line of an error is red."""
    if text.startswith(ERROR):
        typer.echo(error_line(text.removeprefix(ERROR), sys.stderr), err=True)
        return
    lines = (terminal.paint(plain(line), tone, sys.stderr) for line in text.split("\n"))
    typer.echo("\n".join(lines), err=True)


def say_dry_run() -> None:
    """Print the last line of every plan."""
    say(DRY_RUN)


def error_line(text: str, stream: TextIO) -> str:
    """Return an error for this stream: what happened in red, the remedy below it."""
    first, *others = map(plain, text.split("\n"))
    return "\n".join([terminal.paint(f"{ERROR}{first}", Tone.BAD, stream), *others])


def missing_rights_hint(declared: settings.Settings, found: Sequence[Any]) -> str:
    """Return why a list may be empty: Kafka hides what a user is not allowed to describe."""
    user = declared.kafka.security.username
    if not user or found:
        return ""
    return f" visible to user {user!r} (needs DESCRIBE permission)"


# --- JSON ---------------------------------------------------------------------------------------


def print_json(value: Mapping[str, Any] | msgspec.Struct | DataclassInstance) -> None:
    """Print an object as indented JSON. A list has a key, so that more keys can be added."""
    typer.echo(as_json(value))


def as_json(value: Any) -> str:
    """Return a value as indented JSON. Control characters are escaped."""
    return plain_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def error_for_json(error: errors.InstepError | None) -> dict[str, str | None] | None:
    """Return an error for JSON; the code is that of a named stop."""
    if error is None:
        return None
    code = error.code if isinstance(error, errors.NamedStop) else None
    return {"code": code, "what": error.what, "remedy": error.remedy}


def json_bytes(value: bytes | None) -> dict[str, str] | None:
    """Return a record's key or value for JSON: as text if it is UTF-8, else in base 64."""
    if value is None:
        return None
    try:
        return {"text": value.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


# --- tables -------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table for stdout.

    On a terminal its head is bold, and states and verdicts have the colour of their meaning.
    """
    texts = [head, *([cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(head))]
    padded = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in texts]
    # After padding: the escape sequences of colours would count as characters.
    if terminal.has_colour(sys.stdout):
        padded = _coloured(head, padded)
    return "\n".join("  ".join(row).rstrip() for row in padded)


def _coloured(head: Sequence[str], padded: Sequence[Sequence[str]]) -> list[list[str]]:
    rows = [[terminal.paint(name, Tone.STRONG, sys.stdout) for name in padded[0]]]
    for line in padded[1:]:
        row = []
        for name, text in zip(head, line, strict=True):
            tone = terminal.tone_of(text) if name in COLOURED_COLUMNS else Tone.NONE
            row.append(terminal.paint(text, tone, sys.stdout))
        rows.append(row)
    return rows


def titled_table(data: ReportTable) -> str:
    """Return a table of figures below its title. Rows are padded to the length of the head."""
    from instep.report.markup import figure

    width = len(data.columns)
    rows = [[figure(value) for value in (row + [""] * width)[:width]] for row in data.rows]
    return "\n".join([cell(data.title), table([cell(name) for name in data.columns], rows)])


def cell(value: Any) -> str:
    """Return a value as one line of text. None means that the value is unknown."""
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
    """Return a number of bytes with a unit."""
    if count is None:
        return None
    amount, unit = float(count), 0
    while amount >= 1000 and unit < len(SIZE_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    if unit:
        return f"{amount:.1f} {SIZE_UNITS[unit]}"
    return f"{count} B"


def shortened(text: str | None, characters: int) -> str:
    """Return at most this many characters of a text, for a table's cell."""
    text = plain(text or "")
    if len(text) <= characters:
        return text
    return text[: characters - 1] + "…"


def shown_bytes(value: bytes | None) -> str:
    """Return a record's key or value for people: as text if it is UTF-8."""
    if value is None:
        return "null"
    try:
        return plain(value.decode("utf-8"))
    except UnicodeDecodeError:
        return str(value)


# --- what several commands print ----------------------------------------------------------------


def print_servers(servers: Sequence[LocalServer], as_json: bool) -> None:
    """Print local servers."""
    if as_json:
        keys = ("name", "state", "address", "log", "pid")
        print_json({"servers": [{key: getattr(one, key) for key in keys} for one in servers]})
    elif servers:
        rows = [(server.name, server.state, server.address, server.log) for server in servers]
        typer.echo(table(("SERVER", "STATE", "ADDRESS", "LOG"), rows))


def report_results(
    results: Sequence[AdminResult], kind: str, as_json: bool, *, executed: bool = True
) -> None:
    """Print the result of each item. Exit with the status of the first one that failed."""
    failures = [result.error for result in results if result.error is not None]
    if as_json:
        rows = [
            {
                "name": result.name,
                "done": result.done,
                "error": str(result.error) if result.error else None,
            }
            for result in results
        ]
        print_json({"executed": executed, "results": rows})
    # A single failure is reported like that of any other command, with its remedy.
    elif len(results) == 1 and failures:
        raise failures[0]
    else:
        for result in results:
            prefix = ERROR if result.error else ""
            say(f"{prefix}{kind} {result.name}: {result.error or result.done}")
    # If every item fails, --execute would change nothing.
    if not executed and len(failures) < len(results):
        say_dry_run()
    if failures:
        raise typer.Exit(failures[0].exit_status)


def print_changes(
    changes: Sequence[Change],
    executed: bool,
    as_json: bool,
    *,
    nothing: str,
    not_found: Sequence[str] = (),
) -> None:
    """Print what happens to each event and its row, then the number of each verdict."""
    if as_json:
        missing = {"not_found": not_found} if not_found else {}
        print_json({"executed": executed, "events": changes, **missing})
    elif changes:
        rows = [
            (
                change.position,
                change.document or "",
                change.verdict,
                change.reason or "",
                shortened(_row_change(change) or change.detail, 120),
            )
            for change in changes[:SHOWN_MAX]
        ]
        typer.echo(table(("PLACE", "DOCUMENT", "VERDICT", "REASON", "CHANGE"), rows))
        if len(changes) > SHOWN_MAX:
            say(f"showing the first {SHOWN_MAX} of {len(changes)}; --json prints all")
    verdicts = [change.verdict for change in changes]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(verdicts))]
    say(", ".join(counts) or nothing)
    if changes and not executed:
        say_dry_run()


def _row_change(change: Change) -> str:
    if not change.changes:
        return ""
    if change.after is None:
        return "row deleted"
    if change.before is None:
        values = [f"{name}: {_column_value(value)}" for name, value in change.after.items()]
        return f"new row: {', '.join(values)}"
    before = change.before
    return ", ".join(
        f"{name}: {_column_value(before[name])} → {_column_value(value)}"
        for name, value in change.after.items()
        if before[name] != value
    )


def _column_value(value: Any) -> str:
    """Return a column's value. Here None is a known value: null."""
    return "null" if value is None else cell(value)
