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
from instep.sinks import target
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


def written(url: str) -> list[tuple[str, dict[str, Any] | None]]:
    """Return document and decoded value of every row of the outbox, in order."""
    rows = run_sql(url, "SELECT document, value FROM instep_outbox ORDER BY id")
    return [(document, value and json.loads(bytes(value))) for document, value in rows]


def record(url: str, table: str, columns: list[str], **changes: Any) -> settings.Relay:
    """Create an outbox, and triggers that record the table in it."""
    relay = settings.Relay(source=url, topic="t", version="version", **changes)
    tables.prepare(relay, "r")
    triggers.create(relay, triggers.plan(relay, table, columns))
    return relay


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_tables_of_the_same_name_in_two_schemas_are_recorded(
    kind: str, new_database: Callable[[str], str]
) -> None:
    url = new_database(kind)
    name = target.database_url(url).database
    run_sql(
        url,
        f"CREATE SCHEMA {name}_b",
        "CREATE TABLE job (id integer PRIMARY KEY, n integer)",
        f"CREATE TABLE {name}_b.job (id integer PRIMARY KEY, status varchar(9))",
    )
    try:
        relay = record(url, "job", [])
        triggers.measure(relay, triggers.plan(relay, f"{name}_b.job", []))
        triggers.create(relay, triggers.plan(relay, f"{name}_b.job", []))
        triggers.create(relay, triggers.plan(relay, f"{name}_b.job", []))  # replaces them
        run_sql(
            url,
            "INSERT INTO job VALUES (1, 5)",
            f"INSERT INTO {name}_b.job VALUES (2, 'NEW')",
            f"DELETE FROM {name}_b.job",
        )
        assert written(url) == [
            ("1", {"doc_id": "1", "n": 5}),
            ("2", {"doc_id": "2", "status": "NEW"}),
            ("2", None),
        ]
    finally:
        run_sql(url, f"DROP SCHEMA {name}_b" + (" CASCADE" if kind == "postgres" else ""))


def test_the_schema_of_sqlite_may_be_named(new_database: Callable[[str], str]) -> None:
    url = new_database("sqlite")
    run_sql(url, "CREATE TABLE job (id integer PRIMARY KEY, n integer)")
    record(url, "main.job", [], outbox="main.instep_outbox")
    run_sql(url, "INSERT INTO job VALUES (1, 5)")
    assert written(url) == [("1", {"doc_id": "1", "n": 5})]


def test_tables_with_long_names_are_recorded(database_url: str) -> None:
    """Use names that agree in their first 60 characters."""
    names = [f"{'j' * 60}{last}" for last in ("a", "b")]
    for name in names:
        run_sql(database_url, f"CREATE TABLE {name} (id varchar(9) PRIMARY KEY, n integer)")
        relay = record(database_url, name, [])
        triggers.create(relay, triggers.plan(relay, name, []))  # replaces them
    for name in names:
        run_sql(
            database_url,
            f"INSERT INTO {name} VALUES ('{name[-1]}', 1)",
            f"UPDATE {name} SET n = 2",
            f"DELETE FROM {name}",
        )
    assert [(document, value and value["n"]) for document, value in written(database_url)] == [
        (name, n) for name in ("a", "b") for n in (1, 2, None)
    ]


def test_a_table_is_recorded_in_two_outboxes(database_url: str) -> None:
    run_sql(database_url, "CREATE TABLE job (id integer PRIMARY KEY, a integer, b integer)")
    record(database_url, "job", ["a"])
    record(database_url, "job", ["b"], outbox="second")
    run_sql(database_url, "INSERT INTO job VALUES (1, 2, 3)", "UPDATE job SET b = 4")
    assert len(written(database_url)) == 1
    assert run_sql(database_url, "SELECT count(*) FROM second") == [(2,)]


