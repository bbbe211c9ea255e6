"""Test that parked documents are applied once their row or parent row exists, on every database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from instep.document.reasons import Reason
from instep.kafka.connection import Cluster
from instep.pipeline import retry_policy
from instep.pipeline.apply import maintenance
from instep.pipeline.apply import release as releasing
from instep.pipeline.progress import Progress
from instep.pipeline.retries import Retries, Schedule
from instep.pipeline.runner import Runner
from instep.sinks.journal_entries import RecordPosition, Selection
from tests.support.databases import declare, run_sql
from tests.support.pipelines import drained, following
from tests.support.quarantine import session
from tests.support.runs import event as published
from tests.support.runs import send
from tests.support.tables import BATCHES
from tests.support.transactions import KNOWN_DOCUMENTS, Open, apply, begun, event, parked, table
from tests.support.waiting import wait_until

COLUMNS = {"print_status": "status", "print_version": "version", "batch": "batch"}


def now(later_s: float = 0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=later_s)


@contextmanager
def retrying(url: str, **changes: Any) -> Iterator[Retries]:
    """Open the retries of a pipeline without their thread: the test controls the clock."""
    pipeline = declare(url, **changes)
    policy = retry_policy.of_pipeline(pipeline)[-1]
    opened = Retries("contracts", pipeline, policy, lambda: 1, Progress())
    try:
        yield opened
    finally:
        opened._close()


def insert(url: str, *documents: str) -> None:
    """Insert rows as the application does."""
    run_sql(
        url,
        *(
            f"INSERT INTO contract_document (doc_no, owner) VALUES ('{name}', 'Ann')"
            for name in documents
        ),
    )


def add_batch(url: str, name: str) -> None:
    run_sql(url, f"INSERT INTO batch VALUES ('{name}')")


def decided(url: str) -> list[Any]:
    return run_sql(
        url,
        "SELECT document, action, outcome, actor FROM instep_decisions ORDER BY document, outcome",
    )


def test_a_schedule_doubles_its_delays_up_to_a_minute() -> None:
    start, place = datetime(2026, 11, 1, tzinfo=UTC), RecordPosition("t", 0, 7)
    schedule = Schedule(1, 60)
    schedule.add("a", place, start)
    tries, at = [], start
    while at < start + timedelta(seconds=250):
        if schedule.due(at, 10):
            tries.append((at - start).total_seconds())
            schedule.refused("a", place, at)
            schedule.add("a", place, at)  # it is known already
        at += timedelta(seconds=1)
    assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]


def test_a_schedule_starts_with_what_is_longest_overdue() -> None:
    start = datetime(2026, 11, 1, tzinfo=UTC)
    schedule = Schedule(1, 60)
    for number, name in enumerate("cab"):
        schedule.add(name, RecordPosition("t", 0, number), start + timedelta(seconds=number))
    assert list(schedule.due(start + timedelta(seconds=1), 10)) == ["c", "a"]
    schedule.postpone("c", start + timedelta(seconds=5))
    schedule.forget("a")
    assert list(schedule.due(start + timedelta(seconds=6), 1)) == ["b"]


def test_a_document_is_applied_once_its_row_is_inserted(database_url: str, open_sink: Open) -> None:
    run_sql(database_url, KNOWN_DOCUMENTS(database_url))
    sink = begun(open_sink(declare(database_url, missing="park")), 2)
    apply(sink, [event(0, "a", 1, "CREATED"), event(1, "b", 1), event(2, "a", 2, "QUEUED")])
    apply(sink, [event(0, "c", 1)], partition=1)
    insert(database_url, "long")
    apply(sink, [event(3, "long", 1, "x" * 300)])
    with retrying(database_url, missing="park") as trying:
        first = now()
        assert trying.round(first) == 3, "a document that is parked for another reason was tried"
        assert trying.round(first) == 0, "a refused document was tried again at once"
        insert(database_url, "a", "c")
        # the flow continues, and these events wait behind
        apply(sink, [event(4, "a", 1, "LATE"), event(5, "long", 2)])
        assert trying.round(now(2)) == 3
    assert table(database_url) == [("a", "QUEUED", 2), ("c", "PRINTED", 1), ("long", None, None)]
    assert [(row[1], row[2]) for row in parked(database_url)] == [
        ("b", "DOCUMENT_MISSING"),
        ("long", "TEXT_TOO_LONG"),
        ("long", "WAITS_BEHIND"),
    ]
    assert decided(database_url) == [
        ("a", "released", "applied", "instep"),
        ("a", "released", "applied", "instep"),
        ("a", "released", "stale", "instep"),
        ("c", "released", "applied", "instep"),
    ]
    with session(database_url, missing="park") as at:
        assert [(one.position.offset, one.verdict) for one in at.sink.journal.history("a")] == [
            (0, "released"),
            (2, "released"),
            (4, "stale"),
        ]


def test_a_document_is_applied_once_its_parent_is_inserted(
    database_url: str, open_sink: Open
) -> None:
    run_sql(database_url, *BATCHES)
    sink = begun(open_sink(declare(database_url, columns=COLUMNS)))
    first = [
        event(0, "a", 1, batch="new"),
        event(1, "a", 2, batch="next"),
        event(2, "b", 1, batch="known"),
        event(3, "a", 3),
    ]
    apply(sink, [*first, event(4, "c", 1, batch="new")])
    assert parked(database_url) == [
        (0, "a", "PARENT_MISSING"),
        (1, "a", "WAITS_BEHIND"),
        (3, "a", "WAITS_BEHIND"),
        (4, "c", "PARENT_MISSING"),
    ]
    with retrying(database_url, columns=COLUMNS) as trying:
        assert trying.round(now()) == 2
        add_batch(database_url, "new")
        assert trying.round(now(2)) == 2
        assert table(database_url, "doc_no, print_version, batch") == [
            ("a", 1, "new"),
            ("b", 1, "known"),
            ("c", 1, "new"),
        ]
        assert parked(database_url) == [(1, "a", "PARENT_MISSING"), (3, "a", "WAITS_BEHIND")]
        add_batch(database_url, "next")
        assert trying.round(now(10)) == 1
    assert table(database_url, "doc_no, print_version, batch")[0] == ("a", 3, "next")
    assert parked(database_url) == []


def test_retries_end_after_retry_parked_s(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("sqlite")
    run_sql(url, KNOWN_DOCUMENTS(url))
    sink = begun(open_sink(declare(url, missing="park")))
    apply(sink, [event(0, "a", 1), event(1, "b", 1)])
    with retrying(url, missing="park", retry_parked_s=60) as trying:
        assert trying.round(now(59)) == 2
        insert(url, "a")
        assert trying.round(now(61)) == 0
    with retrying(url, missing="park", retry_parked_s=60) as started_later:
        assert started_later.round(now(61)) == 0
    assert [row[1] for row in parked(url)] == ["a", "b"]
    with session(url, missing="park", retry_parked_s=60) as at:
        [head, _] = at.sink.journal.parked_heads(Selection())
    pipeline = declare(url, missing="park", retry_parked_s=60)
    until = head.since + timedelta(seconds=60)
    late = retry_policy.outlook(pipeline, head.reason, head.parked, now())
    assert late.retried_until == until
    nothing = retry_policy.RetryOutlook()
    over = until + timedelta(seconds=1)
    assert retry_policy.outlook(pipeline, head.reason, head.parked, over) == nothing
    assert retry_policy.outlook(pipeline, Reason.TEXT_TOO_LONG, head.parked, now()) == nothing


def test_zero_turns_retries_off() -> None:
    for seconds, policies in ((0, 0), (1, 1)):
        pipeline = declare("sqlite:///contracts.db", retry_parked_s=seconds)
        assert len(retry_policy.of_pipeline(pipeline)) == policies


def test_a_document_parked_for_another_reason_is_left_to_an_operator(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("sqlite")
    run_sql(url, KNOWN_DOCUMENTS(url))
    sink = begun(open_sink(declare(url, missing="park", transitions={"NEW": ["DONE"]})))
    apply(sink, [event(0, "a", 1, "NEW")])
    run_sql(
        url,
        "INSERT INTO contract_document (doc_no, owner, print_status) VALUES ('a', 'Ann', 'DONE')",
    )
    with retrying(url, missing="park", transitions={"NEW": ["DONE"]}) as trying:
        assert trying.round(now()) == 1
        assert parked(url) == [(0, "a", "TRANSITION_NOT_ALLOWED")]
        assert trying.round(now(100)) == 0


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb", "mysql"])
def test_a_retry_that_dies_before_its_commit_is_repeated(
    kind: str, new_database: Callable[[str], str], open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_database(kind)
    run_sql(url, *BATCHES)
    sink = begun(open_sink(declare(url, columns=COLUMNS)))
    apply(sink, [event(0, "a", 1, batch="new"), event(1, "a", 2, batch="new")])
    add_batch(url, "new")
    with retrying(url, columns=COLUMNS) as trying:
        with monkeypatch.context() as dying:
            # the server rolls back what is open
            dying.setattr(trying._opened().sink.connection, "commit", trying._opened().sink.close)
            dying.setattr(releasing, "release", _one_try(releasing.release))
            with pytest.raises(Died):
                trying.round(now())
        trying._close()
        assert (table(url), len(parked(url)), decided(url)) == ([], 2, [])
        assert trying.round(now(2)) == 1
    assert (table(url), parked(url)) == ([("a", "PRINTED", 2)], [])
    assert len(decided(url)) == 2


class Died(Exception):
    """The simulated death of the process."""


def _one_try(release: Callable[..., Any]) -> Callable[..., Any]:
    def dies(*arguments: Any, **options: Any) -> None:
        release(*arguments, **options)
        raise Died

    return dies


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_a_retry_does_not_wait_for_a_task(
    kind: str, new_database: Callable[[str], str], open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the release give up while a task holds one partition's ledger row.

    It locks no other partition's row meanwhile.
    """
    monkeypatch.setattr(maintenance, "TRIES_MAX", 2)
    url = new_database(kind)
    run_sql(url, KNOWN_DOCUMENTS(url))
    sink = begun(open_sink(declare(url, missing="park")), 2)
    apply(sink, [event(0, "a", 1)])
    insert(url, "a")
    with retrying(url, missing="park") as trying:
        with sink.transaction():
            sink.lock([1])
            assert trying.round(now()) == 1
            assert len(parked(url)) == 1
        assert trying.round(now(2)) == 1
    assert parked(url) == []


