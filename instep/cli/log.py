"""Commands for what stands in a topic: where its log begins and ends, and the records themselves."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instep import errors, settings
from instep.cli import completing, shared
from instep.cli.shared import GIVEN, AsJson, Config, Debug

if TYPE_CHECKING:
    from instep.kafka.admin.tail import TailRecord

app = typer.Typer()

Partitions = Annotated[
    list[str] | None,
    typer.Option(
        "-p", "--partition", metavar="0,1", help="Only these partitions; may be given again."
    ),
]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@app.command("offsets")
def show_offsets(
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", help="Which topics.", autocompletion=completing.topics),
    ],
    partition: Partitions = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="This place too: start, end, 1234, +5, -10, @2026-11-01T08:00 or @-1h.",
        ),
    ] = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show where each partition's log begins and ends, and the offset of a time or place."""
    from instep.kafka import places
    from instep.kafka.admin import log_bounds

    place = places.parse_place(at) if at is not None else None
    with shared.cluster(settings.load(GIVEN.config)) as cluster:
        found = log_bounds.read(cluster, list(dict.fromkeys(topics)), _numbers(partition), place)
    if as_json:
        shared.print_json({"at": at, "partitions": found})
        return
    head = ["TOPIC", "PARTITION", "FIRST", "END", "RECORDS", "NOTE"]
    rows: list[list[Any]] = []
    for topic in dict.fromkeys(one.topic for one in found):
        parts = [one for one in found if one.topic == topic]
        rows += [
            [
                topic,
                one.partition,
                one.first,
                one.end,
                one.records_estimated,
                one.note,
                one.at,
                one.after,
            ]
            for one in parts
        ]
        if len(parts) > 1:
            rows.append(
                [
                    topic,
                    "all",
                    "",
                    "",
                    _sum(one.records_estimated for one in parts),
                    "",
                    "",
                    _sum(o.after for o in parts),
                ]
            )
    if place is not None:
        head[4:4] = ["AT", "FROM-THERE"]
        rows = [[*row[:4], row[6], row[7], row[4], row[5]] for row in rows]
    typer.echo(shared.table(head, [row[: len(head)] for row in rows]))
    shared.say(
        "RECORDS are estimated from offsets: transaction markers, and what compaction took out, count too"
    )


