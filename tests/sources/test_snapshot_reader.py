"""Test the reader of PostgreSQL's outbox without a relay."""

from __future__ import annotations

from collections.abc import Callable

from instep.kafka.connection import Cluster
from instep.sources import tables
from instep.sources.snapshot_reader import SnapshotReader
from tests.support.databases import run_sql
from tests.support.print_shop import PrintShop
from tests.support.relays import declare, run_once


def test_a_tick_ends_while_its_records_are_on_their_way(
    new_database: Callable[[str], str], cluster: Cluster
) -> None:
    """Nobody waits for the end of the read-only transaction, and it holds no snapshot back."""
    url = new_database("postgres")
    name, relay = declare(url, cluster)
    PrintShop(relay, name)
    run_sql(url, "INSERT INTO instep_outbox (document, value) VALUES ('a', '{}')")
    reader = SnapshotReader(relay, name)
    states = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND state = 'idle in transaction'"
    )
    batch = reader.next(10)
    assert batch is not None
    assert [row.document for row in batch.rows] == ["a"]
    assert run_sql(url, states) == [(1,)]
    reader.wait_durable(batch)
    assert run_sql(url, states) == [(0,)]
    assert reader.next(10) is None
    assert run_sql(url, states) == [(0,)]
    reader.close()


def test_rows_that_were_committed_during_a_tick_are_read_behind_it(
    new_database: Callable[[str], str], cluster: Cluster
) -> None:
    """Let a tick have nothing left: the outbox is not empty because of that."""
    url = new_database("postgres")
    name, relay = declare(url, cluster)
    PrintShop(relay, name)
    insert = "INSERT INTO instep_outbox (document, value) VALUES ('{}', '{{}}')"
    run_sql(url, insert.format("a"), insert.format("b"))
    reader = SnapshotReader(relay, name)
    found = reader.next(2)
    assert found is not None
    assert [row.document for row in found.rows] == ["a", "b"]
    run_sql(url, insert.format("c"))
    later = reader.next(2)
    assert later is not None
    assert [row.document for row in later.rows] == ["c"]
    assert reader.next(2) is None
    reader.close()


def test_published_rows_of_an_outbox_with_other_partitions_are_deleted(
    new_database: Callable[[str], str], cluster: Cluster
) -> None:
    url = new_database("postgres")
    columns = {"id": "seq", "document": "doc", "value": "value", "headers": None}
    name, relay = declare(url, cluster, outbox="events", columns=columns)
    partitions = [
        f"CREATE TABLE events_{part} PARTITION OF events"
        f" FOR VALUES WITH (MODULUS 4, REMAINDER {part})"
        for part in range(4)
    ]
    run_sql(
        url,
        "CREATE TABLE events (seq bigserial, doc text, value bytea,"
        " xid xid8 NOT NULL DEFAULT pg_current_xact_id()) PARTITION BY HASH (doc)",
        *partitions,
    )
    tables.prepare(relay, name)
    insert = "INSERT INTO events (doc, value) SELECT n::text, '{}' FROM generate_series(1, 100) n"
    run_sql(url, insert)
    run_once(name, relay, cluster)
    reader = SnapshotReader(relay, name)
    [position] = reader.skip()
    assert reader.clean_up_now(position["seen"], 100)
    reader.close()
    assert run_sql(url, "SELECT count(*) FROM events") == [(0,)]


def test_the_outbox_that_init_creates_is_a_ring_whatever_its_names(
    new_database: Callable[[str], str], cluster: Cluster
) -> None:
    """Delete nothing row by row: published partitions are emptied."""
    url = new_database("postgres")
    name, relay = declare(url, cluster, outbox='out"box')
    tables.prepare(relay, name)
    run_sql(url, """INSERT INTO "out""box" (document, value) VALUES ('a', '{}')""")
    reader = SnapshotReader(relay, name)
    [position] = reader.skip()
    assert reader.clean_up_now(position["seen"], 1 << tables.PARTITION_BITS)
    assert run_sql(url, 'SELECT count(*) FROM "out""box"') == [(0,)]
    assert reader.clean_up_now(position["seen"], 1)
    reader.close()
