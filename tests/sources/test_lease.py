"""Test who may take the lease of a relay, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from instep import errors, settings
from instep.sources import tables
from instep.sources.connection import SourceConnection
from instep.sources.lease import Lease
from tests.support.databases import run_sql
from tests.support.waiting import wait_until


def leases(url: str, count: int) -> list[Lease]:
    """Return leases of different processes of one relay."""
    relay = settings.Relay(source=url, topic="t", take_over_s=2.5)
    tables.prepare(relay, "r")
    return [Lease(relay, "r") for _ in range(count)]


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "sqlite"])
def test_a_clock_that_was_set_back_does_not_keep_a_standby_waiting(
    kind: str, new_database: Callable[[str], str]
) -> None:
    url = new_database(kind)
    dead, standby, other = leases(url, 3)
    assert dead.claim()
    dead.close()
    run_sql(url, "UPDATE instep_relays SET heartbeat_s = heartbeat_s + 3600")
    assert not standby.claim()
    assert other.read().silent_s < 0
    assert not other.is_held()
    wait_until(standby.claim, "the lease")


@pytest.mark.parametrize("kind", ["mariadb", pytest.param("mysql", marks=pytest.mark.long)])
def test_the_clock_of_a_source_has_no_summer_time(
    kind: str, new_database: Callable[[str], str]
) -> None:
    with SourceConnection(new_database(kind)) as opened:
        assert opened.value("SELECT @@SESSION.time_zone") == "+00:00"


def test_a_long_transaction_of_the_application_gives_the_lease_to_nobody(
    new_database: Callable[[str], str],
) -> None:
    """Let a transaction of SQLite keep the active process from renewing its lease."""
    url = new_database("sqlite")
    active, standby = leases(url, 2)
    assert active.claim()
    run_sql(url, "UPDATE instep_relays SET heartbeat_s = heartbeat_s - 10")
    with SourceConnection(url) as application:
        application.execute("BEGIN IMMEDIATE")
        assert not standby.claim()
        application.execute("COMMIT")
    assert not standby.claim()  # the active process has the first chance
    active.renew(None, is_counted=True)
    assert not standby.claim()
    run_sql(url, "UPDATE instep_relays SET heartbeat_s = heartbeat_s - 10")
    wait_until(standby.claim, "the lease of a process that has really ended")
    with pytest.raises(errors.LeaseLost):
        active.renew(None, is_counted=True)


def test_short_transactions_of_the_application_do_not_keep_a_standby_waiting(
    new_database: Callable[[str], str],
) -> None:
    url = new_database("sqlite")
    dead, standby = leases(url, 2)
    assert dead.claim()
    dead.close()
    run_sql(url, "CREATE TABLE job (id INTEGER)")
    run_sql(url, "UPDATE instep_relays SET heartbeat_s = heartbeat_s - 10")
    ended = threading.Event()

    def write() -> None:
        with SourceConnection(url) as application:
            while not ended.wait(0.005):
                application.execute("BEGIN IMMEDIATE")
                application.execute("INSERT INTO job VALUES (1)")
                ended.wait(0.005)
                application.execute("COMMIT")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until(lambda: run_sql(url, "SELECT count(*) FROM job") != [(0,)], "the writer")
        with SourceConnection(url) as opened:
            assert all(opened.may_write() for _ in range(20))
        assert standby.claim()
    finally:
        ended.set()
        writer.join()
