"""`instep init`: create what a pipeline needs in its target database, or show the statements."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from instep import errors, settings
from instep.sinks import (
    connecting,
    declared_columns,
    inspection,
    kpi_store,
    schemas,
    table_reader,
    tables,
    target,
)

Show = Callable[[Sequence[str]], None]


def statements(
    pipeline: settings.Pipeline, *, add_columns: bool = False, is_kpi: bool = False
) -> list[str]:
    """Return the statements that create what the target database is missing.

    With `is_kpi` the table has KPI rows, and a KPI needs its own tables.
    """
    with _read_only(pipeline) as opened:
        return _missing(opened, pipeline, add_columns, is_kpi)


def prepare(
    pipeline: settings.Pipeline,
    *,
    add_columns: bool = False,
    is_kpi: bool = False,
    show: Show = lambda _: None,
) -> list[str]:
    """Create what is missing. Pass the statements to `show` first, and return them."""
    url = target.database_url(pipeline.target)
    if url.get_backend_name() == "sqlite":
        _check_folder(Path(str(url.database)))
    with _rights_explained(), connecting.connection(url, create=True) as opened:
        missing = _missing(opened, pipeline, add_columns, is_kpi)
        show(missing)
        for statement in missing:
            if opened.dialect.paramstyle in ("format", "pyformat"):
                statement = statement.replace("%", "%%")
            opened.exec_driver_sql(statement)
        opened.commit()
    return missing


def _check_folder(file: Path) -> None:
    """Refuse a SQLite file that cannot be created or written in its folder."""
    folder = file.parent
    if not folder.is_dir():
        raise errors.SettingsError(
            f"the folder {folder} does not exist", "create it, or correct the target"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise errors.SettingsError(
            f"this user cannot write to the folder {folder},"
            f" and SQLite creates files beside {file.name}",
            "give this user write permission there, or name a file in another folder in `target`",
        )


@contextmanager
def _rights_explained() -> Iterator[None]:
    """Raise NotAuthorised with a remedy for init: somebody else may have to create the tables."""
    try:
        yield
    except errors.PermissionLost as refused:
        raise errors.NotAuthorised(
            f"the tables cannot be created: {refused.what}",
            "have an administrator run the statements that `instep init --sql` prints,"
            " and grant SELECT, INSERT, UPDATE and DELETE on those tables;"
            " then run `instep init` again to check them",
        ) from refused


def faults(pipeline: settings.Pipeline, *, add_columns: bool = False) -> list[errors.TargetUnfit]:
    """Return everything about an existing table that does not fit the settings.

    With `add_columns`, missing columns are accepted.
    """
    found: list[errors.TargetUnfit] = []
    with _read_only(pipeline) as opened:
        for table in _tables(pipeline):
            reader = _reader(opened, table)
            if reader:
                found += reader.faults(table, may_lack=add_columns)
    return found


def _tables(pipeline: settings.Pipeline) -> list[settings.Pipeline]:
    """Return the pipeline as its main table sees it, and as each further one does."""
    return [pipeline, *settings.further_views(pipeline)]


def untyped_further(pipeline: settings.Pipeline, *, add_columns: bool = False) -> list[list[str]]:
    """Return the columns of each further table that would be created without a declared type.

    The columns of the document's id have the types that they have in the main table.
    """
    return [
        [
            name
            for name in untyped(view, add_columns=add_columns)
            if name in view.lines or name in view.columns
        ]
        for view in settings.further_views(pipeline)
    ]


def untyped(pipeline: settings.Pipeline, *, add_columns: bool = False) -> list[str]:
    """Return the columns, including the key's, that would be created without a declared type."""
    with _read_only(pipeline) as opened:
        reader = _reader(opened, pipeline)
    if reader is not None and not add_columns:
        return []
    existing = set(reader.columns) if reader else set()
    lines = pipeline.line_columns
    keys = [
        name
        for name, kind in pipeline.key_types.items()
        if name not in existing and kind is None and name not in lines
    ]
    columns = [
        name
        for name, column in (*lines.items(), *pipeline.mapped.items())
        if name not in existing
        and column.type is None
        and declared_columns.usual_type(pipeline, column) is None
    ]
    return keys + columns


@contextmanager
def _read_only(pipeline: settings.Pipeline) -> Iterator[sa.Connection]:
    """Open a connection that changes nothing.

    For a SQLite file that does not exist, it is an empty database in memory.
    """
    url = target.database_url(pipeline.target)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        with sa.create_engine("sqlite://").connect() as opened:
            yield opened
    else:
        with connecting.connection(url) as opened:
            yield opened


def _reader(opened: sa.Connection, pipeline: settings.Pipeline) -> table_reader.TableReader | None:
    name = target.table_name(pipeline.table)
    if not sa.inspect(opened).has_table(name.name, schema=name.schema):
        return None
    return table_reader.TableReader(opened, name)


def _missing(
    opened: sa.Connection, pipeline: settings.Pipeline, add_columns: bool, is_kpi: bool
) -> list[str]:
    view = sa.inspect(opened)
    statements: list[str] = []
    for table in _tables(pipeline):
        reader = _reader(opened, table)
        if reader is not None:
            for fault in reader.faults(table, may_lack=add_columns):
                raise fault  # a table that cannot be used is not changed either
        else:
            schemas.refuse_missing(
                view, target.table_name(table.table), target.database_url(table.target)
            )
        existing = set(reader.columns) if reader is not None else None
        statements += _table_statements(opened.dialect, table, existing)
    own = inspection.own_tables(view)
    return [
        *statements,
        *tables.create_statements(opened.dialect, own),
        *tables.index_statements(
            opened.dialect,
            {name: {str(one["name"]) for one in view.get_indexes(name)} for name in own},
        ),
        *(kpi_store.create_statements(opened) if is_kpi else ()),
    ]


def _table_statements(
    dialect: sa.Dialect, pipeline: settings.Pipeline, existing: set[str] | None
) -> list[str]:
    """Return the statements that create the target table, or add its missing mapped columns."""
    name = target.table_name(pipeline.table)
    columns = [
        sa.Column(column, declared_columns.type_of(pipeline, one))
        for column, one in pipeline.mapped.items()
    ]
    if existing is None:
        keys = declared_columns.key_columns(pipeline)
        table = sa.Table(
            name.name, sa.MetaData(), *keys, *columns, schema=name.schema, **tables.TRANSACTIONAL
        )
        return tables.create(table, dialect)
    table = sa.Table(name.name, sa.MetaData(), *columns, schema=name.schema)
    return [
        tables.alter_statement(dialect, column)
        for column in table.columns
        if column.name not in existing
    ]


def remove(name: str, pipeline: settings.Pipeline, *, own_tables: bool) -> None:
    """Remove a pipeline and its tables from the database; with `own_tables` also instep's."""
    url = target.database_url(pipeline.target)
    with connecting.connection(url) as opened:
        for one in reversed(_tables(pipeline)):
            table = target.table_name(one.table)
            sa.Table(table.name, sa.MetaData(), schema=table.schema).drop(opened, checkfirst=True)
        if own_tables:
            tables.metadata.drop_all(opened)
        else:
            for own in tables.metadata.sorted_tables:
                opened.execute(own.delete().where(own.c.pipeline == name))
        opened.commit()
