"""Test since when documents have their status, on every database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from instep.document.due import StatusAge
from instep.sinks import status_ages
from instep.sinks.sink import Sink
from tests.support.databases import declare, run_sql
from tests.support.transactions import Open, apply, begun, event

START_MS = 1_790_000_000_000
START = datetime.fromtimestamp(START_MS / 1000, UTC)
DUE = {"QUEUED": "1h", "FAILED": "2h"}


def minutes(count: int) -> datetime:
    return START + timedelta(minutes=count)


def changed(offset: int, document: str, status: str, minute: int) -> Any:
    return event(offset, document, offset, status, updated_at=START_MS + minute * 60_000)


def ages(sink: Sink, *statuses: str) -> dict[str, datetime | None]:
    found = [age for page in status_ages.pages(sink, statuses or DUE) for age in page]
    assert sorted(found, key=lambda age: age.document) == sorted(
        status_ages.among(sink, statuses or DUE, ["a", "b", "c", "d", "e", "f", "old"]),
        key=lambda age: age.document,
    )
    return {age.document: age.since for age in found}


def test_the_time_is_that_of_the_first_event_with_the_status(
    database_url: str, open_sink: Open
) -> None:
    sink = begun(open_sink(declare(database_url, due=DUE)))
    apply(
        sink,
        [
            changed(0, "a", "QUEUED", 0),
            changed(1, "a", "QUEUED", 50),  # repeats the status
            changed(2, "b", "FAILED", 1),
            changed(3, "b", "QUEUED", 2),
            changed(4, "c", "QUEUED", 3),
            changed(5, "c", "PRINTED", 4),
            changed(6, "d", "queued", 5),  # another status, whatever the collation says
            changed(7, "e", "QUEUED", 9_999_999),  # the source's clock is years ahead
        ],
    )
    run_sql(
        database_url,
        "INSERT INTO contract_document (doc_no, print_status) VALUES ('old', 'QUEUED')",
        "INSERT INTO contract_document (doc_no, print_status) VALUES ('f', NULL)",
        "UPDATE contract_document SET print_status = 'FAILED' WHERE doc_no = 'c'",
    )
    now = status_ages.clock(sink)
    found = ages(sink)
    ahead = found.pop("e")
    assert ahead is not None
    assert abs(ahead - now) < timedelta(minutes=5)
    assert found == {
        "a": minutes(0),
        "b": minutes(2),
        "c": minutes(4),  # another program changed the status: the column has the last time
        "old": None,
    }
    assert ages(sink, "PRINTED") == {}
    apply(sink, [event(8, "a", 8, "QUEUED", updated_at=START_MS)])
    run_sql(database_url, "DELETE FROM instep_history WHERE document = 'a'")
    assert ages(sink)["a"] == minutes(0)


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb", "mysql"])
def test_without_a_history_the_column_has_the_time(
    kind: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    """The column is a number in seconds, and the key is composite."""
    pipeline = declare(
        new_database(kind),
        due=DUE,
        history=False,
        key=["tenant", "no"],
        key_type=["varchar(20)", "integer"],
        columns={
            "print_status": "status",
            "print_version": "version",
            "changed": {"field": "updated_at", "type": "bigint", "unit": "s"},
        },
    )
    sink = begun(open_sink(pipeline))
    apply(sink, [changed(0, "acme/7", "QUEUED", 0), changed(1, "acme/7", "QUEUED", 50)])
    [[age]] = list(status_ages.pages(sink, DUE))
    assert age == StatusAge("acme/7", "QUEUED", minutes(50))
    assert status_ages.among(sink, DUE, ["acme/7", "acme/8"]) == [age]
