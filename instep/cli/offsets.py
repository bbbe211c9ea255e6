"""`instep offsets`: where the log of each partition starts and ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instep import settings
from instep.cli import options, output, resources
from instep.cli.options import GLOBAL, AsJson, Config, Debug, Partitions, TopicNames

if TYPE_CHECKING:
    from instep.kafka.admin.log_bounds import Bounds

app = typer.Typer()


@app.command("offsets")
def show_offsets(
    topics: TopicNames,
    partition: Partitions = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help=f"Also resolve this place: {options.PLACES}."),
    ] = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show where each partition's log starts and ends, and the offset of a time or place."""
    from instep.kafka import places
    from instep.kafka.admin import log_bounds

    place = places.parse_place(at) if at is not None else None
    numbers = options.parse_partitions(partition)
    with resources.cluster(settings.load(GLOBAL.config)) as cluster:
        bounds = log_bounds.read(cluster, list(dict.fromkeys(topics)), numbers, place)
    if as_json:
        output.print_json({"at": at, "partitions": bounds})
        return
    rows: list[Sequence[Any]] = []
    for topic in dict.fromkeys(part.topic for part in bounds):
        parts = [part for part in bounds if part.topic == topic]
        rows += [_row(part, with_place=place is not None) for part in parts]
        if len(parts) > 1:
            rows.append(_total_row(topic, parts, with_place=place is not None))
    place_columns = ("AT", "FROM-THERE") if place is not None else ()
    head = ("TOPIC", "PARTITION", "FIRST", "END", *place_columns, "RECORDS", "NOTE")
    typer.echo(output.table(head, rows))
    output.say(
        "RECORDS is estimated from offsets: transaction markers and compacted records count too"
    )


def _row(part: Bounds, *, with_place: bool) -> Sequence[Any]:
    place = (part.at, part.after) if with_place else ()
    bounds = (part.topic, part.partition, part.first, part.end)
    return (*bounds, *place, part.records_estimated, part.note)


def _total_row(topic: str, parts: Sequence[Bounds], *, with_place: bool) -> Sequence[Any]:
    place = ("", _sum(part.after for part in parts)) if with_place else ()
    records = _sum(part.records_estimated for part in parts)
    return (topic, "all", "", "", *place, records, "")


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum, or None if one of the values is unknown."""
    listed = list(values)
    if None in listed:
        return None
    return sum(value or 0 for value in listed)
