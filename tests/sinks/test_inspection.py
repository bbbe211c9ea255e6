"""Test that an unsuitable table is refused with the column and a statement that repairs it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from instep import errors
from instep.document import kinds
from instep.local.mariadb import MariaDB
from instep.local.postgres import Postgres
from instep.sinks import connecting, inspection, preparation, table_reader, target
from tests.support.databases import declare, run_sql
from tests.support.tables import KEY, REST, kind_of, make
from tests.support.waiting import wait_until


def refused(url: str, **changes: Any) -> errors.TargetUnfit:
    pipeline = declare(url, **changes)
    with pytest.raises(errors.TargetUnfit) as caught:  # noqa: PT012 - by init, or by the look after it
        preparation.prepare(pipeline)
        inspection.inspect("contracts", pipeline)
    return caught.value


def repaired(url: str, statement: str, **changes: Any) -> None:
    """Run the remedy, and check that the pipeline is accepted."""
    run_sql(url, statement)
    preparation.prepare(declare(url, **changes))
    inspection.inspect("contracts", declare(url, **changes))


def test_init_creates_everything_and_changes_nothing_the_second_time(database_url: str) -> None:
    pipeline = declare(database_url)
    assert preparation.statements(pipeline)
    assert preparation.prepare(pipeline)
    assert preparation.prepare(pipeline) == preparation.statements(pipeline) == []
    inspection.inspect("contracts", pipeline)


def test_init_adds_to_an_existing_table_only_what_the_mapping_names(database_url: str) -> None:
    make(database_url, "print_status VARCHAR(20), owner VARCHAR(20)")
    pipeline = declare(database_url)
    with pytest.raises(
        errors.TargetUnfit, match=r"no column 'print_version'.*did you mean 'print_status'"
    ) as refusal:
        preparation.prepare(pipeline)
    assert "--add-columns" in refusal.value.remedy
    assert [fault.what.partition(";")[0] for fault in preparation.faults(pipeline)] == [
        f"table contract_document has no column {name!r}"
        for name in ("print_version", "printed_at")
    ]
    shown: list[str] = []
    executed = preparation.prepare(pipeline, add_columns=True, show=shown.extend)
    assert executed == shown
    added = [statement for statement in executed if "contract_document" in statement]
    assert len(added) == 2
    assert all(statement.startswith("ALTER TABLE") for statement in added)
    columns = run_sql(database_url, "SELECT * FROM contract_document")
    assert columns == []
    found = inspection.inspect("contracts", pipeline)
    assert {column.name for column in found.mapping.columns} == {
        "print_status",
        "print_version",
        "printed_at",
    }


def test_a_missing_init_names_the_command_to_run(database_url: str) -> None:
    run_sql(database_url, "SELECT 1")
    with pytest.raises(errors.TargetUnfit, match="run: instep init"):
        inspection.inspect("contracts", declare(database_url))


def test_a_key_that_is_not_unique_is_refused(database_url: str) -> None:
    make(database_url, key=KEY[kind_of(database_url)].replace(" PRIMARY KEY", ""))
    error = refused(database_url)
    assert "column 'doc_no' is the key and not unique" in error.what
    if not database_url.startswith("sqlite"):
        repaired(database_url, error.remedy)


def test_a_nullable_key_is_refused(database_url: str) -> None:
    make(
        database_url,
        REST + ", UNIQUE (doc_no)",
        key=KEY[kind_of(database_url)].replace(" NOT NULL PRIMARY KEY", ""),
    )
    error = refused(database_url)
    assert "column 'doc_no' is the key and may be null" in error.what
    if not database_url.startswith("sqlite"):
        repaired(database_url, error.remedy)


CONFUSING = [
    ("sqlite", "doc_no TEXT COLLATE NOCASE NOT NULL PRIMARY KEY", "a and A"),
    ("sqlite", "doc_no TEXT COLLATE RTRIM NOT NULL PRIMARY KEY", "a space behind it"),
    ("postgres", "doc_no CHAR(20) NOT NULL PRIMARY KEY", "a space behind it"),
    (
        "mariadb",
        "doc_no VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL PRIMARY KEY",
        "a and A",
    ),
    (
        "mariadb",
        "doc_no VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY",
        "a space behind it",
    ),
    (
        "mysql",
        "doc_no VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci NOT NULL PRIMARY KEY",
        "a and A",
    ),
    (
        "mysql",
        "doc_no VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_as_cs NOT NULL PRIMARY KEY",
        "as two characters",
    ),
    (
        "mysql",
        "doc_no VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY",
        "a space behind it",
    ),
]


@pytest.mark.parametrize(
    ("kind", "key", "words"), CONFUSING, ids=[f"{kind} {words}" for kind, _, words in CONFUSING]
)
def test_a_key_whose_collation_confuses_ids(
    kind: str, key: str, words: str, new_database: Callable[[str], str]
) -> None:
    url = new_database(kind)
    make(url, key=key)
    preparation.prepare(declare(url))
    assert inspection.inspect("contracts", declare(url)).loose_key
    with connecting.connection(target.database_url(url)) as opened:
        found = table_reader.TableReader(opened, target.table_name("contract_document"))
        found.check(declare(url))
        assert words in (found.confused_ids("doc_no") or "")


def test_a_key_that_distinguishes_all_ids(database_url: str) -> None:
    preparation.prepare(declare(database_url))
    assert not inspection.inspect("contracts", declare(database_url)).loose_key


def test_a_second_unique_key_prevents_upserts_on_mysql_and_mariadb(database_url: str) -> None:
    make(database_url, REST + ", reference INTEGER UNIQUE")
    preparation.prepare(declare(database_url))
    found = inspection.inspect("contracts", declare(database_url))
    assert found.unique == (("reference",),)
    assert found.upserts is not database_url.startswith("m")


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_table_without_transactions(kind: str, new_database: Callable[[str], str]) -> None:
    url = new_database(kind)
    run_sql(url, f"CREATE TABLE contract_document ({KEY[kind_of(url)]}, {REST}) ENGINE = MyISAM")
    error = refused(url)
    assert "no transactions" in error.what
    repaired(url, error.remedy)


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_character_sets_of_text_columns(kind: str, new_database: Callable[[str], str]) -> None:
    url = new_database(kind)
    make(
        url,
        REST.replace("print_status VARCHAR(20)", "print_status VARCHAR(20) CHARACTER SET latin1"),
    )
    preparation.prepare(declare(url))
    columns = inspection.inspect("contracts", declare(url)).mapping.columns
    assert columns[0].kind == kinds.Text(characters=20, charset="latin1")
    run_sql(url, "ALTER TABLE contract_document MODIFY print_status VARCHAR(20) CHARACTER SET sjis")
    error = refused(url)
    assert "'print_status' stores text as sjis" in error.what
    repaired(url, error.remedy)


def test_a_column_that_takes_no_null_and_is_not_mapped(database_url: str) -> None:
    make(database_url, REST + ", owner VARCHAR(20) NOT NULL")
    assert "column 'owner' does not allow null" in refused(database_url).what
    ignoring = declare(database_url, missing="ignore")
    preparation.prepare(ignoring)
    inspection.inspect("contracts", ignoring)


def test_a_guard_column_of_a_type_that_has_no_order(database_url: str) -> None:
    make(database_url, REST.replace("print_version BIGINT", "print_version VARCHAR(20)"))
    error = refused(database_url)
    assert "column 'print_version'" in error.what
    assert "the guard compares integers and times" in error.what


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_a_guard_column_that_is_too_coarse(kind: str, new_database: Callable[[str], str]) -> None:
    url = new_database(kind)
    make(url, REST.replace("printed_at TIMESTAMP NULL", "printed_at DATETIME"))
    changes = {
        "event": {
            "document": "doc_id",
            "status": "status",
            "order": "updated_at",
            "at": "updated_at",
        }
    }
    error = refused(url, **changes)
    assert "stores 0 digits of a second" in error.what
    repaired(url, error.remedy, **changes)


def test_a_column_that_an_event_cannot_fill_is_refused(database_url: str) -> None:
    make(database_url, REST + f", picture {'BYTEA' if database_url.startswith('post') else 'BLOB'}")
    columns = {"print_version": "version", "picture": "picture"}
    assert "a type that instep does not write" in refused(database_url, columns=columns).what


def test_a_misspelt_column_gets_a_suggestion(database_url: str) -> None:
    make(database_url)
    preparation.prepare(declare(database_url))
    with pytest.raises(
        errors.TargetUnfit, match="no column 'print_statu'; did you mean 'print_status'"
    ):
        inspection.inspect(
            "contracts",
            declare(database_url, columns={"print_statu": "status", "print_version": "version"}),
        )


def test_kinds_of_columns_in_postgres(new_database: Callable[[str], str]) -> None:
    url = new_database("postgres")
    run_sql(
        url,
        "CREATE TYPE colour AS ENUM ('red', 'green')",
        "CREATE DOMAIN short AS varchar(7)",
        "CREATE TABLE contract_document (doc_no UUID PRIMARY KEY, a SMALLINT, b NUMERIC(6,2),"
        " c colour, d short, e JSONB,"
        " f BOOLEAN, g DATE, h DOUBLE PRECISION, i TIMESTAMP, j TEXT)",
    )
    pipeline = declare(
        url, event={"status": "status"}, columns={name: name for name in "abcdefghij"}
    )
    preparation.prepare(pipeline)
    found = {
        column.name: column.kind
        for column in inspection.inspect("contracts", pipeline).mapping.columns
    }
    assert found == {
        "a": kinds.Integer(low=-(2**15), high=2**15 - 1),
        "b": kinds.Numeric(digits=6, scale=2),
        "c": kinds.Enumeration(labels=("red", "green")),
        "d": kinds.Text(),
        "e": kinds.Json(),
        "f": kinds.Boolean(),
        "g": kinds.Date(),
        "h": kinds.Float(),
        "i": kinds.Timestamp(),
        "j": kinds.Text(),
    }


def test_kinds_of_columns_in_mariadb(new_database: Callable[[str], str]) -> None:
    url = new_database("mariadb")
    run_sql(
        url,
        f"CREATE TABLE contract_document ({KEY['mariadb']}, a TINYINT(1), b INT UNSIGNED,"
        " c ENUM('x','y'), d DATETIME(3), e TEXT,"
        " f DECIMAL(4,1))",
    )
    pipeline = declare(url, event={"status": "status"}, columns={name: name for name in "abcdef"})
    preparation.prepare(pipeline)
    found = {
        column.name: column.kind
        for column in inspection.inspect("contracts", pipeline).mapping.columns
    }
    assert found["a"] == kinds.Integer(low=-128, high=127, is_boolean=True)
    assert found["b"] == kinds.Integer(low=0, high=2**32 - 1)
    assert found["c"] == kinds.Enumeration(labels=("x", "y"))
    assert isinstance(found["d"], kinds.Timestamp)
    assert found["d"].precision == 3
    assert found["e"] == kinds.Text(size=65535)
    assert found["f"] == kinds.Numeric(digits=4, scale=1)


def test_json_in_mariadb(new_database: Callable[[str], str]) -> None:
    url = new_database("mariadb")
    make(url, REST + ", flags JSON")
    pipeline = declare(url, columns={"print_version": "version", "flags": "flags"})
    preparation.prepare(pipeline)
    assert inspection.inspect("contracts", pipeline).mapping.columns[1].kind == kinds.Json(depth=31)


def test_a_table_that_cannot_be_used_is_not_changed(database_url: str) -> None:
    make(
        database_url,
        "owner VARCHAR(20)",
        key=KEY[kind_of(database_url)].replace(" PRIMARY KEY", ""),
    )
    before = preparation_columns(database_url)
    refused(database_url)
    assert preparation_columns(database_url) == before


def preparation_columns(url: str) -> set[str]:
    with connecting.connection(target.database_url(url)) as opened:
        return set(table_reader.TableReader(opened, target.table_name("contract_document")).columns)


def test_a_key_column_that_does_not_exist(database_url: str) -> None:
    make(database_url)
    error = refused(database_url, key="doc_nr")
    assert "no column 'doc_nr'; did you mean 'doc_no'?" in error.what
    assert "correct `key`" in error.remedy


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(errors.SettingsError, match="nowhere does not exist"):
        preparation.prepare(declare(f"sqlite:///{tmp_path}/nowhere/target.db"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("oracle://h/d", "does not support the target's database 'oracle'"),
        ("no url", "not a database URL"),
        ("sqlite://", "must be a file"),
        ("sqlite:///:memory:", "must be a file"),
    ],
)
def test_an_impossible_target(url: str, words: str) -> None:
    with pytest.raises(errors.SettingsError, match=words):
        inspection.inspect("contracts", declare(url))


def test_unreachable_and_unauthorised_are_distinguished(
    postgres: Postgres, mariadb: MariaDB
) -> None:
    with pytest.raises(errors.DatabaseUnreachable, match="no connection to"):
        inspection.inspect("contracts", declare("postgresql://x:y@127.0.0.1:1/d"))
    with pytest.raises(errors.DatabaseUnreachable, match="no connection to"):
        inspection.inspect("contracts", declare("mariadb://x:y@127.0.0.1:1/d"))
    with pytest.raises(errors.NotAuthorised) as caught:
        inspection.inspect(
            "contracts", declare(f"mariadb://stranger:topsecret@127.0.0.1:{mariadb.port}/instep")
        )
    assert "topsecret" not in str(caught.value)
    with pytest.raises(errors.DatabaseMissing, match='"nowhere" does not exist'):
        inspection.inspect("contracts", declare(postgres.url.removesuffix("/instep") + "/nowhere"))
    with pytest.raises(errors.NotAuthorised, match=r"nowhere|stranger"):
        inspection.inspect(
            "contracts", declare(f"mariadb://stranger@127.0.0.1:{mariadb.port}/nowhere")
        )
    with pytest.raises(errors.DatabaseMissing, match="nowhere"):
        inspection.inspect("contracts", declare(mariadb.url.removesuffix("/instep") + "/nowhere"))


def test_a_wrong_postgres_password_is_not_unreachable(postgres: Postgres) -> None:
    run_sql(postgres.url, "CREATE ROLE careful LOGIN PASSWORD 'right'")
    rules = postgres.root / "access.conf"
    before = rules.read_text(encoding="utf-8")
    rules.write_text("host all careful 127.0.0.1/32 scram-sha-256\n" + before, encoding="utf-8")
    os.kill(postgres.pid, signal.SIGHUP)
    refused: list[errors.InstepError] = []

    def is_refused() -> bool:
        try:
            inspection.inspect(
                "contracts", declare(postgres.url.replace("instep@", "careful:topsecret@"))
            )
        except errors.InstepError as error:
            refused.append(error)
        return isinstance(refused[-1], errors.NotAuthorised)

    try:
        wait_until(is_refused, "the server to ask for a password")
        assert "topsecret" not in str(refused[-1])
        assert "password of user 'careful'" in refused[-1].remedy
        nowhere = postgres.url.replace("instep@", "careful:right@").replace("/instep", "/nowhere")
        with pytest.raises(errors.DatabaseMissing, match="nowhere"):
            inspection.inspect("contracts", declare(nowhere))
    finally:
        rules.write_text(before, encoding="utf-8")
        os.kill(postgres.pid, signal.SIGHUP)


def test_tables_of_an_earlier_release_are_brought_up_to_date(database_url: str) -> None:
    pipeline = declare(database_url)
    preparation.prepare(pipeline)
    run_sql(
        database_url,
        "ALTER TABLE instep_parked DROP COLUMN timestamp_ms",
        "DROP TABLE instep_decisions",
    )
    with pytest.raises(errors.TargetUnfit, match="instep_decisions") as found:
        inspection.inspect("contracts", pipeline)
    assert "instep init" in found.value.remedy
    assert len(preparation.prepare(pipeline)) == 4  # the column, the table and its two indexes
    inspection.inspect("contracts", pipeline)
    run_sql(
        database_url,
        "DROP INDEX instep_parked_reason"
        + (" ON instep_parked" if database_url.startswith("m") else ""),
    )
    assert ["instep_parked_reason" in statement for statement in preparation.prepare(pipeline)] == [
        True
    ]
    assert preparation.prepare(pipeline) == []


def test_columns_of_an_earlier_version_are_renamed(database_url: str) -> None:
    """Keep the decisions that people made, and let `init` report what it renames."""
    pipeline = declare(database_url)
    preparation.prepare(pipeline)
    earlier = {"action": "deed", "reason": "why", "actor": "who"}
    for now, before in earlier.items():
        run_sql(database_url, f"ALTER TABLE instep_decisions RENAME COLUMN {now} TO {before}")
    with pytest.raises(errors.TargetUnfit, match="instep_decisions has no column"):
        inspection.inspect("contracts", pipeline)
    assert preparation.prepare(pipeline) == [
        f"ALTER TABLE instep_decisions RENAME COLUMN {before} TO {now}"
        for now, before in earlier.items()
    ]
    inspection.inspect("contracts", pipeline)
    assert preparation.statements(pipeline) == []
