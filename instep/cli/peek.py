"""`instep peek`: show records of a topic without joining a group."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instep import errors, settings
from instep.cli import options, output, resources
from instep.cli.options import GLOBAL, Config, Debug, Partitions, TopicName

if TYPE_CHECKING:
    from instep.kafka.admin.tail import TailRange, TailRecord

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

app = typer.Typer()


PeekLimit = Annotated[
    int | None,
    typer.Option("-n", "--limit", min=1, metavar="COUNT", help="Maximum number to show."),
]
Where = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--offset",
        metavar="PLACE|RANGE",
        help=f"Where to start in each partition: {options.PLACES}; START:END for a range.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Only records with this key, from the partition of Java's hash of the key.",
    ),
]
Condition = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="CONDITION",
        help="Only matching records: status=FAILED, key~^C-1, header.ce_type=x, n>5.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "-f", "--format", metavar="FORMAT", help=r"kcat's format: '%t %p %o %k %v %T %h\n'."
    ),
]
Json = Annotated[bool, typer.Option("-J", "--json", help="Print JSON.")]
Follow = Annotated[bool, typer.Option("--follow", help="Continue with new records until Ctrl-C.")]
Uncommitted = Annotated[
    bool, typer.Option("--uncommitted", help="Also show records of open and aborted transactions.")
]


@app.command()
def peek(
    topic: TopicName,
    limit: PeekLimit = None,
    where: Where = None,
    partition: Partitions = None,
    key: Key = None,
    condition: Condition = None,
    format_: Format = None,
    as_json: Json = False,
    follow: Follow = False,
    uncommitted: Uncommitted = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show records: the newest ten, or with --key or --filter all that match.

    The command joins no group and commits nothing. With --json it prints one record per line, as
    kcat does.
    """
    from instep.kafka import places
    from instep.kafka.admin import filters, tail

    if format_ is not None and as_json:
        raise errors.SettingsError("-f and -J cannot be used together", "give one of them")
    wanted_key = None if key is None else key.encode()
    is_filtered = wanted_key is not None or bool(condition)
    # Without any option, show the newest records. A condition searches the whole log instead,
    # and --follow starts at its end.
    newest_only = where is None and not is_filtered and not follow
    log_range = places.parse_range(where or ("end" if follow else "start"))
    numbers = options.parse_partitions(partition)
    matches = filters.parse(condition) if condition else None
    render = _renderer(format_, as_json=as_json)
    with resources.cluster(settings.load(GLOBAL.config)) as cluster:
        records: Iterable[TailRecord]
        if newest_only:
            tail_range, records = tail.newest(
                cluster, topic, limit or tail.NEWEST, numbers, committed=not uncommitted
            )
        else:
            tail_range = tail.resolve_range(
                cluster, topic, log_range, numbers, wanted_key, committed=not uncommitted
            )
            records = () if follow else tail.records(cluster, tail_range, matches, limit)
        _say_range(topic, tail_range, is_searched=is_filtered and not follow)
        try:
            if follow:
                batches = tail.follow(cluster, tail_range, matches, limit)
                shown = sum(_print(batch, render) for batch in batches)
            # The columns of a table need all rows first, so only a short range becomes one.
            elif render is _line and tail_range.offsets <= tail.SORTED_RECORDS_MAX:
                shown = _print_table(list(records))
            else:
                shown = _print(records, render)
        except BrokenPipeError:
            # The reader of the output has closed it: discard what is still buffered.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
    if shown:
        return
    if not newest_only:
        output.say(_no_match(topic, wanted_key, numbers))
    elif uncommitted or not tail_range.offsets:
        output.say(f"topic {topic} has no records")
    else:
        output.say(f"topic {topic} has no committed records; --uncommitted shows all")


def _renderer(format_: str | None, *, as_json: bool) -> Callable[[TailRecord], bytes]:
    """Return what turns a record into a line."""
    from instep.kafka.admin import rendering

    if format_ is not None:
        # Records may contain escape sequences. A pipe gets the bytes as they are, like in kcat.
        return rendering.parse(format_, safe=sys.stdout.isatty())
    return rendering.envelope if as_json else _line


def _say_range(topic: str, tail_range: TailRange, *, is_searched: bool) -> None:
    """Say which partitions are left out, and how much is read for a search."""
    if tail_range.without_leader:
        listed = ", ".join(map(str, tail_range.without_leader))
        output.say(f"partition {listed} is left out: it currently has no leader")
    if is_searched:
        listed = ", ".join(map(str, tail_range.ranges))
        output.say(f"reading {tail_range.offsets:,} offsets of {topic}, partition {listed}")


def _no_match(topic: str, key: bytes | None, numbers: Sequence[int]) -> str:
    if key is None or numbers:
        return (
            f"no record of {topic} matches;"
            " without --offset, --partition and --filter the newest records are shown"
        )
    return (
        f"no record of {topic} with this key is in the partition that Java's partitioner (murmur2)"
        " chooses now; to find records of other publishers, or from before partitions were added:"
        f" --filter key={key.decode()}"
    )


def _print(records: Iterable[TailRecord], render: Callable[[TailRecord], bytes]) -> int:
    """Print each record, on a terminal without delay. Return the number of records."""
    count, is_terminal = 0, sys.stdout.isatty()
    for record in records:
        count += 1
        sys.stdout.buffer.write(render(record))
        if is_terminal:
            sys.stdout.buffer.flush()
    sys.stdout.buffer.flush()
    return count


def _print_table(records: Sequence[TailRecord]) -> int:
    if records:
        table = output.table(("PLACE", "TIME", "KEY", "VALUE"), list(map(_row, records)))
        sys.stdout.buffer.write(table.encode() + b"\n")
        sys.stdout.buffer.flush()
    return len(records)


def _line(record: TailRecord) -> bytes:
    return "  ".join(map(output.cell, _row(record))).encode() + b"\n"


def _row(record: TailRecord) -> Sequence[Any]:
    return (
        f"{record.partition}:{record.offset}",
        _time(record.timestamp_ms),
        output.shown_bytes(record.key),
        output.shown_bytes(record.value),
    )


def _time(at_ms: int) -> str:
    if at_ms < 0:
        return "unknown"
    try:
        seconds = f"{EPOCH + timedelta(milliseconds=at_ms):%Y-%m-%dT%H:%M:%S}"
    except OverflowError:  # a producer may write any number as timestamp
        return f"{at_ms} ms"
    return f"{seconds}.{at_ms % 1000:03d}Z"
