"""Test `instep load` on real databases: the guard, bad rows, changed sources, continuing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from instep import errors
from instep.operate import load
from instep.operate.row_source import RowSource
from instep.pipeline.apply.load import LoadTransaction
from instep.sinks.sink import Sink
from tests.support.databases import declare, run_sql
from tests.support.loading import counts, history, loaded, row, write_lines
from tests.support.transactions import Open, apply, begun, event, parked, record, table

NewDatabase = Callable[[str], str]


def test_rows_pass_the_guard_and_the_journal(
    database_url: str, open_sink: Open, tmp_path: Path
) -> None:
    pipeline = declare(database_url)
    sink = begun(open_sink(pipeline), 2)
    apply(sink, [event(0, "newer", 7), event(1, "same", 2), event(2, "older", 1)])
    apply(sink, [event(3, "gone", 4), record(4, "gone", None), record(5, "never", None)])
    file = write_lines(
        tmp_path / "source.jsonl",
        [
            row("new", 1),
            row("newer", 6),
            row("same", 2),
            "",
            row("older", 2),
            row("gone", 4),
            row("never", 3),
            row("twice", 1),
            row("twice", 2),
            row("long", 1, "S" * 300),
            {"doc_id": "bad", "version": 1},
            "{",
            {"doc_id": "new", "$delete": True},
        ],
    )
    planned = loaded(pipeline, file, execute=False)
    assert history(database_url) == []
    report = loaded(pipeline, file)
    expected = {
        "records": 12,
        "applied": 4,
        "stale": 2,
        "repeated": 2,
        "ignored": 1,
        "parked": 1,
        "dead": 2,
    }
    assert counts(report) == expected
    assert counts(planned) == expected
    assert table(database_url) == [
        ("new", "LOADED", 1),
        ("newer", "PRINTED", 7),
        ("older", "LOADED", 2),
        ("same", "PRINTED", 2),
        ("twice", "LOADED", 2),
    ]
    assert history(database_url) == [
        ("gone", 6, "repeated"),
        ("long", 10, "parked"),
        ("never", 7, "stale"),
        ("new", 1, "applied"),
        ("new", 13, "ignored"),
        ("newer", 2, "stale"),
        ("older", 5, "applied"),
        ("same", 3, "repeated"),
        ("twice", 8, "applied"),
        ("twice", 9, "applied"),
    ]
    assert parked(database_url) == [(10, "long", "TEXT_TOO_LONG")]
    assert [(one.row, one.reason) for one in report.problems] == [
        (10, "TEXT_TOO_LONG"),
        (11, "FIELD_MISSING"),
        (12, "ROW_UNREADABLE"),
    ]
    assert sink.ledger.positions()[0].next_offset == 6
    again = loaded(pipeline, file)
    assert (again.start, counts(again), again.rows) == (load.LoadStart.NOTHING_LEFT, expected, 0)


def test_rows_that_are_late_do_not_keep_tasks_waiting_for_a_whole_batch(
    database_url: str, open_sink: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Load batches with no late row, with some, and with late rows alone."""
    pipeline = declare(database_url)
    sink = begun(open_sink(pipeline))
    apply(sink, [event(n, f"d{n:02}", 1 + n % 2) for n in range(15, 40)])
    file = write_lines(tmp_path / "source.jsonl", [row(f"d{n:02}", 1) for n in range(60)])
    calls: list[int] = []
    write = LoadTransaction.write

    def counted(self: LoadTransaction, *arguments: Any, **options: Any) -> Any:
        calls.append(len(self.part.records))
        return write(self, *arguments, **options)

    monkeypatch.setattr(LoadTransaction, "write", counted)
    report = loaded(pipeline, file, batch_rows=10)
    assert calls == []  # of the sequence in which tasks wait for everything
    assert counts(report) == {"records": 60, "applied": 35, "stale": 13, "repeated": 12}
    assert len(table(database_url)) == 60


