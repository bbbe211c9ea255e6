"""Test triggers that record changes of a table that no program of ours writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from instep import errors, settings
from instep.kafka import offsets, reading
from instep.kafka.connection import Cluster
from instep.sources import tables, triggers
from instep.sources.connection import SourceConnection
from tests.support.databases import run_sql
from tests.support.relays import declare, run_once

EXACT = {  # of a kind of database: a type of text that ignores case, and an expression of bytes
    "postgres": ("citext", r"'\xff00'::bytea"),
    "mariadb": ("varchar(20) COLLATE utf8mb4_general_ci", "x'ff00'"),
    "mysql": ("varchar(20) COLLATE utf8mb4_0900_ai_ci", "x'ff00'"),
    "sqlite": ("text COLLATE NOCASE", "x'ff00'"),
}
REPLACEMENTS = 15
# Changes in a row, and the pause after them: SQLite's lock has no queue, so that a writer without
# pauses would keep it from the others for seconds.
ROW = 20
PAUSE_S = 0.002


def prepared(url: str, cluster: Cluster) -> tuple[str, settings.Relay]:
    """Return a relay that publishes versions, with its outbox."""
    name, relay = declare(url, cluster, version="version")
    tables.prepare(relay, name)
    return name, relay


def records(cluster: Cluster, topic: str) -> dict[str, list[dict[str, Any] | None]]:
    """Return the values of each document, in the order of the log."""
    ends = offsets.latest(cluster, topic, range(3))
    found: dict[str, list[dict[str, Any] | None]] = {}
    for record in reading.read(cluster, topic, {part: (0, end) for part, end in ends.items()}):
        value = None if record.value is None else json.loads(record.value)
        found.setdefault((record.key or b"").decode(), []).append(value)
    return found


def test_changes_of_a_table_are_published_with_increasing_versions(
    database_url: str, cluster: Cluster
) -> None:
    name, relay = prepared(database_url, cluster)
    run_sql(
        database_url,
        "CREATE TABLE job (tenant varchar(5), no integer, status varchar(20), pages integer,"
        " internal varchar(20), PRIMARY KEY (tenant, no))",
        "INSERT INTO job VALUES ('old', 1, 'NEW', 1, 'x')",
    )
    plan = triggers.plan(relay, "job", ["status", "pages"])
    triggers.create(relay, plan)
    run_sql(
        database_url,
        "INSERT INTO job VALUES ('a', 1, 'NEW', NULL, 'x'), ('b''\"', 2, 'NEW', 2, 'x')",
        "UPDATE job SET status = 'PRINTED', pages = 12 WHERE no = 1",
        "UPDATE job SET internal = 'y'",  # not recorded
        "UPDATE job SET status = status",  # no change
        "UPDATE job SET no = 3 WHERE no = 2",
        "DELETE FROM job WHERE tenant = 'a'",
    )
    triggers.create(relay, plan)  # replaces them
    run_once(name, relay, cluster)
    found = records(cluster, relay.topic)
    versions = [value["version"] for values in found.values() for value in values if value]
    assert len(set(versions)) == len(versions) == 5
    plain = {
        key: [value and {**value, "version": 0} for value in values]
        for key, values in found.items()
    }
    assert plain == {
        "old/1": [event("old/1", "PRINTED", 12)],
        "a/1": [event("a/1", "NEW", None), event("a/1", "PRINTED", 12), None],
        "b'\"/2": [event("b'\"/2", "NEW", 2), None],
        "b'\"/3": [event("b'\"/3", "NEW", 2)],
    }
    assert [value["version"] for value in found["a/1"] if value] == sorted(
        value["version"] for value in found["a/1"] if value
    )


def event(document: str, status: str, pages: int | None) -> dict[str, Any]:
    return {"doc_id": document, "status": status, "pages": pages, "version": 0}


def test_the_cost_is_measured_in_tables_that_are_removed(database_url: str) -> None:
    relay = settings.Relay(source=database_url, topic="t", version="version")
    tables.prepare(relay, "r")
    run_sql(database_url, "CREATE TABLE job (id integer PRIMARY KEY, status varchar(20) NOT NULL)")
    for rows in ("DELETE FROM job", "INSERT INTO job VALUES (1, 'NEW')"):
        run_sql(database_url, rows)
        cost = triggers.measure(relay, triggers.plan(relay, "job", []))
        assert cost.without_ms > 0
        assert cost.with_ms > 0
        assert run_sql(database_url, "SELECT count(*) FROM instep_outbox") == [(0,)]
        with pytest.raises(Exception, match="instep_probe"):
            run_sql(database_url, "SELECT * FROM instep_probe")


def test_truncate_is_recorded_as_deletes(
    new_database: Callable[[str], str], cluster: Cluster
) -> None:
    url = new_database("postgres")
    name, relay = prepared(url, cluster)
    run_sql(url, "CREATE TABLE job (id integer PRIMARY KEY, status text)")
    triggers.create(relay, triggers.plan(relay, "job", []))
    run_sql(url, "INSERT INTO job VALUES (1, 'NEW'), (2, 'NEW')", "TRUNCATE job")
    run_once(name, relay, cluster)
    assert {key: values[-1] for key, values in records(cluster, relay.topic).items()} == {
        "1": None,
        "2": None,
    }


def test_columns_without_equality_are_compared(
    new_database: Callable[[str], str], cluster: Cluster
) -> None:
    url = new_database("postgres")
    name, relay = prepared(url, cluster)
    run_sql(
        url,
        "CREATE TABLE job (id integer PRIMARY KEY, data json, place point, n integer)",
        "INSERT INTO job VALUES (1, '{}', NULL, 1)",
    )
    plan = triggers.plan(relay, "job", ["data", "place"])
    triggers.measure(relay, plan)
    triggers.create(relay, plan)
    run_sql(
        url,
        "UPDATE job SET n = 2",  # not recorded
        """UPDATE job SET data = '{"a": 1}'""",
        "UPDATE job SET place = '(1,2)'",
        "UPDATE job SET data = data, place = place",  # no change
    )
    run_once(name, relay, cluster)
    [found] = records(cluster, relay.topic).values()
    assert [value and (value["data"], value["place"]) for value in found] == [
        ({"a": 1}, None),
        ({"a": 1}, "(1,2)"),
    ]


@pytest.mark.parametrize("kind", EXACT)
def test_changes_that_a_collation_ignores_are_recorded(
    kind: str, new_database: Callable[[str], str], cluster: Cluster
) -> None:
    """Change the case of a value, then that of the document's id."""
    url = new_database(kind)
    type_, _ = EXACT[kind]
    name, relay = prepared(url, cluster)
    if kind == "postgres":
        run_sql(url, "CREATE EXTENSION citext")
    key = "PRIMARY KEY (id)"
    run_sql(
        url,
        f"CREATE TABLE job (id {type_} NOT NULL, status {type_}, {key})",
        "INSERT INTO job VALUES ('a', 'new')",
    )
    triggers.create(relay, triggers.plan(relay, "job", []))
    run_sql(url, "UPDATE job SET status = 'NEW'", "UPDATE job SET id = 'A'")
    run_once(name, relay, cluster)
    found = records(cluster, relay.topic)
    assert {
        id_: [value and value["status"] for value in values] for id_, values in found.items()
    } == {
        "a": ["NEW", None],
        "A": ["NEW"],
    }


