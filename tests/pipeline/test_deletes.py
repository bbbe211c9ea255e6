"""Test how a delete affects a row: removed, cleared, ignored, or parked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from instep import errors, settings
from instep.document.guard import Verdict
from instep.sinks import inspection, preparation
from instep.sinks.sink import Sink
from tests.support.databases import declare, open_sink, run_sql
from tests.support.transactions import apply, begun, event, parked, record

__all__ = ["open_sink"]

Open = Callable[..., Sink]
COLUMNS = {"print_status": "status", "print_version": "version", "note": "note"}


def own_table(url: str) -> None:
    """Create the application's table, with columns that the pipeline does not write."""
    key = "doc_no VARCHAR(40) NOT NULL PRIMARY KEY"
    rest = "owner VARCHAR(20), print_status VARCHAR(20), print_version BIGINT, note VARCHAR(20)"
    run_sql(url, f"CREATE TABLE contract_document ({key}, {rest})")
    run_sql(url, "INSERT INTO contract_document (doc_no, owner) VALUES ('a', 'Ann'), ('b', 'Bob')")


def rows(url: str) -> list[Any]:
    return run_sql(
        url,
        "SELECT doc_no, owner, print_status, print_version, note FROM contract_document"
        " ORDER BY doc_no",
    )


LOG = [
    event(0, "a", 5, "PRINTED", note="n"),
    event(1, "b", 5, "PRINTED"),
    record(2, "a", None),
    record(3, "nobody", None),
]


@pytest.mark.parametrize("missing", ["ignore", "park"])
def test_rows_created_by_others_are_not_deleted_by_default(
    missing: settings.Missing, database_url: str, open_sink: Open
) -> None:
    own_table(database_url)
    sink = begun(open_sink(declare(database_url, missing=missing, columns=COLUMNS)))
    outcome = apply(sink, LOG)
    assert rows(database_url) == [("a", "Ann", "PRINTED", 5, "n"), ("b", "Bob", "PRINTED", 5, None)]
    if missing == "ignore":
        assert outcome.verdicts[Verdict.IGNORED] == 2
        apply(sink, [event(4, "a", 6, "AGAIN")])
        assert rows(database_url)[0][2] == "AGAIN"
    else:
        assert parked(database_url) == [(2, "a", "DELETE_NOT_ALLOWED")]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("status", [None, "WITHDRAWN"])
def test_clear_empties_the_columns_of_the_pipeline(
    database_url: str, open_sink: Open, ordered: bool, status: str | None
) -> None:
    own_table(database_url)
    changes: dict[str, Any] = (
        {} if ordered else {"event": {"document": "doc_id", "status": "status"}}
    )
    wanted = {"missing": "ignore", "deletes": "clear", "cleared_status": status, "columns": COLUMNS}
    sink = begun(open_sink(declare(database_url, **wanted, **changes)))
    assert apply(sink, LOG).verdicts[Verdict.APPLIED] == 3
    version = 5 if ordered else None  # the guard's value stays, so that late events stay late
    assert rows(database_url) == [
        ("a", "Ann", status, version, None),
        ("b", "Bob", "PRINTED", 5, None),
    ]
    apply(sink, [record(4, "b", None)])
    assert rows(database_url)[1] == ("b", "Bob", status, version, None)
    late = apply(sink, [event(5, "a", 4, "LATE"), event(6, "b", 6, "AGAIN")])
    assert late.verdicts[Verdict.STALE] == int(ordered)
    assert rows(database_url)[1] == ("b", "Bob", "AGAIN", 6, None)


def test_deletes_row_removes_the_row(database_url: str, open_sink: Open) -> None:
    own_table(database_url)
    sink = begun(open_sink(declare(database_url, missing="ignore", deletes="row", columns=COLUMNS)))
    apply(sink, LOG)
    assert [row[0] for row in rows(database_url)] == ["b"]


def test_a_column_that_cannot_be_emptied_is_named(new_database: Callable[[str], str]) -> None:
    url = new_database("sqlite")
    run_sql(
        url,
        "CREATE TABLE contract_document (doc_no VARCHAR(40) NOT NULL PRIMARY KEY,"
        " print_status TEXT NOT NULL)",
    )
    event_of = {"document": "doc_id", "status": "status"}
    pipeline = declare(
        url, missing="ignore", deletes="clear", columns={"print_status": "status"}, event=event_of
    )
    preparation.prepare(pipeline)
    with pytest.raises(errors.TargetUnfit, match="column 'print_status' does not allow null"):
        inspection.inspect("contracts", pipeline)
    sound = declare(
        url,
        missing="ignore",
        deletes="clear",
        cleared_status="GONE",
        columns={"print_status": "status"},
        event=event_of,
    )
    assert inspection.inspect("contracts", sound).rules.cleared == ("GONE",)
