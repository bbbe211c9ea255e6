"""`instep init`: the statements that make what a pipeline needs in its target database, shown or carried out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from instep import errors, settings
from instep.sinks import declared_columns, inspection, schemas, tables, target

Show = Callable[[Sequence[str]], None]


def statements(pipeline: settings.Pipeline, *, add_columns: bool = False) -> list[str]:
    """What is missing in the target database; an empty list when nothing is."""
    with _looking(pipeline) as opened:
        return _missing(opened, pipeline, add_columns)


def prepare(
    pipeline: settings.Pipeline, *, add_columns: bool = False, show: Show = lambda _: None
) -> list[str]:
    """Make what is missing; the statements that were carried out, of which `show` was told before."""
    url = target.database_url(pipeline.target)
    if url.get_backend_name() == "sqlite":
        _check_folder(Path(str(url.database)))
    with _rights_explained(), inspection.connection(url, create=True) as opened:
        missing = _missing(opened, pipeline, add_columns)
        show(missing)
        for statement in missing:
            opened.exec_driver_sql(
                statement.replace("%", "%%")
                if opened.dialect.paramstyle in ("format", "pyformat")
                else statement
            )
        opened.commit()
    return missing


def _check_folder(file: Path) -> None:
    """Refuse a SQLite file that cannot be made or written where it is to be."""
    folder = file.parent
    if not folder.is_dir():
        raise errors.SettingsError(
            f"the folder {folder} does not exist", "make it, or correct the target"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise errors.SettingsError(
            f"the folder {folder} cannot be written by this user, and SQLite needs files of its own beside {file.name}",
            "give this user the right to write there, or name a file in another folder in `target`",
        )


@contextmanager
def _rights_explained() -> Iterator[None]:
    """What init lacks is not what a running pipeline lacks: somebody else may have to make the tables."""
    try:
        yield
    except errors.PermissionLost as refused:
        raise errors.NotAuthorised(
            f"the tables cannot be made: {refused.what}",
            "have an administrator run the statements that `instep init --sql` prints, and grant SELECT, INSERT, UPDATE and"
            " DELETE on those tables; then run `instep init` again to check them",
        ) from refused


def faults(pipeline: settings.Pipeline, *, add_columns: bool = False) -> list[errors.TargetUnfit]:
    """Everything about an existing table that does not fit the settings; with `add_columns` it may lack columns."""
    with _looking(pipeline) as opened:
        reader = _reader(opened, pipeline)
        return reader.faults(pipeline, may_lack=add_columns) if reader else []


def untyped(pipeline: settings.Pipeline, *, add_columns: bool = False) -> list[str]:
    """The columns that would be made and of which the settings say no type; the key's among them."""
    with _looking(pipeline) as opened:
        reader = _reader(opened, pipeline)
    if reader is not None and not add_columns:
        return []
    known = set(reader.columns) if reader else set()
    return [
        name for name, kind in pipeline.key_types.items() if name not in known and kind is None
    ] + [
        name
        for name, column in pipeline.mapped.items()
        if name not in known
        and column.type is None
        and declared_columns.usual_type(pipeline, column) is None
    ]


@contextmanager
def _looking(pipeline: settings.Pipeline) -> Iterator[sa.Connection]:
    """A connection that changes nothing; for a SQLite file that does not exist, to an empty database in memory."""
    url = target.database_url(pipeline.target)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        with sa.create_engine("sqlite://").connect() as opened:
            yield opened
    else:
        with inspection.connection(url) as opened:
            yield opened


def _reader(opened: sa.Connection, pipeline: settings.Pipeline) -> inspection.TableReader | None:
    name = target.table_name(pipeline.table)
    return (
        inspection.TableReader(opened, name)
        if sa.inspect(opened).has_table(name.name, schema=name.schema)
        else None
    )


def _missing(opened: sa.Connection, pipeline: settings.Pipeline, add_columns: bool) -> list[str]:
    reader = _reader(opened, pipeline)
    if reader is not None:
        for fault in reader.faults(pipeline, may_lack=add_columns):
            raise fault  # a table that cannot be used is not changed either
    else:
        schemas.refuse_missing(
            sa.inspect(opened),
            target.table_name(pipeline.table),
            target.database_url(pipeline.target),
        )
    known = set(reader.columns) if reader is not None else None
    view = sa.inspect(opened)
    own = inspection.own_tables(view)
    return [
        *_table_statements(opened.dialect, pipeline, known),
        *tables.create_statements(opened.dialect, own),
        *tables.index_statements(
            opened.dialect,
            {name: {str(one["name"]) for one in view.get_indexes(name)} for name in own},
        ),
    ]


def _table_statements(
    dialect: sa.Dialect, pipeline: settings.Pipeline, known: set[str] | None
) -> list[str]:
    """The statements that make the target table, or add to an existing one the columns that the mapping names."""
    name = target.table_name(pipeline.table)
    columns = [
        sa.Column(column, declared_columns.type_of(pipeline, one))
        for column, one in pipeline.mapped.items()
    ]
    if known is None:
        keys = declared_columns.key_columns(pipeline)
        table = sa.Table(
            name.name, sa.MetaData(), *keys, *columns, schema=name.schema, **tables.TRANSACTIONAL
        )
        return tables.create(table, dialect)
    table = sa.Table(name.name, sa.MetaData(), *columns, schema=name.schema)
    return [
        tables.alter_statement(dialect, column)
        for column in table.columns
        if column.name not in known
    ]


def remove(name: str, pipeline: settings.Pipeline, *, own_tables: bool) -> None:
    """Take a pipeline and its table out of the target database again; with `own_tables` instep's as well."""
    url = target.database_url(pipeline.target)
    table = target.table_name(pipeline.table)
    with inspection.connection(url) as opened:
        sa.Table(table.name, sa.MetaData(), schema=table.schema).drop(opened, checkfirst=True)
        if own_tables:
            tables.metadata.drop_all(opened)
        else:
            for own in tables.metadata.sorted_tables:
                opened.execute(own.delete().where(own.c.pipeline == name))
        opened.commit()
