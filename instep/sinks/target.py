"""What a task must know to write: the target as one frozen value that travels to every task."""

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
    """A table, in a schema where one is named."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


class Target(msgspec.Struct, frozen=True):
    """One pipeline's end of the road: database, table, mapping and rules."""

    pipeline: str
    topic: str
    url: str
    table: TableName
    mapping: Mapping
    rules: guard.Rules
    guarantee: settings.Guarantee
    history: bool
    upserts: bool = (
        False  # an upsert does to this table what an insert or an update does, and nothing beside
    )
    refuses: bool = False  # the table has constraints or triggers of its own, which must see every event's values
    unique: tuple[
        tuple[str, ...], ...
    ] = ()  # the table's other unique keys: values that one document may take from another
    loose_key: bool = False  # the key's collation takes different ids for equal, so that one row may be claimed by two documents


class Position(msgspec.Struct, frozen=True):
    """A row of the ledger: how far one partition is applied, and by whom."""

    partition: int
    next_offset: int
    epoch: int
    cluster_id: str
    topic_id: str
    last_digest: str | None = None
    committed_at: datetime | None = None
    since_offset: int | None = (
        None  # where the stretch of the log that was applied without a jump begins
    )
    totals: dict[
        str, int
    ] = {}  # records so far, and how many of each outcome; advanced in the transaction that wrote them


class Decision(msgspec.Struct, frozen=True):
    """What a person decided about a place in the log, and why."""

    partition: int
    offset: int
    action: str
    outcome: str
    actor: str
    reason: str | None = None
    document: str | None = None
    topic: str | None = None  # where it is not the one that the pipeline follows now


def table_name(text: str) -> TableName:
    """`table` or `schema.table`."""
    schema, dot, name = text.partition(".")
    return TableName(schema, name) if dot else TableName(None, text)


def database_url(text: str) -> sa.URL:
    """The URL with the driver instep uses; a relative SQLite path becomes absolute, as tasks may run elsewhere."""
    try:
        url = sa.make_url(text)
    except sa.exc.ArgumentError:
        raise errors.SettingsError(
            "the target is no database URL",
            "write e.g. postgresql://user@host/database or sqlite:///file.db",
        ) from None
    except (
        ValueError
    ):  # what stands behind the host's colon; it is not shown, as it may be a password
        raise errors.SettingsError(
            "the target's URL has a port that is not a number",
            "write scheme://user:password@host:port/database, e.g. postgresql://app:${DB_PASSWORD}@db:5432/contracts",
        ) from None
    scheme = url.drivername.partition("+")[0]
    if scheme not in DRIVERS:
        raise errors.SettingsError(
            f"the target's database {scheme!r} is not one instep writes to{settings.nearest(scheme, DRIVERS)}",
            f"known: {', '.join(DRIVERS)}",
        )
    if scheme != "sqlite":
        _check_address(url)
    url = tls.with_whole_paths(url.set(drivername=DRIVERS[scheme]))
    if scheme != "sqlite":
        return url
    if not url.database or url.database == ":memory:":
        raise errors.SettingsError(
            "a SQLite target must be a file",
            "write sqlite:///file.db, or sqlite:////absolute/path/file.db",
        )
    return url.set(database=str(Path(url.database).absolute()))


def _check_address(url: sa.URL) -> None:
    """Refuse an address that was cut in the wrong place, or that no server can have."""
    if "@" in f"{url.host}{url.database}":
        raise errors.SettingsError(
            "the target's URL has more than one @, so where its password ends is not clear",
            "write an @ in the user or the password as %40; a value of ${NAME} there needs no such care",
        )
    if url.port is not None and not 0 < url.port < 65536:
        raise errors.SettingsError(
            f"the target's URL has port {url.port}", "use a port from 1 to 65535"
        )


def shown(url: sa.URL) -> str:
    """The URL as its user wrote it, without the driver that instep adds, its password and its options."""
    scheme = url.drivername.partition("+")[0]
    if scheme == "sqlite":
        return f"sqlite:///{url.database}"
    return masking.masked_url(
        url.set(drivername=scheme, query={}).render_as_string(hide_password=False)
    )
