"""Read a target table, and check whether it fits the mapping.

A table that does not fit is refused before anything runs, with the column and the statement that
would repair it.
"""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import UNSET

from instep import errors, settings
from instep.document import guard, kinds, mapping, results, transitions
from instep.sinks import schemas, tables, target
from instep.sinks.connecting import connection
from instep.sinks.connection import WRITING, Access
from instep.sinks.table_reader import TableReader
from instep.sinks.target import TableName, Target


def inspect(name: str, pipeline: settings.Pipeline, access: Access = WRITING) -> Target:
    """Return the target, if its tables fit the mapping and instep's own tables exist."""
    url = target.database_url(pipeline.target)
    with connection(url, read_only=access.read_only, statement_s=access.statement_s) as opened:
        check_own_tables(opened, url, own_tables(sa.inspect(opened)))
        main = _inspect_table(opened, url, name, pipeline)
        further = tuple(
            _inspect_table(opened, url, name, view) for view in settings.further_views(pipeline)
        )
    if not further:
        return main
    for one in further:
        _check_id_columns(main, one)
    mappings = tuple(one.mapping for one in further)
    return msgspec.structs.replace(
        main, mapping=msgspec.structs.replace(main.mapping, further=mappings), further=further
    )


def _inspect_table(
    opened: sa.Connection, url: sa.URL, name: str, pipeline: settings.Pipeline
) -> Target:
    """Return one table of a pipeline as a separate target."""
    table, view = target.table_name(pipeline.table), sa.inspect(opened)
    if not view.has_table(table.name, schema=table.schema):
        schemas.refuse_missing(view, table, url)
        raise errors.TargetUnfit(
            f"{target.shown(url)} has no table {table}",
            "run: instep init",
            f"CREATE TABLE {table} ... with a unique key; or correct the name of the table",
        )
    reader = TableReader(opened, table)
    compiled = reader.check(pipeline)
    refuses = reader.refuses(pipeline)
    upserts = not refuses and reader.upserts(compiled)
    unique = tuple(sorted(key for key in reader.unique_keys() if set(key) != set(pipeline.keys)))
    loose_key = any(
        isinstance(key.kind, kinds.Text) and reader.confused_ids(key.name) is not None
        for key in compiled.keys
    )
    return Target(
        pipeline=name,
        topic=pipeline.topic,
        url=url.render_as_string(hide_password=False),
        table=table,
        mapping=compiled,
        rules=guard.Rules(
            ordered=pipeline.event.order is not None,
            order_is_time=compiled.order_is_time,
            missing=pipeline.missing,
            transitions=transitions.declare(pipeline.transitions),
            deletes=pipeline.on_delete,
            cleared=_cleared(table, pipeline, compiled) if pipeline.on_delete == "clear" else (),
            cleared_status=pipeline.cleared_status,
        ),
        guarantee=pipeline.guarantee,
        history=pipeline.history,
        upserts=upserts,
        refuses=refuses,
        unique=unique,
        loose_key=loose_key,
        slots=results.SLOTS if pipeline.transform is not None else 1,
    )


def _check_id_columns(main: Target, further: Target) -> None:
    """Refuse a further table whose columns cannot hold the document's id as the main table does."""
    for column, own in zip(main.mapping.keys, further.mapping.keys, strict=False):
        if type(column.kind) is not type(own.kind):
            raise errors.TargetUnfit(
                f"table {further.table}: column {own.name!r} is {own.declared}, but the document's"
                f" id is {column.declared} in column {column.name!r} of table {main.table}",
                "use the same type for both columns",
            )


def _cleared(
    table: TableName, pipeline: settings.Pipeline, compiled: mapping.Mapping
) -> guard.Values:
    """Return what a delete writes to each mapped column: null, or `cleared_status`.

    The guard's value and constants stay.
    """
    values: list[Any] = []
    for field in compiled.fields:
        column = field.column
        if column.name == compiled.guard or field.constant is not None:
            values.append(UNSET)
        elif column == compiled.status_column and pipeline.cleared_status is not None:
            values.append(kinds.converter(column.kind)(pipeline.cleared_status))
        elif column.nullable:
            values.append(None)
        else:
            raise errors.TargetUnfit(
                f"table {table}: column {column.name!r} does not allow null,"
                ' so deletes = "clear" cannot clear it',
                "allow null in the column, give the status column a cleared_status,"
                " or choose another value of `deletes`",
            )
    return tuple(values)


def refuse_constrained(original: Target, pipeline: settings.Pipeline) -> None:
    """Raise if the table has changed since a running pipeline was started.

    TargetChanged ends the pipeline. TableConstrained restarts it: a constraint, a trigger, a
    unique key or another collation of the key changes how rows must be written.
    """
    current = refuse_changed(original, pipeline)
    for before, after in zip(target.tables_of(original), target.tables_of(current), strict=True):
        if (after.refuses, after.upserts, after.unique, after.loose_key) != (
            before.refuses,
            before.upserts,
            before.unique,
            before.loose_key,
        ):
            raise errors.TableConstrained(
                f"the constraints, triggers or keys of table {after.table} were changed"
            )


def refuse_changed(original: Target, pipeline: settings.Pipeline) -> Target:
    """Return the current target; raise TargetChanged if its columns changed since the start."""
    remedy = f"undo the change, or accept it; then: instep run {shlex.quote(original.pipeline)}"
    try:
        current = inspect(original.pipeline, pipeline)
    except errors.TargetUnfit as unfit:
        raise errors.TargetChanged(
            unfit.what, f"{unfit.remedy}; then: instep run {shlex.quote(original.pipeline)}"
        ) from unfit
    for table, now in zip(target.tables_of(original), target.tables_of(current), strict=True):
        for before, after in zip(
            (*table.mapping.keys, *table.mapping.columns),
            (*now.mapping.keys, *now.mapping.columns),
            strict=True,
        ):
            if before != after:
                raise errors.TargetChanged(
                    f"table {table.table}: column {before.name!r} was {_description(before)}"
                    f" and is {_description(after)} now",
                    remedy,
                )
    return current


def _description(column: mapping.TargetColumn) -> str:
    words = column.declared
    if column.collation and "COLLATE" not in column.declared:
        words += f" COLLATE {column.collation}"
    return words if column.nullable else f"{words} NOT NULL"


def own_tables(view: sa.Inspector) -> dict[str, set[str]]:
    """Return the existing tables of instep with the names of their columns."""
    found = view.get_multi_columns(filter_names=list(tables.metadata.tables))
    return {
        name: {column["name"] for column in columns}
        for (_, name), columns in found.items()
        if columns
    }


def check_own_tables(opened: sa.Connection, url: sa.URL, own: dict[str, set[str]]) -> None:
    """Raise TargetUnfit if one of instep's own tables, or one of their columns, is missing."""
    for name, table in sorted(tables.metadata.tables.items()):
        if name not in own:
            # MariaDB and MySQL hide tables without rights; this query raises a better error.
            sa.inspect(opened).has_table(name)
            raise errors.TargetUnfit(f"{target.shown(url)} has no table {name}", "run: instep init")
        for column in tables.missing_columns(table, own[name]):
            raise errors.TargetUnfit(
                f"{target.shown(url)}: table {name} has no column {column.name}", "run: instep init"
            )
