"""Test PostgreSQL behind a real PgBouncer: each transaction may run in another server session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import psycopg
import pytest

from instep import errors, sinks
from instep.kafka.connection import Cluster
from instep.local.postgres import Postgres
from instep.operate import status
from instep.pipeline.apply import release
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.pipeline.runner import Runner
from instep.reconcile import repair
from instep.sinks import facts, inspection, preparation, target
from instep.sinks.postgres import PostgresConnection
from instep.sinks.sink import Sink
from tests.support.databases import declare, open_sink, run_sql
from tests.support.pgbouncer import PgBouncer
from tests.support.pipelines import Prove, drained, following
from tests.support.runs import event as sent
from tests.support.runs import send
from tests.support.transactions import apply, begun, event, record, table

__all__ = ["open_sink"]

Open = Callable[..., Sink]
BY_TIME = {
    "event": {"document": "doc_id", "status": "status", "order": "updated_at", "at": "updated_at"},
    "columns": {"print_status": "status", "printed_at": "updated_at"},
}


@pytest.fixture
def direct(new_database: Callable[[str], str]) -> str:
    """Return a new database, without the pooler."""
    return new_database("postgres")


@pytest.fixture
def pooled(direct: str, pgbouncer: PgBouncer) -> str:
    """Return the same database, through the pooler."""
    return pgbouncer.through(direct)


@pytest.fixture
def other_client(pooled: str) -> Iterator[psycopg.Connection]:
    """Connect another client.

    While it has a transaction open, the pooler must open a second session.
    """
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as client:
        yield client


def sessions(sink: Sink, count: int = 6) -> list[int]:
    """Return the server sessions of several consecutive transactions."""
    found = []
    for _ in range(count):
        with sink.transaction():
            found.append(sink.connection.select("SELECT pg_backend_pid()")[0][0])
    return found


def test_batches_through_a_pooler_equal_batches_without_one(
    pooled: str, open_sink: Open, other_client: psycopg.Connection
) -> None:
    """Apply fresh, late, refused and unreadable events, of two pipelines in turn.

    Each transaction runs in another session.
    """
    other_client.execute("BEGIN")
    run_sql(pooled, "SELECT 1")
    other_client.execute("ROLLBACK")
    run_sql(
        pooled,
        "CREATE TABLE contract_document (doc_no text PRIMARY KEY,"
        " print_status text CHECK (print_status <> 'BAD'),"
        " print_version bigint, printed_at timestamptz)",
        "CREATE TABLE letter (LIKE contract_document INCLUDING ALL)",
    )
    one = begun(open_sink(declare(pooled)))
    two = begun(open_sink(declare(pooled, table="letter"), "letters"))
    assert len(set(sessions(one))) == 2, "the pooler did not give out two sessions"
    for turn in range(3):
        for sink in (one, two):
            start = turn * 5
            records = [
                event(start, "a", turn * 2),
                event(start + 1, "b", turn),
                event(start + 2, "a", 0),
                record(start + 3, "c", b"{"),
            ]
            apply(sink, [*records, event(start + 4, "refused", turn, "BAD")])
            sink.try_statements()
    expected = [("a", "PRINTED", 4), ("b", "PRINTED", 2)]
    assert table(pooled) == expected
    assert (
        run_sql(pooled, "SELECT doc_no, print_status, print_version FROM letter ORDER BY doc_no")
        == expected
    )
    for sink in (one, two):
        assert (
            sink.ledger.positions()[0].next_offset,
            sink.journal.dead_letter_count(),
            sink.journal.parked_count(),
        ) == (
            15,
            3,
            1,
        )
    counts = run_sql(
        pooled, "SELECT pipeline, verdict, count(*) FROM instep_history GROUP BY 1, 2 ORDER BY 1, 2"
    )
    verdicts = [("applied", 6), ("parked", 3), ("repeated", 1), ("stale", 2)]
    assert counts == [(name, *one) for name in ("contracts", "letters") for one in verdicts]


def test_the_fast_path_works_through_a_pooler(pooled: str, open_sink: Open) -> None:
    """Write without constraints: upserts roll back to a savepoint when a row is late."""
    sink = begun(open_sink(declare(pooled)))
    assert sink.target.upserts
    apply(sink, [event(0, "a", 2), event(1, "b", 2)])
    apply(sink, [event(2, "a", 1), event(3, "b", 3)])
    apply(sink, [event(4, "b", 1), event(5, "a", 3)])
    assert table(pooled) == [("a", "PRINTED", 3), ("b", "PRINTED", 3)]


def test_session_settings_apply_only_to_the_transaction(
    direct: str, pooled: str, open_sink: Open, request: pytest.FixtureRequest
) -> None:
    name = direct.rpartition("/")[2]
    run_sql(
        direct,
        f"ALTER DATABASE {name} SET datestyle = 'German'",
        f"ALTER DATABASE {name} SET timezone = 'Asia/Tokyo'",
        f"ALTER DATABASE {name} SET lock_timeout = '7s'",
    )
    # the pooler's sessions have these settings from here on
    other_client = request.getfixturevalue("other_client")
    sink = begun(open_sink(declare(pooled, **BY_TIME)))
    apply(sink, [event(0, "a", 0, updated_at=1_790_000_000_123)])
    # outside a transaction
    assert sink.table.look_up(["a"]) == {
        "a": {"print_status": "PRINTED", "printed_at": "2026-09-21 14:13:20.123+00"}
    }
    assert sink.stored(["a"])["a"].order == 1_790_000_000_123_000
    assert sink.connection.select("SHOW lock_timeout") == [("30s",)]
    with sink.snapshot():
        assert sink.connection.select("SHOW DateStyle")[0][0].startswith("ISO")
    apply(
        sink,
        [
            event(1, "a", 0, "LATE", updated_at=1_789_999_999_999),
            event(2, "a", 0, "NEWER", updated_at=1_790_000_000_124),
        ],
    )
    assert run_sql(direct, "SELECT print_status FROM contract_document") == [("NEWER",)]
    # nothing is left behind in the sessions that others use
    for _ in range(4):
        assert other_client.execute("SHOW lock_timeout").fetchone() == ("7s",)
        assert other_client.execute("SELECT to_regclass('pg_temp.instep_stage')").fetchone() == (
            None,
        )
        assert other_client.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (
            0,
        )


def test_a_stage_that_an_older_version_left_in_a_session_is_replaced(
    pooled: str, open_sink: Open, other_client: psycopg.Connection
) -> None:
    other_client.execute(
        "CREATE TEMPORARY TABLE instep_stage (something int) ON COMMIT DELETE ROWS"
    )
    sink = begun(open_sink(declare(pooled)))
    for turn in range(4):
        apply(sink, [event(turn, "a", turn)])
    assert table(pooled) == [("a", "PRINTED", 3)]


@pytest.mark.parametrize("mode", ["direct", "session", "transaction", "statement"])
def test_a_pooler_is_recognised(
    mode: str, direct: str, postgres: Postgres, pgbouncer: PgBouncer
) -> None:
    pipeline = declare(direct)
    preparation.prepare(pipeline)
    to = inspection.inspect("contracts", pipeline)
    if mode == "direct":
        assert_pooled(to, direct, pooled=False)
    elif mode == "transaction":
        assert_pooled(to, pgbouncer.through(direct), pooled=True)
    else:
        with PgBouncer(postgres, mode) as pooler:  # type: ignore[arg-type]
            url = pooler.through(direct)
            if mode == "session":
                assert_pooled(to, url, pooled=True)
                return
            for attempt in (
                lambda: inspection.inspect("contracts", declare(url)),
                lambda: opened(to, url),
            ):
                with pytest.raises(
                    errors.SettingsError, match="pooler in statement mode"
                ) as refused:
                    attempt()
                assert "pool_mode = transaction" in refused.value.remedy


def opened(to: target.Target, url: str) -> Sink:
    return sinks.open_sink(
        msgspec.structs.replace(
            to, url=target.database_url(url).render_as_string(hide_password=False)
        )
    )


def assert_pooled(to: target.Target, url: str, *, pooled: bool) -> None:
    sink = opened(to, url)
    try:
        assert isinstance(sink.connection, PostgresConnection)
        assert sink.connection.is_pooled is pooled
        apply(begun(sink), [event(0, "a", 1)])
    finally:
        sink.close()
    assert table(url) == [("a", "PRINTED", 1)]


def test_a_pipeline_runs_through_a_pooler(
    pooled: str, topic: str, cluster: Cluster, runner: Callable[..., Runner], prove: Prove
) -> None:
    """Run init, run, status, parked release, reconcile, and read what vet reads."""
    run_sql(
        pooled,
        "CREATE TABLE contract_document (doc_no text PRIMARY KEY, print_status text,"
        " print_version bigint,"
        " printed_at timestamptz, CONSTRAINT known CHECK (print_status <> 'UNKNOWN'))",
    )
    pipeline = following(pooled, topic)
    for version, word in enumerate(("CREATED", "QUEUED", "PRINTED"), start=1):
        send(cluster, topic, *(sent(f"d{number}", version, word) for number in range(60)))
    send(cluster, topic, sent("odd", 1, "UNKNOWN"), (b"d0", b"{"))
    drained(runner(pipeline, once=True))
    assert table(pooled) == sorted((f"d{n}", "PRINTED", 3) for n in range(60))
    found = status.read(cluster, "contracts", pipeline)
    assert (found.lag_records, found.dead_letters, found.parked_documents, found.error) == (
        0,
        1,
        1,
        None,
    )
    run_sql(pooled, "ALTER TABLE contract_document DROP CONSTRAINT known")
    with MaintenanceSession("contracts", pipeline, "tester") as session:
        assert [line.verdict for line in release.release(session, "odd", execute=True)] == [
            "applied"
        ]
    run_sql(pooled, "UPDATE contract_document SET print_status = 'LOST' WHERE doc_no = 'd7'")
    report, _ = prove(pipeline, fix=repair.RepairRequest(execute=True))
    assert report.different == 1
    assert run_sql(
        pooled, "SELECT count(*) FROM contract_document WHERE print_status = 'PRINTED'"
    ) == [(60,)]
    assert facts.read("contracts", pipeline).lacking_rights == []