def test_a_deferred_foreign_key_is_retried_too(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("sqlite")
    run_sql(url, *BATCHES[:2], BATCHES[2].replace("(id))", "(id) DEFERRABLE INITIALLY DEFERRED)"))
    sink = begun(open_sink(declare(url, columns=COLUMNS)))
    apply(sink, [event(0, "a", 1, batch="new"), event(1, "b", 1, batch="new")])
    with retrying(url, columns=COLUMNS) as trying:
        assert trying.round(now()) == 2
        assert [row[2] for row in parked(url)] == ["PARENT_MISSING"] * 2
        add_batch(url, "new")
        assert trying.round(now(2)) == 2
    assert (len(table(url)), parked(url)) == (2, [])


def test_a_running_pipeline_retries_by_itself(
    new_database: Callable[[str], str], topic: str, cluster: Cluster, runner: Callable[..., Runner]
) -> None:
    url = new_database("postgres")
    run_sql(url, KNOWN_DOCUMENTS(url))
    insert(url, "b")
    pipeline = following(url, topic, missing="park")
    run = runner(pipeline)
    send(cluster, topic, published("a", 1, "CREATED"), published("a", 2), published("b", 1))
    wait_until(lambda: len(parked(url)) == 2, "both events of the document to wait")
    wait_until(
        lambda: ("b", "PRINTED", 1) in table(url),
        "the other document, in another partition, to be applied",
    )
    insert(url, "a")
    wait_until(
        lambda: table(url) == [("a", "PRINTED", 2), ("b", "PRINTED", 1)],
        "the document to be applied",
    )
    send(cluster, topic, published("c", 1))
    wait_until(lambda: len(parked(url)) == 1, "an event of another document to wait")
    run.stop(patience_s=60)
    insert(url, "c")
    drained(runner(pipeline, once=True))
    assert parked(url) == []
