"""Test the drivers' error codes: which are mapped, the default, and retries by type."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from pymysql.constants import ER

from instep import errors
from instep.sinks import connecting, mysql, postgres, sqlite, target
from instep.sinks.sink import Sink
from scripts import error_codes
from tests.support.databases import declare, run_sql

URL = sa.make_url("postgresql://instep@localhost/instep")

# classes of SQLSTATE without a mapped code, and single codes of classes that are mapped code by
# code
UNMAPPED_CLASSES = {
    "02",
    "03",
    "09",
    "0B",
    "0F",
    "0L",
    "0P",
    "0Z",
    "10",
    "20",
    "21",
    "24",
    "27",
    "2B",
    "2D",
    "2F",
    "34",
    "38",
    "39",
    "3B",
    "44",
    "54",
    "F0",
    "P0",
}
UNMAPPED_STATES = {"57000", "XX000"}  # and those of foreign tables, HV, except one
# numbers of MariaDB and MySQL whose names suggest a lock, a timeout or a full disk, and that a
# pipeline cannot get
SOUNDS_PASSING = re.compile("LOCK|TIMEOUT|READ_?ONLY|MEMORY|FULL|DISK|SHUTDOWN|KILLED")
UNMAPPED_THOUGH_SOUNDING = {
    "NORMAL_SHUTDOWN",
    "TABLE_NOT_LOCKED_FOR_WRITE",
    "TABLE_NOT_LOCKED",
    "DELAYED_CANT_CHANGE_LOCK",
    "DELAYED_INSERT_TABLE_LOCKED",
    "LOCK_OR_ACTIVE_TRANSACTION",
    "READ_ONLY_TRANSACTION",
    "DROP_DB_WITH_READ_LOCK",
    "CREATE_DB_WITH_READ_LOCK",
    "CANT_UPDATE_WITH_READLOCK",
    "WRONG_LOCK_OF_SYSTEM_TABLE",
}
UNMAPPED_SQLITE = {
    "INTERNAL",
    "ABORT",
    "NOTFOUND",
    "EMPTY",
    "MISUSE",
    "NOLFS",
    "FORMAT",
    "RANGE",
    "NOTICE",
    "WARNING",
}
RETRIED: dict[type[errors.InstepError], tuple[set[str], set[int], set[int]]] = {
    # locks: retry; timeouts and limits: smaller transactions; no connection, memory or disk space:
    # wait
    errors.Transient: (
        {"40001", "40P01", "55P03", "72000"},
        {1015, 1020, 1205, 1213, 1614, 1637, 3101, 3572},
        {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL},
    ),
    errors.TooMuchAtOnce: ({"57014", "25P03", "25P04", "53400"}, {1197, 1206, 1969, 3024}, set()),
    errors.DatabaseUnreachable: (
        {"53000", "53200", "53300", "57P05", "08006"},
        {1040, 1159, 1161, 1203, 1226, 4031, 2006, 2013},
        {sqlite3.SQLITE_NOMEM},
    ),
    errors.DatabaseFull: ({"53100"}, {1021, 1114}, {sqlite3.SQLITE_FULL}),
}


def of_postgres(code: str) -> errors.InstepError | None:
    return postgres.translate(psycopg.errors.lookup(code)("said"), URL)


def of_mysql(code: int) -> errors.InstepError | None:
    return mysql.translate(
        pymysql.err.OperationalError(code, "said"), URL.set(drivername="mysql+pymysql")
    )


def of_sqlite(code: int) -> errors.InstepError | None:
    error = sqlite3.OperationalError("said")
    error.sqlite_errorcode = code
    return sqlite.translate(error, sa.make_url("sqlite:////nowhere/target.db"))


def test_every_mapped_code_exists_in_the_driver() -> None:
    known = error_codes.POSTGRES
    assert {
        code
        for code in postgres.CODES
        if code not in known and not any(one[:2] == code for one in known)
    } == set()
    assert mysql.CODES.keys() <= error_codes.MYSQL.keys()
    assert error_codes.MYSQL_NEWER.keys() <= mysql.CODES.keys(), (
        "the list of newer codes has one that nothing needs"
    )
    listed = {number for number in vars(ER).values() if isinstance(number, int)}
    assert not listed & error_codes.MYSQL_NEWER.keys(), "the driver knows it now"
    assert sqlite.CODES.keys() <= error_codes.SQLITE.keys()


def test_unmapped_codes_are_listed() -> None:
    found = error_codes.postgres_codes()
    unmapped = {one.code for one in found if one.error is None}
    mapped_classes = {one.group for one in found if one.error is not None}
    assert {code[:2] for code in unmapped} - mapped_classes == UNMAPPED_CLASSES
    assert {code for code in unmapped if code[:2] in mapped_classes - {"HV"}} == UNMAPPED_STATES
    assert {one.name for one in error_codes.sqlite_codes() if one.error is None} == UNMAPPED_SQLITE
    names = [one.name for one in error_codes.mysql_codes() if one.error is None]
    assert {name for name in names if SOUNDS_PASSING.search(name)} == UNMAPPED_THOUGH_SOUNDING


@pytest.mark.parametrize(
    ("codes", "translated"),
    [
        (error_codes.postgres_codes, of_postgres),
        (error_codes.mysql_codes, lambda code: of_mysql(int(code))),
        (error_codes.sqlite_codes, lambda code: of_sqlite(int(code))),
    ],
    ids=["postgres", "mysql", "sqlite"],
)
def test_every_code_does_what_the_reference_says(
    codes: Callable[[], list[error_codes.Code]], translated: Callable[[str], errors.InstepError]
) -> None:
    for one in codes():
        if one.code == str(mysql.NO_TLS_THERE):  # is examined, since it has several causes
            continue
        assert type(translated(one.code)) is (one.error or errors.RowRefused), one


@pytest.mark.parametrize("kind", RETRIED)
def test_timeouts_limits_and_locks_are_retried_by_type(kind: type[errors.InstepError]) -> None:
    assert issubclass(kind, (errors.Transient, errors.Unreachable))
    states, numbers, results = RETRIED[kind]
    found = [
        *map(of_postgres, sorted(states)),
        *map(of_mysql, sorted(numbers)),
        *map(of_sqlite, sorted(results)),
    ]
    assert {type(error) for error in found} == {kind}


UNKNOWN = {
    # no statement causes a code that is not mapped
    "sqlite": ("INSERT INTO strict_one VALUES (NULL)", "NOT NULL"),
    "postgresql": ("DO 'BEGIN RAISE EXCEPTION ''odd'' USING ERRCODE = ''ZZ123''; END'", "ZZ123"),
    "mysql": ("SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 31999, MESSAGE_TEXT = 'odd'", "31999"),
}


def test_an_unknown_code_refuses_the_row_or_during_inspection_the_table(
    database_url: str, open_sink: Callable[..., Sink]
) -> None:
    url = target.database_url(database_url)
    statement, shown = UNKNOWN[
        "mysql" if url.drivername.endswith("pymysql") else url.get_backend_name()
    ]
    run_sql(database_url, "CREATE TABLE strict_one (one INTEGER NOT NULL)")
    sink = open_sink(declare(database_url))
    with pytest.raises(errors.RowRefused, match=shown), sink.transaction():
        sink.connection.execute(statement)
    with pytest.raises(errors.TargetUnfit, match=shown), connecting.connection(url) as opened:
        opened.execute(sa.text(statement))
