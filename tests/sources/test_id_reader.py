"""Test the reader of the outboxes of MariaDB, MySQL and SQLite without a relay."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from instep import errors
from instep.kafka.connection import Cluster
from instep.sources.connection import SourceConnection
from instep.sources.id_reader import IdReader
from tests.support.database_servers import UnsyncedMariaDB
from tests.support.databases import run_sql
from tests.support.print_shop import PrintShop
from tests.support.relays import declare


def test_rows_that_a_crash_would_undo_are_not_published(cluster: Cluster) -> None:
    """Let the server show commits that are not on disk, and kill it."""
    with UnsyncedMariaDB() as server:
        name, relay = declare(server.url, cluster)
        shop = PrintShop(relay, name)
        shop.work(2)
        before = shop.counts()
        run_sql(
            server.url,
            "SET GLOBAL innodb_flush_log_at_trx_commit = 0",
            "SET GLOBAL innodb_flush_log_at_timeout = 2700",
        )
        shop.work(5, seed=1)
        reader = IdReader(relay, name)
        batch = reader.next(100)
        assert batch is not None
        assert len(batch.rows) > sum(before.values())
        server.kill()
        with pytest.raises(errors.Unreachable):
            reader.wait_durable(batch)
        reader.close()
        server.start()
        assert shop.counts() == before


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_the_log_is_on_disk_up_to_rows_that_are_durable(
    kind: str, new_database: Callable[[str], str], cluster: Cluster
) -> None:
    """Read beside an open transaction, whose part of the log nobody has to write."""
    name, relay = declare(new_database(kind), cluster)
    shop = PrintShop(relay, name)
    shop.work(2)
    reader = IdReader(relay, name)
    with SourceConnection(relay.source) as opened, opened.transaction():
        for number in range(10):
            shop.change(opened, f"job-{number}")
        batch = reader.next(100)
        end = reader._log_end
        assert batch is not None
        assert end is not None
        reader.wait_durable(batch)
        on_disk = reader._log()[1]
        assert on_disk is not None
        assert on_disk >= end
    reader.close()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_rows_that_are_committed_late_or_with_a_used_id_are_read(
    kind: str, new_database: Callable[[str], str], cluster: Cluster
) -> None:
    """Commit between published rows, and use an id again that the reader leaves out meanwhile."""
    name, relay = declare(new_database(kind), cluster)
    PrintShop(relay, name)  # creates the tables
    reader = IdReader(relay, name)
    insert = "INSERT INTO instep_outbox (id, document, value) VALUES (?, ?, ?)"
    with SourceConnection(relay.source) as late, SourceConnection(relay.source) as opened:

        def add(*ids: int) -> None:
            for id_ in ids:
                opened.execute(insert, (id_, f"job-{id_}", b"{}"))

        add(1, 2)
        assert _read(reader, 1) == [1, 2]
        reader._whole_read_at = math.inf
        with late.transaction():
            late.execute(insert, (4, "job-4", b"{}"))
            add(3, 5)
            assert _read(reader, 2) == [3, 5]
            add(6)
            batch = reader.next(100)
            assert batch is not None
            assert [row.id for row in batch.rows] == [6]
        add(7)
        assert _read(reader, 3, deletes=2) == [4, 7]
        add(2)
        assert reader.next(100) is None
        reader._whole_read_at = 0.0
        assert _read(reader, 5) == [2]
        assert reader._whole_read_at > 0
    reader.close()


def _read(reader: IdReader, sequence: int, deletes: int = 1) -> list[int]:
    batch = reader.next(100)
    assert batch is not None
    for number in range(deletes):
        reader.done(sequence + number)
    return [row.id for row in batch.rows]
