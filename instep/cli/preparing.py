"""What `instep init` does for each pipeline: look at the table, find out types, show the statements, carry them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from instep import errors, settings
from instep.cli import shared

if TYPE_CHECKING:
    from instep.kafka.connection import Cluster

SAMPLE_RECORDS = 1_000
PATIENCE_S = 5.0  # for a sample that nobody asked for


def prepare(
    declared: settings.Settings, name: str, *, sql: bool, add_columns: bool, infer: bool | None
) -> list[errors.InstepError]:
    """Make what one pipeline lacks in its target database, or print it; what stands in the way, all of it."""
    from instep.sinks import facts, inspection, preparation

    pipeline = settings.pipeline(declared, name)
    try:
        faults = preparation.faults(pipeline, add_columns=add_columns)
        if faults:
            return list(faults)
        typed = _typed(declared, name, pipeline, add_columns, infer)
        if sql:
            for statement in preparation.statements(typed, add_columns=add_columns):
                typer.echo(f"{statement};\n")
            return []

        def show(statements: Sequence[str]) -> None:
            for statement in statements:
                typer.echo(f"{name}: {' '.join(statement.split())}")

        preparation.prepare(typed, add_columns=add_columns, show=show)
        inspection.inspect(name, pipeline)
        facts.refuse_own_without_rights(name, pipeline)
    except errors.InstepError as error:
        return [error]
    return []


def report(faults: dict[str, list[errors.InstepError]]) -> None:
    """Raise the only fault there is, or list all of them and end with the first one's exit status."""
    listed = [(name, fault) for name, of_one in faults.items() for fault in of_one]
    if len(listed) == 1:
        raise listed[0][1]
    for name, fault in listed:
        shared.say(f"instep: {name}: {fault}")
    if listed:
        raise typer.Exit(listed[0][1].exit_status)


def _typed(
    declared: settings.Settings,
    name: str,
    pipeline: settings.Pipeline,
    add_columns: bool,
    infer: bool | None,
) -> settings.Pipeline:
    """The pipeline with types for the columns that are to be made and have none, as far as the topic's records show them."""
    from instep.document import inference
    from instep.sinks import preparation

    columns = preparation.untyped(pipeline, add_columns=add_columns)
    fields = [column for column in columns if column not in pipeline.keys]
    if infer is False or not (fields or (columns and infer)):
        return pipeline
    try:
        values = _sample(declared, pipeline.topic, insist=bool(infer))
    except errors.InstepError as error:
        if infer:
            raise
        values = []
        shared.say(f"{name}: no types could be read from the topic: {error.what}")
    typed = inference.typed(pipeline, values, columns)
    found = {column: typed.mapped[column].type for column in fields}
    found |= {key: kind for key, kind in typed.key_types.items() if kind != pipeline.key_types[key]}
    shown = ", ".join(f"{column} {kind}" for column, kind in found.items() if kind)
    if shown:
        shared.say(
            f"{name}: types seen in {len(values):,} records of topic {pipeline.topic!r}: {shown}"
        )
    unseen = [column for column in fields if not found[column]]
    if unseen:
        shared.say(
            f"{name}: no type is known for {', '.join(unseen)}: if the field is not text, declare the column's type"
        )
    return typed


def _sample(declared: settings.Settings, topic: str, *, insist: bool) -> list[bytes | None]:
    """The values of the topic's last records. Unless asked to insist, no broker is started and none waited for."""
    from instep.kafka.connection import Cluster
    from instep.local import registry

    if insist:
        with shared.cluster(declared) as cluster:
            return _last(cluster, topic)
    bootstrap = declared.kafka.bootstrap or registry.bootstrap()
    if bootstrap is None:
        return []
    with Cluster(declared.kafka, bootstrap, PATIENCE_S) as cluster:
        return _last(cluster, topic)


def _last(cluster: Cluster, topic: str) -> list[bytes | None]:
    from instep.kafka import offsets, reading, topics

    partitions = topics.describe(cluster, topic).partitions
    first, end = (
        offsets.earliest(cluster, topic, partitions),
        offsets.latest(cluster, topic, partitions),
    )
    each = max(1, SAMPLE_RECORDS // len(partitions))
    ranges = {
        partition: (max(first[partition], end[partition] - each), end[partition])
        for partition in partitions
    }
    return [record.value for record in reading.read(cluster, topic, ranges)]
