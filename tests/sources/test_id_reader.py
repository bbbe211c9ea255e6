"""Test the reader of the outboxes of MariaDB, MySQL and SQLite without a relay."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest
import sqlalchemy as sa

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


def test_reads_begin_behind_ids_that_no_open_transaction_can_have(
    new_database: Callable[[str], str], cluster: Cluster
) -> None:
    """Let every read count as slow. Commit a row late, and use a published id again."""
    name, relay = declare(new_database("mariadb"), cluster)
    PrintShop(relay, name)  # creates the tables
    reader = IdReader(relay, name)
    insert = "INSERT INTO instep_outbox (id, document, value) VALUES (?, ?, ?)"
    with SourceConnection(relay.source) as late, SourceConnection(relay.source) as opened:

        def add(*ids: int) -> None:
            for id_ in ids:
                opened.execute(insert, (id_, f"job-{id_}", b"{}"))

        add(1, 2)
        assert _read(reader, 1) == [1, 2]
        with late.transaction():
            late.execute(insert, (4, "job-4", b"{}"))
            add(3, 5)
            assert _read(reader, 2, is_slow=True) == [3, 5]
            assert reader._begin == 0  # a transaction is open
            add(6)
            batch = reader.next(100)
            assert batch is not None
            assert [row.id for row in batch.rows] == [6]
        add(7)
        assert _read(reader, 3, is_slow=True, deletes=2) == [4, 7]
        assert reader._begin == 6  # behind what was returned when no transaction was open
        add(2, 8)
        reader._whole_read_at = math.inf
        assert _read(reader, 5) == [8]
        reader._whole_read_at = 0.0
        assert _read(reader, 6) == [2]
    reader.close()


def test_a_reader_that_is_stopped_while_it_locks_the_outbox_holds_up_nobody_for_long(
    new_database: Callable[[str], str], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, relay = declare(new_database("mariadb"), cluster)
    shop = PrintShop(relay, name)
    shop.work(2)
    reader = IdReader(relay, name)
    run = reader._opened.run

    def run_late(statement: str) -> None:
        if statement == "UNLOCK TABLES":
            shop.work(1, seed=1)  # waits for the lock
        run(statement)

    monkeypatch.setattr(reader._opened, "run", run_late)
    with pytest.raises(errors.Unreachable):
        _read(reader, 1, is_slow=True)
    reader.close()


def test_without_the_right_to_lock_tables_all_rows_are_read(
    new_database: Callable[[str], str], cluster: Cluster
) -> None:
    url = new_database("mariadb")
    name, relay = declare(url, cluster)
    PrintShop(relay, name).work(2)
    database = sa.make_url(url).database
    run_sql(
        url,
        f"CREATE USER {name!r}@'%' IDENTIFIED BY 'secret'",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO {name!r}@'%'",
    )
    limited = sa.make_url(url).set(username=name, password="secret")
    relay = msgspec.structs.replace(relay, source=limited.render_as_string(hide_password=False))
    reader = IdReader(relay, name)
    assert _read(reader, 1, is_slow=True)
    assert reader._settle_at == math.inf
    assert reader._begin == 0
    assert reader._opened.value("SELECT @@autocommit") == 1
    reader.close()
    run_sql(url, f"DROP USER {name!r}@'%'")


def _read(reader: IdReader, sequence: int, *, is_slow: bool = False, deletes: int = 1) -> list[int]:
    if is_slow:
        reader._is_slow, reader._settle_at = True, 0.0
    batch = reader.next(100)
    assert batch is not None
    for number in range(deletes):
        reader.done(sequence + number)
    return [row.id for row in batch.rows]
