"""Test that an outbox of which a relay would lose rows is refused, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from instep import errors, settings, sources
from instep.sources import dead_rows, outbox_shape, tables
from instep.sources.outbox_reader import OutboxReader
from tests.support.databases import run_sql

XID = "xid xid8 NOT NULL DEFAULT pg_current_xact_id()"
REST = "document varchar(50), value text, headers text"
ID = {
    "postgres": "id bigserial PRIMARY KEY",
    "mariadb": "id bigint AUTO_INCREMENT PRIMARY KEY",
    "mysql": "id bigint AUTO_INCREMENT PRIMARY KEY",
    "sqlite": "id INTEGER PRIMARY KEY AUTOINCREMENT",
}
UNFIT: list[tuple[str, str, dict[str, Any], str]] = [
    ("postgres", f"id uuid PRIMARY KEY, {REST}, {XID}", {}, "'id' .* has the type uuid"),
    ("postgres", f"id bigint, {REST}, {XID}", {}, "'id' .* may be NULL"),
    ("postgres", f"{ID['postgres']}, {REST}", {}, "no column 'xid'"),
    ("postgres", f"{ID['postgres']}, {REST}, xid xid8", {}, "'xid' .* is not xid8 NOT NULL"),
    ("postgres", f"{ID['postgres']}, {REST}, xid xid8 NOT NULL", {}, "'xid' .* is not xid8"),
    ("postgres", f"{ID['postgres']}, document bytea, value text, {XID}", {}, "the type bytea"),
    ("postgres", f"{ID['postgres']}, {REST}, {XID}", {"value": "load"}, "no column 'load'"),
    ("mariadb", f"id varchar(36) PRIMARY KEY, {REST}", {}, "'id' .* has the type varchar"),
    ("mysql", f"id binary(16) PRIMARY KEY, {REST}", {}, "'id' .* has the type binary"),
    ("mysql", f"{ID['mysql']}, document binary(16), value text", {}, "the type binary"),
    ("mariadb", f"{ID['mariadb']}, {REST}", {"headers": "head"}, "no column 'head'"),
    ("sqlite", f"id text PRIMARY KEY, {REST}", {}, "'id' .* has the type text"),
    ("sqlite", f"id INTEGER PRIMARY KEY, {REST}", {}, "'id' .* is not AUTOINCREMENT"),
    ("sqlite", f"{ID['sqlite']}, {REST}", {"document": "doc"}, "no column 'doc'"),
]


def declared(url: str, **columns: Any) -> settings.Relay:
    return msgspec.convert(
        {"source": url, "topic": "t", "outbox": "events", "columns": columns}, settings.Relay
    )


def opened(relay: settings.Relay) -> OutboxReader:
    tables.prepare(relay, "r")
    return sources.open_reader(relay, "r")


@pytest.mark.parametrize(("kind", "columns", "names", "words"), UNFIT)
def test_an_outbox_of_which_rows_would_be_lost_is_refused(
    kind: str, columns: str, names: dict[str, str], words: str, new_database: Callable[[str], str]
) -> None:
    relay = declared(new_database(kind), **names)
    run_sql(relay.source, f"CREATE TABLE events ({columns})")
    for check in (outbox_shape.check_existing, opened):
        with pytest.raises(errors.SettingsError, match=words) as caught:
            check(relay)
        assert "instep relay init" not in caught.value.remedy


@pytest.mark.parametrize("kind", ID)
def test_an_outbox_needs_no_column_for_headers(
    kind: str, new_database: Callable[[str], str]
) -> None:
    relay = declared(new_database(kind))
    xid = f", {XID}" if kind == "postgres" else ""
    run_sql(
        relay.source,
        f"CREATE TABLE events ({ID[kind]}, document integer, value text{xid})",
        "INSERT INTO events (document, value) VALUES (7, '{}'), (NULL, NULL)",
    )
    reader = opened(relay)
    batch = reader.next(10)
    reader.close()
    assert batch is not None
    assert [(row.document, row.value, row.headers) for row in batch.rows] == [
        ("7", b"{}", None),
        ("", None, None),
    ]


def test_an_outbox_that_does_not_exist_is_not_checked(new_database: Callable[[str], str]) -> None:
    for kind in ("sqlite", "postgres"):
        outbox_shape.check_existing(declared(new_database(kind)))


@pytest.mark.parametrize(
    ("type_", "given", "expected"),
    [
        ("jsonb", '{"n": 1.10}', b'{"n": 1.10}'),
        ("json", '{"n":12345678901234567890.123}', b'{"n":12345678901234567890.123}'),
        ("jsonb", "null", b"null"),
        ("jsonb", '"text"', b'"text"'),
    ],
)
def test_json_is_published_as_it_is(
    type_: str, given: str, expected: bytes, new_database: Callable[[str], str]
) -> None:
    """A JSON null is a value, not a delete."""
    relay = declared(new_database("postgres"), document="key", headers="head")
    run_sql(
        relay.source,
        f"CREATE TABLE events ({ID['postgres']}, key uuid, value {type_}, head jsonb, {XID})",
        "INSERT INTO events (key, value, head) VALUES"
        f" ('01234567-89ab-cdef-0123-456789abcdef', '{given}', '{{\"a\": \"b\"}}')",
    )
    reader = opened(relay)
    batch = reader.next(10)
    reader.close()
    assert batch is not None
    [row] = batch.rows
    assert (row.document[:8], row.value, row.headers) == ("01234567", expected, '{"a": "b"}')


EARLIER_DEAD = (
    "CREATE TABLE instep_outbox_dead (relay varchar(100) NOT NULL, id bigint NOT NULL,"
    " document varchar(255) NOT NULL, value {bytes}, headers text, reason text NOT NULL,"
    " at_s double precision NOT NULL, PRIMARY KEY (relay, id))"
)


def test_the_earlier_table_of_dead_rows_is_replaced(database_url: str) -> None:
    """Continue where a part of the statements was run, as MySQL has no transaction for them."""
    relay = settings.Relay(source=database_url, topic="t")
    kind = "bytea" if database_url.startswith("postgres") else "blob"
    run_sql(
        database_url,
        EARLIER_DEAD.format(bytes=kind),
        "INSERT INTO instep_outbox_dead VALUES ('r', 1, 'a', NULL, NULL, 'large', 5)",
        "INSERT INTO instep_outbox_dead VALUES ('r', 2, 'b', NULL, NULL, 'large', 6)",
    )
    first, created, *_ = [one for one in tables.missing(relay, "r") if "dead" in one]
    run_sql(
        database_url,
        first,
        created,
        "INSERT INTO instep_outbox_dead VALUES ('r', 1, 0, 'a', NULL, NULL, 'large', 5)",
    )
    tables.prepare(relay, "r")
    assert tables.prepare(relay, "r") == []
    assert [
        (row.id, row.occurrence, row.document, row.at.timestamp())
        for row in dead_rows.read("r", relay, 10)
    ] == [(1, 0, "a", 5), (2, 0, "b", 6)]
    with pytest.raises(Exception, match="dead_earlier"):
        run_sql(database_url, "SELECT * FROM instep_outbox_dead_earlier")


def test_two_relays_of_one_outbox_are_refused(database_url: str) -> None:
    """Let the second relay be declared in other settings, with the table as it was before."""
    relay = settings.Relay(source=database_url, topic="t")
    other = settings.Relay(source=database_url, topic="t", outbox="o'box")
    tables.prepare(relay, "r")
    tables.prepare(other, "s")
    assert tables.prepare(other, "s") == []
    sources.open_reader(other, "s").close()
    with pytest.raises(errors.SettingsError, match="'s' and relay 'r' have the same outbox"):
        tables.prepare(relay, "s")
    run_sql(database_url, "UPDATE instep_relays SET outbox = 'instep_outbox'")
    with pytest.raises(errors.SettingsError, match="'r' and relay 's' have the same outbox"):
        sources.open_reader(relay, "r")
    run_sql(database_url, "ALTER TABLE instep_relays DROP COLUMN outbox")
    with pytest.raises(errors.SettingsError) as caught:
        sources.open_reader(relay, "r")
    assert "instep relay init" in caught.value.remedy
    tables.prepare(relay, "r")
    assert run_sql(database_url, "SELECT relay, outbox FROM instep_relays ORDER BY relay") == [
        ("r", "instep_outbox"),
        ("s", None),
    ]