OLD_TRIGGERS = {  # as instep created them before their names had a digest
    "postgres": [
        "CREATE FUNCTION instep_record_job() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        """ INSERT INTO "public"."instep_outbox" (document) VALUES ('old'); RETURN NULL; END $$""",
        "CREATE TRIGGER instep_job AFTER INSERT OR UPDATE OR DELETE ON job"
        " FOR EACH ROW EXECUTE FUNCTION instep_record_job()",
        "CREATE TRIGGER instep_job_truncate BEFORE TRUNCATE ON job"
        " FOR EACH STATEMENT EXECUTE FUNCTION instep_record_job()",
    ],
    "sqlite": [
        f"CREATE TRIGGER instep_job_{kind} AFTER {kind} ON job BEGIN"
        """ INSERT INTO "instep_outbox" (document) VALUES ('old'); END"""
        for kind in ("insert", "update", "delete")
    ],
    "mysql": [
        f"CREATE TRIGGER instep_job_{kind} AFTER {kind} ON job FOR EACH ROW BEGIN"
        " INSERT INTO `instep_outbox` (document) VALUES ('old'); END"
        for kind in ("insert", "update", "delete")
    ],
}
OLD_TRIGGERS["mariadb"] = OLD_TRIGGERS["mysql"]


@pytest.mark.parametrize("kind", OLD_TRIGGERS)
def test_triggers_with_earlier_names_are_replaced(
    kind: str, new_database: Callable[[str], str]
) -> None:
    """Keep those of the user, and those that write to another outbox."""
    url = new_database(kind)
    tables.prepare(settings.Relay(source=url, topic="t"), "r")
    run_sql(
        url,
        "CREATE TABLE job (id integer PRIMARY KEY, n integer)",
        *OLD_TRIGGERS[kind],
        "INSERT INTO job VALUES (1, 1)",
    )
    other = record(url, "job", [], outbox="second")
    assert triggers.plan(other, "job", []).replaced != ()
    record(url, "job", [])
    run_sql(url, "UPDATE job SET n = 2", "DELETE FROM job")
    assert [document for document, _ in written(url)] == ["old", "1", "1"]
    assert run_sql(url, "SELECT count(*) FROM second") == [(2,)]
    if kind == "postgres":
        names = run_sql(url, "SELECT proname FROM pg_proc WHERE proname LIKE 'instep_%'")
        assert len(names) == 2
        assert ("instep_record_job",) not in names


ZONES = {  # of a kind of database: types of time, and what changes the text of values
    "postgres": (
        ["timestamp", "timestamptz", "date", "interval", "bytea", "double precision", "money"],
        [
            "SET timezone = 'Asia/Tokyo'",
            "SET datestyle = 'German'",
            "SET intervalstyle = 'iso_8601'",
            "SET bytea_output = 'escape'",
            "SET extra_float_digits = -10",
        ],
    ),
    "mysql": (["timestamp(3)", "datetime", "timestamp", "date"], ["SET time_zone = '+09:00'"]),
    "sqlite": (["timestamp", "real"], ["PRAGMA recursive_triggers = ON"]),
}
ZONES["mariadb"] = ZONES["mysql"]
INSTANTS = {"postgres": "timestamptz", "mysql": "timestamp(3)", "mariadb": "timestamp(3)"}
VALUES = {"interval": "'90 minutes'", "bytea": "'\\x00ff'", "real": "0.1", "money": "'1.5'"}
VALUES["double precision"] = "0.1"


@pytest.mark.parametrize("kind", ZONES)
def test_keys_and_values_do_not_depend_on_the_session(
    kind: str, new_database: Callable[[str], str]
) -> None:
    """Insert and delete the same row in two sessions, and record each type in key and value."""
    url = new_database(kind)
    types, options = ZONES[kind]
    columns = ", ".join(f"k{n} {one} NOT NULL, v{n} {one}" for n, one in enumerate(types))
    keys = ", ".join(f"k{n}" for n in range(len(types)))
    run_sql(url, f"CREATE TABLE job ({columns}, PRIMARY KEY ({keys}))")
    relay = record(url, "job", [])
    triggers.measure(relay, triggers.plan(relay, "job", []))
    utc = [] if kind == "sqlite" else ["SET time_zone = '+00:00'"]
    if kind == "postgres":
        utc = ["SET timezone = 'UTC'"]
    run_sql(
        url,
        *utc,
        "INSERT INTO job VALUES ("
        + ", ".join(f"{VALUES.get(one, TIME)}, {VALUES.get(one, TIME)}" for one in types)
        + ")",
    )
    with SourceConnection(url) as opened:
        for option in options:
            opened.run(option)
        opened.run("BEGIN")
        opened.run("CREATE TEMPORARY TABLE copied AS SELECT * FROM job")
        opened.run("DELETE FROM job")
        opened.run("INSERT INTO job SELECT * FROM copied")
        opened.run("COMMIT")
    (first, value), (deleted, none), (second, again) = written(url)
    assert first == deleted == second
    assert none is None
    assert value == again
    if kind != "sqlite":
        assert value is not None
        zoned = value[f"v{types.index(INSTANTS[kind])}"]
        assert zoned.startswith("2026-10-25T02:30:00.123")
        assert zoned.endswith("+00:00")


TIME = "'2026-10-25 02:30:00.123'"


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_times_of_mysql_are_recorded_in_utc_and_a_date_of_zeros_is_none(
    kind: str, new_database: Callable[[str], str]
) -> None:
    url = new_database(kind)
    run_sql(url, "CREATE TABLE job (id integer PRIMARY KEY, at timestamp NULL)")
    record(url, "job", [])
    with SourceConnection(url) as opened:
        opened.run("SET sql_mode = ''")
        opened.run("SET time_zone = '+02:00'")
        opened.run("INSERT INTO job VALUES (1, '2026-10-25 02:30:00'), (2, NULL), (3, 0)")
        opened.run("SET time_zone = '+01:00'")
        opened.run("UPDATE job SET at = '2026-10-25 02:30:00' WHERE id = 1")
    assert [value and value["at"] for _, value in written(url)] == [
        "2026-10-25T00:30:00+00:00",
        None,
        None,
        "2026-10-25T01:30:00+00:00",
    ]


@pytest.mark.parametrize("count", [1, 19, 20, 150])
def test_wide_tables_are_recorded(database_url: str, count: int) -> None:
    if count == 1 and not database_url.startswith("sqlite"):
        pytest.skip("the number of columns of one call matters on SQLite only")
    names = [f"c{number}" for number in range(count)]
    run_sql(
        database_url,
        f"CREATE TABLE job (id integer PRIMARY KEY, {', '.join(f'{n} varchar(9)' for n in names)})",
    )
    record(database_url, "job", [])
    values = {name: None if n % 7 == 0 else f'{{"{n}}}' for n, name in enumerate(names)}
    texts = ", ".join("NULL" if one is None else f"'{one}'" for one in values.values())
    run_sql(
        database_url, f"INSERT INTO job VALUES (1, {texts})", f"UPDATE job SET {names[-1]} = '{{}}'"
    )
    assert written(database_url) == [
        ("1", {"doc_id": "1", **values}),
        ("1", {"doc_id": "1", **values, names[-1]: "{}"}),
    ]


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_an_outbox_that_is_too_narrow_for_the_keys_is_widened(
    kind: str, new_database: Callable[[str], str]
) -> None:
    url = new_database(kind)
    run_sql(
        url,
        "CREATE TABLE instep_outbox (id bigint AUTO_INCREMENT PRIMARY KEY,"
        " document varchar(255) NOT NULL, value longblob, headers longtext)",
        "CREATE TABLE short (id varchar(255) PRIMARY KEY, n integer)",
        "CREATE TABLE job (a varchar(200), b varbinary(200), n integer, PRIMARY KEY (a, b))",
    )
    relay = settings.Relay(source=url, topic="t", version="version")
    assert not triggers.plan(relay, "short", []).widens
    assert triggers.plan(relay, "job", []).widens
    record(url, "job", [])
    assert not triggers.plan(relay, "job", []).widens
    run_sql(url, "INSERT INTO job VALUES (REPEAT('a', 200), REPEAT('b', 200), 1)")
    assert [document for document, _ in written(url)] == ["a" * 200 + "/" + "62" * 200]


def test_a_key_without_a_value_does_not_fail(new_database: Callable[[str], str]) -> None:
    url = new_database("sqlite")
    run_sql(url, "CREATE TABLE job (id text PRIMARY KEY, n integer)")
    record(url, "job", [])
    run_sql(
        url, "INSERT INTO job VALUES (NULL, 1)", "UPDATE job SET id = 'a'", "UPDATE job SET n = 2"
    )
    assert [document for document, _ in written(url)] == ["", "", "a", "a"]


def test_rows_that_sqlite_replaces_without_a_trigger_are_noted(
    new_database: Callable[[str], str],
) -> None:
    url = new_database("sqlite")
    run_sql(
        url,
        "CREATE TABLE plain (id integer PRIMARY KEY, n integer)",
        "CREATE TABLE job (id integer PRIMARY KEY, code text UNIQUE, a text, b text)",
        "CREATE UNIQUE INDEX both ON job (a, b)",
    )
    relay = record(url, "job", [])
    assert triggers.plan(relay, "plain", []).notes == ()
    [note] = triggers.plan(relay, "job", []).notes
    assert "unique key of job (a+b, code)" in note
    with SourceConnection(url) as opened:
        opened.run("PRAGMA recursive_triggers = ON")
        opened.run("INSERT INTO job (id, code) VALUES (1, 'x')")
        opened.run("INSERT OR REPLACE INTO job (id, code) VALUES (2, 'x')")
    assert [document for document, _ in written(url)] == ["1", "1", "2"]


def test_a_recorded_column_cannot_take_the_place_of_the_id(
    new_database: Callable[[str], str],
) -> None:
    relay = settings.Relay(source=new_database("sqlite"), topic="t", version="version")
    run_sql(
        relay.source,
        "CREATE TABLE job (id integer PRIMARY KEY, doc_id text, n integer)",
        "CREATE TABLE own (doc_id integer PRIMARY KEY, n integer)",
    )
    with pytest.raises(errors.SettingsError, match=r"'doc_id'.*the name of the document's id"):
        triggers.plan(relay, "job", [])
    assert triggers.plan(relay, "job", ["n"]).columns == ("n",)
    assert triggers.plan(relay, "own", ["doc_id", "n"]).columns == ("doc_id", "n")


OWN_OUTBOXES = {
    "postgres": {
        "id bigserial PRIMARY KEY, document text, value jsonb": "column value of the type JSONB",
        "id bigserial PRIMARY KEY, document varchar(9), value bytea": "column document of the type",
        "id bigserial PRIMARY KEY, document text, value bytea, kind text NOT NULL": "column kind",
        "id bigserial PRIMARY KEY, document text, value bytea NOT NULL": "column value without",
    },
    "mariadb": {
        "id bigint AUTO_INCREMENT PRIMARY KEY, document varchar(9), value varchar(99)": "VARCHAR",
    },
    "sqlite": {
        "id INTEGER PRIMARY KEY AUTOINCREMENT, document text, value blob, a text NOT NULL": "a col",
    },
}


@pytest.mark.parametrize("kind", OWN_OUTBOXES)
def test_an_outbox_into_which_no_trigger_can_write_is_refused(
    kind: str, new_database: Callable[[str], str]
) -> None:
    url = new_database(kind)
    relay = settings.Relay(source=url, topic="t", version="version", outbox="events")
    run_sql(url, "CREATE TABLE job (id integer PRIMARY KEY, n integer)")
    renamed = msgspec.structs.replace(relay, columns=settings.OutboxColumns(value="payload"))
    with pytest.raises(errors.SettingsError, match="columns document and payload"):
        triggers.plan(renamed, "job", [])
    for columns, words in OWN_OUTBOXES[kind].items():
        run_sql(url, "DROP TABLE IF EXISTS events", f"CREATE TABLE events ({columns})")
        with pytest.raises(errors.SettingsError, match=words):
            triggers.plan(relay, "job", [])


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_values_of_which_mysql_makes_no_json_are_recorded(
    kind: str, new_database: Callable[[str], str]
) -> None:
    """Use a place, which is bytes for MariaDB, and JSON that must not become deeper."""
    url = new_database(kind)
    run_sql(url, "CREATE TABLE job (id integer PRIMARY KEY, place point, content json)")
    relay = record(url, "job", [])
    triggers.measure(relay, triggers.plan(relay, "job", []))
    depth = 100 if kind == "mysql" else 31
    deep = "[" * depth + "]" * depth
    run_sql(
        url,
        f"INSERT INTO job VALUES (1, ST_GeomFromText('POINT(1 2)'), '{deep}')",
        """INSERT INTO job VALUES (2, NULL, '{"a": [1]}'), (3, NULL, 'null'), (4, NULL, NULL)""",
    )
    first, *others = [value for _, value in written(url) if value]
    assert first["content"] == (deep if kind == "mysql" else json.loads(deep))
    if kind == "mariadb":
        assert bytes.fromhex(first["place"])[4:5] == b"\x01"
    else:
        assert first["place"]["coordinates"] == [1.0, 2.0]
        assert [value["content"] for value in others] == [{"a": [1]}, None, None]
