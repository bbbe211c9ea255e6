"""The target of a pipeline as one frozen value, which every task receives."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec
import sqlalchemy as sa

from instep import errors, masking, settings
from instep.document import guard
from instep.document.mapping import Mapping
from instep.sinks import tls

DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
EXTRAS = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}


class TableName(msgspec.Struct, frozen=True):
    """A table, with its schema if one is given."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


class Target(msgspec.Struct, frozen=True):
    """Where a pipeline writes: database, table, mapping and rules."""

    pipeline: str
    topic: str
    url: str
    table: TableName
    mapping: Mapping
    rules: guard.Rules
    guarantee: settings.Guarantee
    history: bool
    # an upsert has no side effects on this table beyond those of an insert or an update
    upserts: bool = False
    # the table has its own constraints or triggers, which must see the values of every event
    refuses: bool = False
    # the table's other unique keys: two documents may need the same value
    unique: tuple[tuple[str, ...], ...] = ()
    # the key's collation takes different ids for equal, so two documents may need the same row
    loose_key: bool = False
    # Events have their own numbers: offset * slots + number of the result. 1 if a record is one
    # event; see `document/results.py`.
    slots: int = 1
    # tables that the same transaction writes; their mappings are in `mapping.further` too
    further: tuple[Target, ...] = ()


def tables_of(target: Target) -> tuple[Target, ...]:
    """Return the main table and the further ones, each as a target."""
    return (target, *target.further)


class Position(msgspec.Struct, frozen=True):
    """A row of the ledger: the next offset of a partition, and the epoch of its writer."""

    partition: int
    next_offset: int
    epoch: int
    cluster_id: str
    topic_id: str
    last_digest: str | None = None
    committed_at: datetime | None = None
    # all records from this offset on were applied; a rewind sets it
    since_offset: int | None = None
    # the number of records so far, and of each verdict; updated in the transaction of the rows
    totals: dict[str, int] = {}


class Decision(msgspec.Struct, frozen=True):
    """What a person decided about a record, and why."""

    partition: int
    offset: int
    action: str
    outcome: str
    actor: str
    reason: str | None = None
    document: str | None = None
    topic: str | None = None  # if it is not the one that the pipeline reads now


def table_name(text: str) -> TableName:
    """Parse `table` or `schema.table`."""
    schema, dot, name = text.partition(".")
    return TableName(schema, name) if dot else TableName(None, text)


def database_url(text: str) -> sa.URL:
    """Return the URL with the driver that instep uses.

    A relative SQLite path becomes absolute, because tasks may run in another directory.
    """
    try:
        url = sa.make_url(text)
    except sa.exc.ArgumentError:
        raise errors.SettingsError(
            "the target is not a database URL",
            "write e.g. postgresql://user@host/database or sqlite:///file.db",
        ) from None
    except ValueError:  # the text behind the host's colon; not shown, as it may be a password
        raise errors.SettingsError(
            "the target's URL has a port that is not a number",
            "write scheme://user:password@host:port/database,"
            " e.g. postgresql://app:${DB_PASSWORD}@db:5432/contracts",
        ) from None
    scheme = url.drivername.partition("+")[0]
    if scheme not in DRIVERS:
        raise errors.SettingsError(
            f"instep does not support the target's database {scheme!r}"
            f"{settings.nearest(scheme, DRIVERS)}",
            f"use one of: {', '.join(DRIVERS)}",
        )
    if scheme != "sqlite":
        _check_address(url)
    url = tls.with_absolute_paths(url.set(drivername=DRIVERS[scheme]))
    if scheme != "sqlite":
        return url
    if not url.database or url.database == ":memory:":
        raise errors.SettingsError(
            "a SQLite target must be a file",
            "write sqlite:///file.db, or sqlite:////absolute/path/file.db",
        )
    return url.set(database=str(Path(url.database).absolute()))


def _check_address(url: sa.URL) -> None:
    """Refuse an address that was split in the wrong place, or that no server can have."""
    if "@" in f"{url.host}{url.database}":
        raise errors.SettingsError(
            "the target's URL has more than one @, so the end of its password is ambiguous",
            "write an @ in the user or the password as %40; a value of ${NAME} needs no escaping",
        )
    if url.port is not None and not 0 < url.port < 65536:
        raise errors.SettingsError(
            f"the target's URL has port {url.port}", "use a port from 1 to 65535"
        )


def shown(url: sa.URL) -> str:
    """Return the URL as its user wrote it, without driver, password and options."""
    scheme = url.drivername.partition("+")[0]
    if scheme == "sqlite":
        return f"sqlite:///{url.database}"
    return masking.masked_url(
        url.set(drivername=scheme, query={}).render_as_string(hide_password=False)
    )
