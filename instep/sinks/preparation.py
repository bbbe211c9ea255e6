"""`instep init`: the statements that make what a pipeline needs in its target database, shown or carried out."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from instep import errors, settings
from instep.sinks import inspection, tables, target


def statements(pipeline: settings.Pipeline) -> list[str]:
    """What is missing in the target database; an empty list when nothing is."""
    url = target.database_url(pipeline.target)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        dialect = url.get_dialect()()
        return [*tables.business_statements(dialect, pipeline, None), *tables.create_statements(dialect, {})]
    with inspection.connection(url) as opened:
        return _missing(opened, pipeline)


def prepare(pipeline: settings.Pipeline) -> list[str]:
    """Make what is missing; the statements that were carried out."""
    url = target.database_url(pipeline.target)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).parent.is_dir():
        raise errors.SettingsError(
            f"the folder {Path(str(url.database)).parent} does not exist", "make it, or correct the target"
        )
    with inspection.connection(url, create=True) as opened:
        missing = _missing(opened, pipeline)
        for statement in missing:
            opened.exec_driver_sql(
                statement.replace("%", "%%") if opened.dialect.paramstyle in ("format", "pyformat") else statement
            )
        opened.commit()
    return missing


def _missing(opened: sa.Connection, pipeline: settings.Pipeline) -> list[str]:
    view = sa.inspect(opened)
    name = target.table_name(pipeline.table)
    known = None
    if view.has_table(name.name, schema=name.schema):
        reader = inspection.Reader(opened, name)
        reader.judge_table(pipeline)  # a table that cannot be used is not changed either
        known = set(reader.columns)
    return [
        *tables.business_statements(opened.dialect, pipeline, known),
        *tables.create_statements(opened.dialect, inspection.own_tables(view)),
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
