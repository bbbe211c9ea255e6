"""What a sink writes to: the options of both doors, checked, as one frozen value."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import msgspec

from instep import errors, settings

OnError = Literal["stop", "park"]

# Spark passes these on to a data source, whatever it is.
SPARK_OPTIONS = ("checkpointlocation", "queryname", "path")
# Schemes of file systems on which two drivers can overwrite each other's plan of a batch: a file
# is not created atomically there.
NOT_ATOMIC = ("s3", "s3a", "s3n", "gs", "oss", "cosn", "obs", "swift", "wasb", "wasbs")
SINK_OPTIONS = ("url", "name", "on_error")
TABLE_OPTIONS = ("table", "key", "order", "delete_when")
NAME_CHARACTERS_MAX = 100
TOPIC = "sink:spark"  # in place of a topic's name, in quarantine; Kafka allows no colon there
# Between the parts of a composite key. No key has it, so every text may be a part.
SEPARATOR = "\x1f"


class SinkTable(msgspec.Struct, frozen=True):
    """One table of a sink: its key, and what orders and deletes rows.

    `column` is the struct column, or array of structs, that has the rows of this table; without
    it, each row of the DataFrame is a row of the table.
    """

    table: str
    key: tuple[str, ...]
    order: str | None = None
    delete_when: str | None = None
    column: str | None = None

    def pipeline_settings(self, url: str, columns: Iterable[str]) -> settings.Pipeline:
        """Return the settings of a pipeline that writes such rows to the table."""
        return settings.Pipeline(
            topic=TOPIC,
            target=url,
            table=self.table,
            key=list(self.key),
            key_separator=SEPARATOR,
            history=False,
            retry_parked_s=0,
            event=settings.EventMapping(document=list(self.key), order=self.order),
            columns={name: name for name in columns if name not in self.key},
        )


class SinkDefinition(msgspec.Struct, frozen=True):
    """A sink: the database, its tables, its name, and what becomes of refused rows."""

    url: str
    tables: tuple[SinkTable, ...]
    name: str
    on_error: OnError = "stop"

    def journal_name(self, table: SinkTable) -> str:
        """Return the name under which the journal keeps what concerns one table.

        No pipeline has such a name, so a sink and a pipeline share no quarantine.
        """
        name = self.name if len(self.tables) == 1 else f"{self.name}/{table.table}"
        return f"{settings.SINK_PREFIX}{name}"


def table(
    name: str,
    *,
    key: str | Sequence[str],
    order: str | None = None,
    delete_when: str | None = None,
    column: str | None = None,
) -> SinkTable:
    """Describe a table that a sink writes.

    `key` is a column with a unique index, or several columns that are unique together. `order` is
    the column that says which of two rows of a key is newer: an integer or a time. Rows whose
    boolean column `delete_when` is true delete their key. If a sink has several tables, `column` is
    the struct column, or array of structs, with the rows of this one.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not name:
        raise _wrong("a table without a name", 'write instep.table("orders", key="order_id")')
    if not keys or not all(keys):
        raise _wrong(f"table {name!r} has no key", 'name its unique column: key="order_id"')
    if delete_when is not None and delete_when in (*keys, order):
        raise _wrong(
            f"table {name!r}: {delete_when!r} cannot be `delete_when` and part of the key or the"
            " order",
            "name a boolean column that is not written to the table",
        )
    return SinkTable(name, keys, order, delete_when, column)