@pytest.mark.parametrize("kind", EXACT)
def test_bytes_are_recorded_as_hexadecimal_text(
    kind: str, new_database: Callable[[str], str], cluster: Cluster
) -> None:
    """Use them in the key, too: the database would refuse them as text, or replace them."""
    url = new_database(kind)
    _, value = EXACT[kind]
    name, relay = prepared(url, cluster)
    type_ = "bytea" if kind == "postgres" else "varbinary(9)"
    run_sql(url, f"CREATE TABLE job (id {type_} NOT NULL PRIMARY KEY, content {type_})")
    triggers.create(relay, triggers.plan(relay, "job", []))
    run_sql(url, f"INSERT INTO job VALUES ({value}, {value})")
    run_once(name, relay, cluster)
    [(document, [record])] = records(cluster, relay.topic).items()
    assert record is not None
    assert {document, record["doc_id"], record["content"]} == {
        r"\xff00" if kind == "postgres" else "FF00"
    }


def test_no_change_is_lost_while_triggers_are_replaced(database_url: str, cluster: Cluster) -> None:
    _, relay = prepared(database_url, cluster)
    run_sql(
        database_url,
        "CREATE TABLE job (id integer PRIMARY KEY, n integer)",
        "INSERT INTO job VALUES (1, 0)",
    )
    triggers.create(relay, triggers.plan(relay, "job", []))
    ended = threading.Event()

    def work() -> int:
        changes = 0
        with SourceConnection(database_url) as opened:
            while not ended.wait(0 if changes % ROW else PAUSE_S):
                opened.execute("UPDATE job SET n = n + 1 WHERE id = 1")
                changes += 1
        return changes

    with ThreadPoolExecutor(1) as pool:
        changes = pool.submit(work)
        try:
            for _ in range(REPLACEMENTS):
                triggers.create(relay, triggers.plan(relay, "job", []))
        finally:
            ended.set()
    assert run_sql(database_url, "SELECT count(*) FROM instep_outbox") == [(changes.result(),)]


def test_a_recorded_column_cannot_take_the_place_of_the_version(
    new_database: Callable[[str], str],
) -> None:
    relay = settings.Relay(source=new_database("sqlite"), topic="t", version="version")
    tables.prepare(relay, "r")
    run_sql(relay.source, "CREATE TABLE job (id integer PRIMARY KEY, status text, version text)")
    for columns in ([], ["status", "version"]):
        with pytest.raises(errors.SettingsError, match=r"column 'version'.*has the name") as caught:
            triggers.plan(relay, "job", columns)
        assert "--columns" in caught.value.remedy
    assert triggers.plan(relay, "job", ["status"]).columns == ("status",)
    renamed = msgspec.structs.replace(relay, version="outbox_id")
    assert triggers.plan(renamed, "job", []).columns == ("status", "version")


def test_wrong_use_has_a_remedy(new_database: Callable[[str], str]) -> None:
    relay = settings.Relay(source=new_database("sqlite"), topic="t", version="version")
    tables.prepare(relay, "r")
    run_sql(relay.source, "CREATE TABLE job (id integer PRIMARY KEY, status text)")
    run_sql(relay.source, "CREATE TABLE loose (id integer)")
    unversioned = msgspec.structs.replace(relay, version=None)
    for given, table, columns, words in [
        (unversioned, "job", [], 'version = "version"'),
        (relay, "jobs", [], "has no table 'jobs'"),
        (relay, "job", ["state"], "did you mean 'status'"),
        (relay, "loose", [], "no primary key"),
    ]:
        with pytest.raises(errors.SettingsError) as caught:
            triggers.plan(given, table, columns)
        assert words in str(caught.value)
