"""Test sessions that only read: the right to read is enough, and nothing is changed."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from instep import errors, sinks
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.sinks import inspection
from instep.sinks.connection import READING, Access
from instep.sinks.journal_entries import Selection
from instep.sinks.sink import Sink
from tests.support.databases import declare, run_sql
from tests.support.transactions import Open, apply, begun, event, record

SLOW = {
    "postgresql": "SELECT pg_sleep(20)",
    "mariadb": "SELECT SLEEP(20)",
    "mysql": "SELECT SLEEP(20)",
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    " SELECT count(*) FROM n",
}


def prepared(open_sink: Open, url: str) -> Sink:
    """Return a sink with a row, a dead letter and a parked document."""
    sink = begun(open_sink(declare(url, transitions={"NEW": ["PRINTED"]})))
    apply(
        sink,
        [
            event(0, "a", 1, "NEW"),
            record(1, "b", b"{broken"),
            event(2, "c", 1, "PRINTED"),
            event(3, "c", 2, "NEW"),
        ],
    )
    return sink


@contextmanager
def reader(kind: str, url: str) -> Iterator[str]:
    """Yield a URL of the database for an account that may only read."""
    role, name = f"reader_{uuid.uuid4().hex[:8]}", url.rpartition("/")[2]
    place = url.partition("://")[2].rpartition("@")[2]
    if kind == "postgres":
        run_sql(
            url,
            f'REVOKE TEMPORARY ON DATABASE "{name}" FROM PUBLIC',
            f"CREATE ROLE {role} LOGIN PASSWORD 'x'",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
        )
        yield f"postgresql://{role}:x@{place}"
        run_sql(url, f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}", f"DROP ROLE {role}")
        return
    account = f"'{role}'@'127.0.0.1'"
    run_sql(
        url, f"CREATE USER {account} IDENTIFIED BY 'x'", f"GRANT SELECT ON {name}.* TO {account}"
    )
    yield f"{kind}://{role}:x@{place}"
    run_sql(url, f"DROP USER {account}")


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_the_right_to_read_is_enough(
    kind: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database(kind)
    prepared(open_sink, url)
    with reader(kind, url) as readers_url:
        pipeline = declare(readers_url, transitions={"NEW": ["PRINTED"]})
        with (
            MaintenanceSession("contracts", pipeline, "ann", access=READING) as session,
            session.read() as sink,
        ):
            assert sink.table.look_up(["a"])["a"]["print_status"] == "NEW"
            assert len(sink.journal.dead_letters(Selection())) == 1
            assert [head.document for head in sink.journal.parked_heads(Selection())] == ["c"]
            assert sink.ledger.positions()[0].next_offset == 4


def test_a_session_that_reads_changes_nothing(database_url: str, open_sink: Open) -> None:
    prepared(open_sink, database_url)
    pipeline = declare(database_url, transitions={"NEW": ["PRINTED"]})
    target = inspection.inspect("contracts", pipeline, READING)
    with closing(sinks.open_sink(target, READING)) as sink:
        with pytest.raises(errors.InstepError), sink.transaction():
            sink.connection.execute("DELETE FROM instep_parked")
        assert sink.journal.parked_count() == 1


def test_a_slow_statement_is_ended(database_url: str, open_sink: Open) -> None:
    prepared(open_sink, database_url)
    pipeline = declare(database_url, transitions={"NEW": ["PRINTED"]})
    access = Access(read_only=True, statement_s=0.5)
    target = inspection.inspect("contracts", pipeline, access)
    began_s = time.monotonic()
    with closing(sinks.open_sink(target, access)) as sink:
        # MySQL ends SLEEP without an error
        with suppress(errors.TooMuchAtOnce), sink.translated():
            sink.connection.select(SLOW[database_url.partition(":")[0]])
        assert time.monotonic() - began_s < 10
        assert sink.journal.parked_count() == 1


def test_a_file_in_a_read_only_folder_is_read_as_it_is(
    tmp_path: Path, open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read the state of now, also if another user writes to the file later."""
    url = f"sqlite:///{tmp_path}/contracts.db"
    prepared(open_sink, url).close()
    before = (tmp_path / "contracts.db").read_bytes()
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
    pipeline = declare(url, transitions={"NEW": ["PRINTED"]})
    target = inspection.inspect("contracts", pipeline, READING)
    with closing(sinks.open_sink(target, READING)) as sink:
        assert sink.journal.parked_count() == 1
        assert [file.name for file in tmp_path.iterdir()] == ["contracts.db"]
        assert (tmp_path / "contracts.db").read_bytes() == before
        run_sql(url, "DELETE FROM instep_parked")
        sink.connection.refresh()
        assert sink.journal.parked_count() == 0
