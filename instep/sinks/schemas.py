"""Check that the schema of a target table exists, before the table is looked up."""

from __future__ import annotations

import sqlalchemy as sa

from instep import errors, settings
from instep.sinks import target
from instep.sinks.target import TableName


def refuse_missing(view: sa.Inspector, table: TableName, url: sa.URL) -> None:
    """Raise TargetUnfit if the database does not have the schema of the table."""
    if table.schema is None:
        return
    known = view.get_schema_names()
    if table.schema not in known:
        quoted = url.get_dialect()().identifier_preparer.quote_identifier(table.schema)
        kind = "database"
        if url.get_backend_name() == "postgresql":
            kind = "schema"
        raise errors.TargetUnfit(
            f"{target.shown(url)} has no {kind} {table.schema!r}"
            f"{settings.nearest(table.schema, known)}",
            f"CREATE {kind.upper()} {quoted}; or correct `table` in the settings",
            f"CREATE {kind.upper()} {quoted}; or correct the name of the table",
        )