@app.command()
def peek(
    topic: Annotated[str, typer.Argument(help="Which topic.", autocompletion=completing.topics)],
    limit: Annotated[
        int | None,
        typer.Option("-n", "--limit", min=1, metavar="COUNT", help="So many records at most."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--offset",
            metavar="PLACE|RANGE",
            help="start, end, 1234, +5, -10, @2026-11-01T08:00 (UTC) or @-1h, of each partition; two with a colon are a range.",
        ),
    ] = None,
    partition: Partitions = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="Only records with this key; only the partition is read where Java's hash puts it."
        ),
    ] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="CONDITION",
            help="Only such records: status=FAILED, key~^C-1, header.ce_type=x, n>5.",
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "-f", "--format", metavar="FORMAT", help=r"In kcat's letters: '%t %p %o %k %v %T %h\n'."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("-J", "--json", help="Print JSON lines, as kcat does.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with new records until Ctrl-C.")
    ] = False,
    uncommitted: Annotated[
        bool, typer.Option("--uncommitted", help="Also records of open and aborted transactions.")
    ] = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Look at records; joins no group, commits nothing. Left alone: the newest ten; with --key or --filter: all of them."""
    from instep.kafka import places
    from instep.kafka.admin import filters, rendering, tail

    if format_ is not None and as_json:
        raise errors.SettingsError("-f and -J cannot both be given", "give one of them")
    wanted_key = None if key is None else key.encode()
    narrowed = wanted_key is not None or bool(condition)
    alone = where is None and not narrowed and not follow
    chosen = places.parse_range(where or ("end" if follow else "start"))
    numbers = _numbers(partition)
    wanted = filters.parse(condition) if condition else None
    render: Callable[[TailRecord], bytes] = rendering.envelope if as_json else _line
    if format_ is not None:
        render = rendering.parse(format_, safe=sys.stdout.isatty())
    with shared.cluster(settings.load(GIVEN.config)) as cluster:
        records: Iterable[TailRecord]
        if alone:
            part, records = tail.newest(
                cluster, topic, limit or tail.NEWEST, numbers, committed=not uncommitted
            )
        else:
            part = tail.stretch(
                cluster, topic, chosen, numbers, wanted_key, committed=not uncommitted
            )
            records = () if follow else tail.records(cluster, part, wanted, limit)
        if part.unled:
            shared.say(
                f"partition {', '.join(map(str, part.unled))} is left out: it has no leader now"
            )
        if narrowed and not follow:
            shared.say(
                f"reading {part.offsets:,} offsets of {topic}, partition {', '.join(map(str, part.ranges))}"
            )
        try:
            if follow:
                shown = sum(
                    _print(found, render) for found in tail.follow(cluster, part, wanted, limit)
                )
            elif render is _line and part.offsets <= tail.HELD_MAX:
                shown = _print_table(list(records))
            else:
                shown = _print(records, render)
        except BrokenPipeError:
            # the reader of our output has seen enough; what is still buffered has nowhere to go
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
    if not shown:
        hint = (
            ""
            if uncommitted or not part.offsets
            else " that are committed; with --uncommitted all are shown"
        )
        shared.say(
            f"topic {topic} holds no records{hint}"
            if alone
            else _nothing(topic, wanted_key, numbers)
        )


def _nothing(topic: str, key: bytes | None, numbers: Sequence[int]) -> str:
    if key is None or numbers:
        return f"no record of {topic} is as asked for; without --offset, --partition and --filter the newest are shown"
    return (
        f"no record of {topic} with this key lies where Java's partitioner (murmur2) puts it now;"
        f" records from other publishers, or from before the topic grew, are found with: --filter key={key.decode()}"
    )


def _print(records: Iterable[TailRecord], render: Callable[[TailRecord], bytes]) -> int:
    """Print each, on a terminal at once; returns how many."""
    count, watched = 0, sys.stdout.isatty()
    for record in records:
        count += 1
        sys.stdout.buffer.write(render(record))
        if watched:
            sys.stdout.buffer.flush()
    sys.stdout.buffer.flush()
    return count


def _print_table(records: Sequence[TailRecord]) -> int:
    if records:
        table = shared.table(
            ("PLACE", "TIME", "KEY", "VALUE"), [_row(record) for record in records]
        )
        sys.stdout.buffer.write(table.encode() + b"\n")
        sys.stdout.buffer.flush()
    return len(records)


def _line(record: TailRecord) -> bytes:
    return "  ".join(map(shared.cell, _row(record))).encode() + b"\n"


def _row(record: TailRecord) -> Sequence[Any]:
    place = f"{record.partition}:{record.offset}"
    return (
        place,
        _time(record.timestamp_ms),
        shared.shown_bytes(record.key),
        shared.shown_bytes(record.value),
    )


def _time(at_ms: int) -> str:
    try:
        return (
            f"{EPOCH + timedelta(milliseconds=at_ms):%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
            if at_ms >= 0
            else "unknown"
        )
    except OverflowError:  # a timestamp is any number that a producer writes
        return f"{at_ms} ms"


def _numbers(texts: Sequence[str] | None) -> list[int]:
    parts = [part.strip() for text in texts or () for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdigit() and len(part) < 10):
            raise errors.SettingsError(f"{part!r} is no partition", "write e.g. -p 0 or -p 0,2")
    return sorted({int(part) for part in parts})


def _sum(values: Iterable[int | None]) -> int | None:
    listed = list(values)
    return None if None in listed else sum(value or 0 for value in listed)
