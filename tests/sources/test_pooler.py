"""Test a relay whose PostgreSQL is behind a real PgBouncer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import psycopg

from instep.kafka.connection import Cluster
from instep.sources.connection import SourceConnection
from tests.support.databases import run_sql
from tests.support.pgbouncer import PgBouncer
from tests.support.print_shop import PrintShop, difference
from tests.support.relays import declare, run_once

SHOW = "SELECT current_setting('lock_timeout'), current_setting('synchronous_commit')"


def test_settings_of_a_relay_do_not_reach_other_clients_of_a_pooler(
    new_database: Callable[[str], str], pgbouncer: PgBouncer
) -> None:
    """Ask as another client, to which the pooler gives the same sessions."""
    direct = new_database("postgres")
    name = direct.rpartition("/")[2]
    run_sql(direct, f"ALTER DATABASE {name} SET synchronous_commit = off")
    pooled = pgbouncer.through(direct)
    with (
        SourceConnection(pooled) as opened,
        psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as other,
    ):
        opened.execute("CREATE TABLE notes (n integer)")
        for _ in range(4):
            with opened.transaction():
                assert opened.select(SHOW) == [("10s", "on")]
            assert opened.select(SHOW) == [("10s", "on")]
            assert opened.execute("INSERT INTO notes VALUES (?)", (1,)) == 1
            assert other.execute(SHOW).fetchall() == [("0", "off")]
        assert other.execute("SELECT count(*) FROM notes").fetchall() == [(4,)]


def test_a_relay_publishes_through_a_pooler(
    new_database: Callable[[str], str], pgbouncer: PgBouncer, cluster: Cluster
) -> None:
    name, relay = declare(new_database("postgres"), cluster)
    shop = PrintShop(relay, name)
    pooled = msgspec.structs.replace(relay, source=pgbouncer.through(relay.source))
    for seed in range(2):
        shop.work(10, seed)
        run_once(name, pooled, cluster)
        assert not difference(shop, cluster, relay.topic)