def test_a_load_pauses_while_events_flow(
    database_url: str, open_sink: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = declare(database_url)
    sink = begun(open_sink(pipeline))
    file = write_lines(tmp_path / "source.jsonl", [row(f"d{n:02}", 1) for n in range(40)])
    monkeypatch.setattr(load, "LOCKED_SHARE", 0.001)
    monkeypatch.setattr(load, "PAUSE_MAX_S", 0.01)
    pauses: list[bool] = []
    pause_s, apply_rows = load._Loader._pause_s, LoadTransaction.apply_rows

    def recorded(self: Any, *arguments: Any) -> float:
        pauses.append(pause_s(self, *arguments) > 0)
        return 0.0

    def with_events(self: LoadTransaction, to: Sink) -> Any:
        number = len(pauses)
        if number in (1, 3):
            apply(sink, [event(number, "live", number)])
        return apply_rows(self, to)

    monkeypatch.setattr(load._Loader, "_pause_s", recorded)
    monkeypatch.setattr(LoadTransaction, "apply_rows", with_events)
    loaded(pipeline, file, batch_rows=10)
    assert pauses == [False, True, False, True]


def test_a_load_continues_where_it_was_interrupted(
    database_url: str, open_sink: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = declare(database_url)
    begun(open_sink(pipeline))
    file = write_lines(tmp_path / "source.jsonl", [row(f"d{n:02}", 1) for n in range(20)])
    interrupt_after(3, monkeypatch)
    with pytest.raises(errors.SparkGone):
        loaded(pipeline, file, batch_rows=4)
    assert len(history(database_url)) == 12
    planned = loaded(pipeline, file, execute=False)
    assert (planned.start, planned.first_row, planned.rows) == (load.LoadStart.CONTINUED, 13, 8)
    report = loaded(pipeline, file, batch_rows=4)
    assert (report.start, report.first_row, report.rows) == (load.LoadStart.CONTINUED, 13, 8)
    assert counts(report) == {"records": 20, "applied": 20}
    assert [(number, verdict) for _, number, verdict in history(database_url)] == [
        (number, "applied") for number in range(1, 21)
    ]


def interrupt_after(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next load fail after some batches."""
    applied: list[None] = []
    apply_rows = LoadTransaction.apply_rows

    def fail(self: Any, sink: Any) -> Any:
        if len(applied) == batches:
            applied.append(None)
            raise errors.SparkGone("the test interrupts the load")
        applied.append(None)
        return apply_rows(self, sink)

    monkeypatch.setattr(LoadTransaction, "apply_rows", fail)


def test_a_changed_source_does_not_continue(
    new_database: NewDatabase, open_sink: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database("sqlite")
    pipeline = declare(url)
    begun(open_sink(pipeline))
    file = write_lines(tmp_path / "source.jsonl", [row(f"d{n}", 1) for n in range(8)])
    interrupt_after(1, monkeypatch)
    with pytest.raises(errors.SparkGone):
        loaded(pipeline, file, batch_rows=4)
    write_lines(file, [row(f"d{n}", 2) for n in range(8)])
    for execute in (False, True):
        with pytest.raises(errors.SettingsError, match="the source has changed") as refused:
            loaded(pipeline, file, execute=execute)
        assert "--restart" in refused.value.remedy
    report = loaded(pipeline, file, restart=True)
    assert (report.start, report.load, counts(report)) == (
        load.LoadStart.RESTARTED,
        2,
        {"records": 8, "applied": 8},
    )
    assert run_sql(url, "SELECT number, state FROM instep_loads ORDER BY number") == [
        (1, "replaced"),
        (2, "complete"),
    ]
    write_lines(file, [row(f"d{n}", 3) for n in range(8)])
    report = loaded(pipeline, file)  # the last one is complete: this is another load
    assert (report.start, report.load) == (load.LoadStart.NEW, 3)


def test_a_file_that_changes_during_the_load_is_not_complete(
    new_database: NewDatabase, open_sink: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database("sqlite")
    pipeline = declare(url)
    begun(open_sink(pipeline))
    file = write_lines(tmp_path / "source.jsonl", [row(f"d{n}", 1) for n in range(8)])
    apply_rows = LoadTransaction.apply_rows

    def change(self: Any, sink: Any) -> Any:
        write_lines(file, [row("x", 1)])
        return apply_rows(self, sink)

    monkeypatch.setattr(LoadTransaction, "apply_rows", change)
    with pytest.raises(errors.SettingsError, match="was changed while it was loaded"):
        loaded(pipeline, file)
    assert run_sql(url, "SELECT state FROM instep_loads") == [("loading",)]


def test_rows_of_a_query_and_of_a_table_continue_at_their_key(
    database_url: str, open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one document, ids that a collation treats as equal, and rows without an id."""
    pipeline = declare(
        database_url,
        event={"document": "doc_id", "status": "status", "order": "version"},
        columns={"print_status": "status", "print_version": "version"},
    )
    begun(open_sink(pipeline))
    monkeypatch.setattr("instep.sinks.source_query.PAGE_ROWS", 3)
    ids = [*(f"d{n}" for n in range(10)), "D3", "d3", "d3", "d3", "é", "e"]
    run_sql(
        database_url,
        "CREATE TABLE prints (doc_id VARCHAR(20), status VARCHAR(20), version BIGINT)",
        *(f"INSERT INTO prints VALUES ('{id_}', 'S{n}', {n})" for n, id_ in enumerate(ids)),
        "INSERT INTO prints VALUES (NULL, 'LOST', 1)",
    )
    query = "SELECT doc_id, status, version FROM prints WHERE status NOT LIKE '%:%';"
    expected = sorted(
        ("d3", "S13", 13) if id_ == "d3" else (id_, f"S{n}", n)
        for n, id_ in enumerate(ids)
        if n not in (11, 12, 13)
    )
    for source in (
        RowSource(url=database_url, query=query),
        RowSource(url=database_url, table="prints"),
    ):
        with monkeypatch.context() as patched:
            interrupt_after(3, patched)
            with pytest.raises(errors.SparkGone):
                loaded(pipeline, source, batch_rows=2)
        report = loaded(pipeline, source, batch_rows=2)
        assert report.start is load.LoadStart.CONTINUED
        assert sorted(table(database_url)) == expected
        assert (report.dead, [one.reason for one in report.problems]) == (1, ["KEY_MISSING"])
        run_sql(database_url, "DELETE FROM contract_document", "DELETE FROM instep_history")
    with pytest.raises(errors.SettingsError, match="no column 'id'"):
        loaded(pipeline, RowSource(url=database_url, query=query, key="id"))


def test_without_an_order_only_untouched_documents_are_loaded(
    database_url: str, open_sink: Open, tmp_path: Path
) -> None:
    pipeline = declare(
        database_url,
        event={"document": "doc_id", "status": "status"},
        columns={
            "print_status": "status",
            "print_version": {"field": "version", "type": "bigint"},
        },
    )
    sink = begun(open_sink(pipeline))
    apply(sink, [event(0, "present", 1), event(1, "gone", 1), record(2, "gone", None)])
    apply(sink, [event(3, "parked", 1, "S" * 300)])
    run_sql(database_url, "INSERT INTO contract_document (doc_no) VALUES ('empty')")
    names = ("present", "gone", "parked", "empty", "new", "new")
    file = write_lines(tmp_path / "x.jsonl", [row(name, n) for n, name in enumerate(names)])
    planned = loaded(pipeline, file, execute=False)
    report = loaded(pipeline, file)
    assert counts(report) == counts(planned) == {"records": 6, "applied": 2, "stale": 4}
    assert table(database_url) == [
        ("empty", "LOADED", 3),
        ("new", "LOADED", 4),
        ("present", "PRINTED", 1),
    ]
    assert [note for note in report.notes if "no order" in note]


def test_an_event_with_the_same_time_wins(
    database_url: str, open_sink: Open, tmp_path: Path
) -> None:
    pipeline = declare(
        database_url,
        event={"document": "doc_id", "status": "status", "order": "updated_at", "at": "updated_at"},
        columns={"print_status": "status", "printed_at": "updated_at"},
    )
    sink = begun(open_sink(pipeline))
    apply(sink, [event(0, "a", 1)])
    file = write_lines(tmp_path / "x.jsonl", [row("a", 1), row("b", 1)])
    assert counts(loaded(pipeline, file)) == {"records": 2, "applied": 1, "repeated": 1}
    apply(sink, [event(1, "b", 1)])
    found = run_sql(database_url, "SELECT doc_no, print_status FROM contract_document ORDER BY 1")
    assert found == [("a", "PRINTED"), ("b", "PRINTED")]


def test_only_refused_rows_are_parked(database_url: str, open_sink: Open, tmp_path: Path) -> None:
    """A constraint of the table, which only the table knows."""
    pipeline = declare(database_url)
    begun(open_sink(pipeline))
    run_sql(database_url, "CREATE TABLE allowed (version BIGINT PRIMARY KEY)")
    if database_url.startswith("sqlite"):
        run_sql(
            database_url,
            "CREATE TRIGGER no_nine BEFORE INSERT ON contract_document"
            " WHEN NEW.print_version = 9 BEGIN SELECT RAISE(ABORT, 'no nine'); END",
        )
    else:
        run_sql(
            database_url,
            "ALTER TABLE contract_document ADD CONSTRAINT no_nine CHECK (print_version <> 9)",
        )
    file = write_lines(tmp_path / "x.jsonl", [row(f"d{n:02}", n) for n in range(20)])
    report = loaded(pipeline, file, batch_rows=7)
    assert counts(report) == {"records": 20, "applied": 19, "parked": 1}
    assert parked(database_url) == [(10, "d09", "REFUSED_BY_TARGET")]
    assert len(table(database_url)) == 19


def test_a_pipeline_that_never_ran_is_not_loaded(
    new_database: NewDatabase, open_sink: Open, tmp_path: Path
) -> None:
    pipeline = declare(new_database("sqlite"))
    open_sink(pipeline)
    file = write_lines(tmp_path / "x.jsonl", [row("a", 1)])
    for execute in (False, True):
        with pytest.raises(errors.SettingsError, match="has never run") as refused:
            loaded(pipeline, file, execute=execute)
        assert "instep run" in refused.value.remedy


def test_csv_and_parquet_files_are_loaded(
    new_database: NewDatabase, open_sink: Open, tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    url = new_database("sqlite")
    pipeline = declare(url)
    begun(open_sink(pipeline))
    csv = tmp_path / "a.csv"
    csv.write_text(
        "no,status,version,updated_at\na,S,1,2026-09-21T14:13:20Z\nb,S\n\nc,S,x,\n",
        encoding="utf-8",
    )
    report = loaded(pipeline, RowSource(file=str(csv), key="no"))
    assert counts(report) == {"records": 3, "dead": 3}  # the event's own field is doc_id
    csv.write_text(csv.read_text(encoding="utf-8").replace("no,", "doc_id,"), encoding="utf-8")
    report = loaded(pipeline, csv)
    assert counts(report) == {"records": 3, "applied": 1, "dead": 2}
    assert [(one.row, one.reason) for one in report.problems] == [
        (3, "ROW_UNREADABLE"),
        (5, "WRONG_TYPE"),
    ]
    rows = {
        "doc_id": ["p", "q"],
        "status": ["S", "S"],
        "version": [1, 2],
        "updated_at": pa.array([1_790_000_000_000_000_000, 0], pa.timestamp("ns", "UTC")),
    }
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table(rows), file)
    assert counts(loaded(pipeline, file)) == {"records": 2, "applied": 2}
    assert [document for document, *_ in table(url)] == ["a", "p", "q"]
    file.write_bytes(b"PAR")
    with pytest.raises(errors.SettingsError, match="not a Parquet file"):
        loaded(pipeline, file, restart=True)


def test_a_pace_never_makes_up_for_a_pause() -> None:
    """Let one batch take two seconds by a clock of the test."""
    now, begun_at = 0.0, list[float]()

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    pace = load.Pace(100, clock=lambda: now, sleep=sleep)
    for number in range(20):
        pace.wait(20)
        begun_at.append(now)
        now += 2.0 if number == 9 else 0.01
    for first in begun_at:
        within = [at for at in begun_at if first <= at < first + 0.999]
        assert len(within) * 20 <= 100, first
    assert begun_at[-1] == pytest.approx(19 * 0.2 + 1.8)
    free = load.Pace(None, clock=lambda: now, sleep=sleep)
    before = now
    free.wait(1_000_000)
    assert now == before


def test_a_load_with_a_rate_is_no_faster(
    new_database: NewDatabase, open_sink: Open, tmp_path: Path
) -> None:
    """Compare the rows with the time at each step: a busy machine can only be slower."""
    pipeline = declare(new_database("sqlite"))
    begun(open_sink(pipeline))
    file = write_lines(tmp_path / "source.jsonl", [row(f"d{n}", 1) for n in range(300)])
    began, steps = time.monotonic(), list[tuple[float, int]]()

    def note(what: str, done: int, _total: int, _unit: str) -> None:
        if what == "loading":
            steps.append((time.monotonic() - began, done))

    request = load.LoadRequest(RowSource(file=str(file)), rate=200, batch_rows=1_000)
    report = load.run("contracts", pipeline, request, execute=True, progress=note)
    assert report.totals["applied"] == 300
    assert [done for _, done in steps] == [40, 80, 120, 160, 200, 240, 280, 300]
    assert all(done <= 200 * elapsed + 40 for elapsed, done in steps), steps
