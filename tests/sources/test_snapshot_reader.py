"""Test the reader of PostgreSQL's outbox without a relay."""

from __future__ import annotations

from collections.abc import Callable

from instep.kafka.connection import Cluster
from instep.sources.snapshot_reader import SnapshotReader
from tests.relay.support import declare
from tests.support.databases import run_sql
from tests.support.print_shop import PrintShop


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
