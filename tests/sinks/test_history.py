"""Test the history in each database: every value is kept exactly, or the whole batch is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

import pytest

from instep import errors
from instep.document import kinds
from instep.document.decoding import Event
from instep.document.guard import Verdict
from instep.document.identity import Id
from instep.sinks.journal_entries import RecordPosition
from instep.sinks.sink import Sink
from tests.support.databases import declare, run_sql

Open = Callable[..., Sink]

COMMITTED = datetime(2026, 11, 15, 8, 30, 0, 5, UTC)
ODD = (
    "",
    " ",
    "PRINTED",
    "tab\there",
    "line\nend",
    "return\r",
    "back\\slash",
    "\\N",
    "\\",
    "quote'",
    'double"',
    "per%cent",
    "NULL",
    "🖨 gedruckt",
    "ünïcode",
    "\u2028",
    "\x1a",
    "a" * 255,
    "'); DROP TABLE instep_history; --",
)
TIMES_US = (
    None,
    0,
    1,
    -1,
    1_790_000_000_123_456,
    1_790_000_000_000_000,
    -62_000_000_000_000_000,
    250_000_000_000_000_000,
)
ORDERS = (None, 0, -1, 7, 2**63 - 1, -(2**63))


def events(count: int) -> list[Event]:
    return [
        Event(
            n,
            f"{ODD[n % len(ODD)][:200]}-{n}",
            ORDERS[n % len(ORDERS)],
            TIMES_US[n % len(TIMES_US)],
            None if n % 5 == 0 else ODD[n % len(ODD)],
            (),
        )
        for n in range(count)
    ]


def keep(
    sink: Sink, entries: list[Event], partition: int = 3, *, skip_existing: bool = False
) -> list[Verdict]:
    every = list(Verdict)
    verdicts = [every[event.offset % len(every)] for event in entries]
    with sink.transaction():
        sink.journal.add_history(
            partition, entries, verdicts, COMMITTED, skip_existing=skip_existing
        )
    return verdicts


@pytest.mark.parametrize("count", [3, 400])
def test_every_value_is_read_back_unchanged(count: int, database_url: str, open_sink: Open) -> None:
    sink = open_sink(declare(database_url), name="50 %% 'of' contracts")
    entries = events(count)
    verdicts = keep(sink, entries)
    for event, verdict in zip(entries, verdicts, strict=True):
        [lived] = sink.journal.history(str(event.document))
        assert (lived.position, lived.status, lived.order) == (
            RecordPosition("print-status", 3, event.offset),
            event.status,
            event.order,
        )
        assert lived.event_time == (None if event.at_us is None else kinds.from_micros(event.at_us))
        assert (lived.verdict, lived.committed_at) == (verdict.value, COMMITTED)
    assert run_sql(database_url, "SELECT count(*) FROM instep_history") == [(count,)]


def test_ids_of_every_type_are_kept_as_text(database_url: str, open_sink: Open) -> None:
    sink = open_sink(declare(database_url))
    ids: list[Id] = [7, -(2**63), UUID(int=7)]
    keep(sink, [Event(n, document, n, None, "NEW", ()) for n, document in enumerate(ids)])
    stored = run_sql(database_url, "SELECT document FROM instep_history ORDER BY order_value")
    assert stored == [(str(document),) for document in ids]


def test_the_ledger_offset_of_a_later_event_is_kept(database_url: str, open_sink: Open) -> None:
    sink = open_sink(declare(database_url))
    keep(sink, events(1))
    for partition, ledger_offset in ((4, 2**63 - 1), (5, 0)):
        with sink.transaction():
            sink.journal.add_history(
                partition,
                events(1),
                [Verdict.APPLIED],
                COMMITTED,
                skip_existing=True,
                ledger_offset=ledger_offset,
            )
    stored = run_sql(database_url, "SELECT ledger_offset FROM instep_history")
    assert {row[0] for row in stored} == {None, 2**63 - 1, 0}


@pytest.mark.parametrize("count", [3, 400])
def test_an_existing_position_is_refused_or_skipped(
    count: int, database_url: str, open_sink: Open
) -> None:
    sink = open_sink(declare(database_url))
    entries = events(count)
    keep(sink, entries[: count // 2])
    with pytest.raises(errors.InstepError):
        keep(sink, entries)
    assert run_sql(database_url, "SELECT count(*) FROM instep_history") == [(count // 2,)]
    keep(sink, entries, skip_existing=True)
    assert run_sql(database_url, "SELECT count(*) FROM instep_history") == [(count,)]


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_a_row_that_does_not_fit_is_refused_and_never_truncated(
    kind: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database(kind)
    sink = open_sink(declare(url))
    with pytest.raises(errors.RowRefused):
        keep(sink, [*events(400), Event(400, "d", 1, 1, "x" * 256, ())])
    assert run_sql(url, "SELECT count(*) FROM instep_history") == [(0,)]


@pytest.mark.parametrize("allowed", [True, False])
def test_mariadb_uses_load_data_where_it_is_allowed(
    allowed: bool,
    new_database: Callable[[str], str],
    open_sink: Open,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from instep.sinks import mysql

    sink = open_sink(declare(new_database("mariadb")))
    loaded: list[str] = []
    load = mysql.LoadingConnection.load

    def noted(self: mysql.LoadingConnection, statement: str, rows: bytes, size: int) -> bytes:
        loaded.append(statement)
        return load(self, statement if allowed else statement.replace("LOCAL", ""), rows, size)

    monkeypatch.setattr(mysql.LoadingConnection, "load", noted)
    if not allowed:
        # the server's errors about its own files
        monkeypatch.setattr(mysql, "LOAD_REFUSED", (1085, 1290, 29, 13))
    keep(sink, events(400))
    keep(sink, events(400), partition=4)
    assert len(loaded) == (2 if allowed else 1)


def test_a_server_cannot_read_local_files(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("mariadb")
    sink = open_sink(declare(url))
    with pytest.raises(RuntimeError, match="LOAD_LOCAL"):
        sink.connection.execute(f"LOAD DATA LOCAL INFILE '{__file__}' INTO TABLE instep_history")
    assert run_sql(url, "SELECT count(*) FROM instep_history") == [(0,)]