def define(
    url: str,
    tables: Sequence[SinkTable],
    *,
    name: str | None = None,
    on_error: str = "stop",
) -> SinkDefinition:
    """Return the definition of a sink; raise SettingsError if something is wrong with it."""
    if not url:
        raise _wrong("the sink has no `url`", "name the database: postgresql://user@host/database")
    if not tables:
        raise _wrong("the sink has no table", 'add one: instep.table("orders", key="order_id")')
    if on_error not in get_args(OnError):
        raise _wrong(
            f"on_error = {on_error!r} is not known{settings.nearest(on_error, get_args(OnError))}",
            f"use one of: {', '.join(get_args(OnError))}",
        )
    if len(tables) > 1:
        _check_several(tables)
    name = name or "+".join(one.table for one in tables)
    longest = max(len(f"{settings.SINK_PREFIX}{name}/{one.table}") for one in tables)
    if longest > NAME_CHARACTERS_MAX:
        raise _wrong(
            f"the sink's name and its table have {longest} characters together, with"
            f" {settings.SINK_PREFIX!r} before them, but at most {NAME_CHARACTERS_MAX} are kept",
            "give the sink a shorter `name`",
        )
    url = settings.expanded(url, "url", os.environ)
    return SinkDefinition(url, tuple(tables), name, _on_error(on_error))


def _on_error(text: str) -> OnError:
    return "park" if text == "park" else "stop"


def _check_several(tables: Sequence[SinkTable]) -> None:
    for one in tables:
        if one.column is None:
            raise _wrong(
                f"the sink has several tables, but table {one.table!r} has no column",
                "name the struct column that has its rows:"
                f' instep.table("{one.table}", ..., column="...")',
            )
    for what in ("table", "column"):
        names = [str(getattr(one, what)).lower() for one in tables]
        for name in names:
            if names.count(name) > 1:
                raise _wrong(
                    f"two tables of the sink have the {what} {name!r}", "name each of them once"
                )


def from_options(options: Mapping[str, str]) -> SinkDefinition:
    """Return the sink that the options of the format door describe.

    For several tables, `tables` lists their struct columns, and the options of each begin with the
    column's name: `orders.key`.
    """
    given = {name.lower(): value for name, value in options.items()}
    columns = _listed(given.get("tables", ""))
    known = {*SINK_OPTIONS, "tables"}
    if columns:
        known |= {f"{column}.{name}".lower() for column in columns for name in TABLE_OPTIONS}
    else:
        known |= {*TABLE_OPTIONS}
    for name in given:
        if name not in known and name not in SPARK_OPTIONS:
            raise _wrong(
                f"unknown option {name!r}{settings.nearest(name, known)}",
                f"the options are: {', '.join(sorted(known))}",
            )
    if columns:
        tables = [_table(given, f"{column}.".lower(), column) for column in columns]
    else:
        tables = [_table(given, "", None)]
    return define(
        _required(given, "url"),
        tables,
        name=given.get("name"),
        on_error=given.get("on_error", "stop"),
    )


def unsafe_checkpoint(options: Mapping[str, str]) -> str | None:
    """Return the warning for a checkpoint that two drivers may use without noticing each other.

    Only an option of the query is known here, not `spark.sql.streaming.checkpointLocation`.
    """
    given = {name.lower(): value for name, value in options.items()}
    scheme = given.get("checkpointlocation", "").partition("://")[0].lower()
    if scheme not in NOT_ATOMIC:
        return None
    return (
        f"the checkpoint is on {scheme}://, which creates no file atomically: if two drivers use it"
        " at the same time, rows can be lost unnoticed. Let a supervisor start only one, put the"
        " checkpoint on another file system, or use foreachBatch(instep.sink(...)), which notices"
    )


def _table(given: Mapping[str, str], prefix: str, column: str | None) -> SinkTable:
    name = given.get(f"{prefix}table") or column or _required(given, "table")
    return table(
        name,
        key=_listed(_required(given, f"{prefix}key")),
        order=given.get(f"{prefix}order"),
        delete_when=given.get(f"{prefix}delete_when"),
        column=column,
    )


def _required(given: Mapping[str, str], name: str) -> str:
    if not given.get(name):
        raise _wrong(f"the option {name!r} is missing", f'add .option("{name}", "...")')
    return given[name]


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _wrong(what: str, remedy: str) -> errors.SettingsError:
    return errors.SettingsError(what, remedy)
