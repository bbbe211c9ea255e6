"""Every error code that the database drivers know, and what instep does with each.

`page` is the reference page of the documentation site; tests compare the tables with the drivers.
"""

from __future__ import annotations

import inspect
import itertools
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import psycopg
from pymysql.constants import CR, ER

from instep import errors
from instep.sinks import mysql, postgres, sqlite

Error = type[errors.InstepError]

POSTGRES = {
    kind.sqlstate: name
    for name, kind in inspect.getmembers(psycopg.errors, inspect.isclass)
    if issubclass(kind, psycopg.Error) and isinstance(kind.sqlstate, str)
}
# Codes of servers that are newer than the driver's list.
MYSQL_NEWER = {
    1614: "XA_RBDEADLOCK",
    1615: "NEED_REPREPARE",
    1637: "TOO_MANY_CONCURRENT_TRXS",
    1698: "ACCESS_DENIED_NO_PASSWORD_ERROR",
    1792: "CANT_EXECUTE_IN_READ_ONLY_TRANSACTION",
    1836: "READ_ONLY_MODE",
    1878: "TEMP_FILE_WRITE_FAILURE",
    1927: "CONNECTION_KILLED",
    3101: "TRANSACTION_ROLLBACK_DURING_COMMIT",
    3118: "ACCOUNT_HAS_BEEN_LOCKED",
    3159: "SECURE_TRANSPORT_REQUIRED",
    3572: "LOCK_NOWAIT",
    4031: "CLIENT_INTERACTION_TIMEOUT",
    4151: "ACCOUNT_HAS_BEEN_LOCKED",
}
MYSQL = {
    number: name
    for name, number in vars(ER).items()
    if isinstance(number, int) and name != "ERROR_FIRST"
} | MYSQL_NEWER
MYSQL_CLIENT = {
    number: name
    for name, number in vars(CR).items()
    if isinstance(number, int) and "CR_ERROR_" not in name
}
# Other constants of the module have the same numbers, but are not result codes.
SQLITE = {
    int(getattr(sqlite3, f"SQLITE_{name}")): name
    for name in (
        "ERROR",
        "INTERNAL",
        "PERM",
        "ABORT",
        "BUSY",
        "LOCKED",
        "NOMEM",
        "READONLY",
        "INTERRUPT",
        "IOERR",
        "CORRUPT",
        "NOTFOUND",
        "FULL",
        "CANTOPEN",
        "PROTOCOL",
        "EMPTY",
        "SCHEMA",
        "TOOBIG",
        "CONSTRAINT",
        "MISMATCH",
        "MISUSE",
        "NOLFS",
        "AUTH",
        "FORMAT",
        "RANGE",
        "NOTADB",
        "NOTICE",
        "WARNING",
        "CONSTRAINT_FOREIGNKEY",
    )
}

EFFECTS: Mapping[Error, str] = {
    errors.DatabaseUnreachable: "waits and connects again",
    errors.DatabaseMissing: "ends at the start; while running, waits until the database is back",
    errors.DatabaseFull: "waits until there is room",
    errors.Transient: "retries the transaction",
    errors.TooMuchAtOnce: "retries in smaller transactions",
    errors.RowRefused: "parks the document (`REFUSED_BY_TARGET`)",
    errors.ParentMissing: "parks the document (`PARENT_MISSING`) and retries it for some time",
    errors.TargetChanged: (
        "checks the table: stops with `TARGET_CHANGED` if it changed, else parks the document"
    ),
    errors.PermissionLost: (
        "checks the permissions: stops with `PERMISSION_LOST` if one is missing, else parks the"
        " document"
    ),
    errors.TargetReadOnly: "stops with `TARGET_READ_ONLY`",
    errors.NotAuthorised: "retries a few times, then stops with `ACCESS_LOST`",
    errors.SettingsError: "ends with exit status 2",
}
DEFAULT = f"default: {EFFECTS[errors.RowRefused]}"


class Code(NamedTuple):
    """One code of a driver; `error` is None if no table of the sinks maps it."""

    group: str
    code: str
    name: str
    error: Error | None


def postgres_codes() -> list[Code]:
    """Return every SQLSTATE; a table may map a whole class by its first two characters."""
    found = sorted(POSTGRES.items())
    return [
        Code(code[:2], code, name, postgres.CODES.get(code) or postgres.CODES.get(code[:2]))
        for code, name in found
    ]


def mysql_codes() -> list[Code]:
    """Return every number of servers, grouped by hundreds, then those of the driver itself."""
    server = [
        Code(f"{number // 100 * 100}", str(number), name, mysql.CODES.get(number))
        for number, name in sorted(MYSQL.items())
    ]
    client = [
        Code("client", str(number), name, errors.DatabaseUnreachable)
        for number, name in sorted(MYSQL_CLIENT.items())
    ]
    return [*server, *client]


def sqlite_codes() -> list[Code]:
    """Return every primary result code."""
    return [
        Code("", str(number), name, sqlite.CODES.get(number))
        for number, name in sorted(SQLITE.items())
    ]


DRIVERS: Mapping[str, tuple[str, Callable[[], list[Code]]]] = {
    "PostgreSQL": (
        "SQLSTATE, with its class in the first column. Names are those of `psycopg.errors`.",
        postgres_codes,
    ),
    "MariaDB and MySQL": (
        "Error numbers, grouped by hundreds. Names are those of `pymysql.constants`, without `ER_`"
        " and `CR_`. A number that is not listed is treated like those marked as default.",
        mysql_codes,
    ),
    "SQLite": (
        "Primary result codes, without `SQLITE_`. An extended code is treated like its primary"
        " code, unless it is listed.",
        sqlite_codes,
    ),
}
INTRO = """\
# Database errors

What a running pipeline does with each error code of a database driver. Retries depend on the code,
never on the text. A code that instep does not map is marked as default: a trigger can raise any
code, so a statement that writes rows treats it as a refused row. Elsewhere (`init`, `vet`, the
inspection at the start) the default is that the table is unfit, and the command ends. At its first
start, a pipeline does not wait: it ends with the error.
"""


def page() -> str:
    """Return the reference page."""
    parts = [INTRO]
    for name, (text, codes) in DRIVERS.items():
        rows = [
            f"| {group} | {codes_shown} | {effect} |"
            for group, codes_shown, effect in _rows(codes())
        ]
        parts.append(
            "\n".join(
                [
                    f"## {name}\n\n{text}\n",
                    "| class | codes | effect |",
                    "|---|---|---|",
                    *rows,
                    "",
                ]
            )
        )
    return "\n".join(parts)


def _rows(codes: Iterable[Code]) -> Iterable[tuple[str, str, str]]:
    """Yield one row for all codes of a group that have the same effect."""
    for group, members in itertools.groupby(codes, key=lambda code: code.group):
        by_effect: dict[str, list[Code]] = {}
        for code in members:
            effect = DEFAULT if code.error is None else EFFECTS[code.error]
            by_effect.setdefault(effect, []).append(code)
        for effect, alike in by_effect.items():
            shown = ", ".join(f"{code.code} {code.name.removeprefix('CR_')}" for code in alike)
            yield group, shown, effect
