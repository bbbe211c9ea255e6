"""Test the one transaction on every real database, against the model of one event at a time."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from instep import errors, settings, sinks
from instep.document import guard
from instep.document.decoding import Decoder, Record
from instep.document.guard import Verdict
from instep.pipeline.apply.batch import ProbeEvent, Writer
from instep.pipeline.apply.fast import PESSIMISTIC_BATCHES
from instep.pipeline.apply.transaction import BatchTransaction
from instep.sinks import inspection, preparation
from instep.sinks.sink import Sink
from tests.support.databases import declare, has_uuid_type, open_sink, run_sql
from tests.support.guard_model import Model
from tests.support.transactions import (
    KNOWN_DOCUMENTS,
    WRITER,
    Crash,
    Open,
    apply,
    begun,
    event,
    is_blocked,
    log_holds_nothing,
    parked,
    record,
    table,
)
from tests.support.waiting import wait_until

__all__ = ["open_sink"]


def test_a_batch_writes_rows_history_and_ledger(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    outcome = apply(
        sink,
        [
            event(0, "a", 1, "CREATED"),
            event(1, "b", 1),
            event(2, "a", 2),
            record(3, "c", b"{"),
            event(5, "a", 1),
        ],
    )
    assert (
        outcome.records,
        outcome.dead,
        outcome.verdicts[Verdict.APPLIED],
        outcome.verdicts[Verdict.STALE],
    ) == (5, 1, 3, 1)
    assert table(database_url) == [("a", "PRINTED", 2), ("b", "PRINTED", 1)]
    quoted = "`offset`" if database_url.startswith("m") else '"offset"'
    history = run_sql(
        database_url,
        f"SELECT {quoted}, document, order_value, verdict FROM instep_history ORDER BY {quoted}",
    )
    assert history == [
        (0, "a", 1, "applied"),
        (1, "b", 1, "applied"),
        (2, "a", 2, "applied"),
        (5, "a", 1, "stale"),
    ]
    dead = run_sql(database_url, f"SELECT {quoted}, reason FROM instep_dead_letters")
    assert dead == [(3, "NOT_JSON")]
    assert sink.ledger.positions()[0].next_offset == 6
    assert sink.journal.dead_letter_count() == 1


ORDERS = {
    "by version": {
        "document": "doc_id",
        "status": "status",
        "order": "version",
        "at": "updated_at",
    },
    "by time": {
        "document": "doc_id",
        "status": "status",
        "order": "updated_at",
        "at": "updated_at",
    },
    "by place": {"document": "doc_id", "status": "status", "at": "updated_at"},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("trusting", [True, False])
def test_complete_events_in_any_order_equal_one_by_one(
    database_url: str, open_sink: Open, order: str, trusting: bool
) -> None:
    """Take the fast path: mix fresh, stale, repeated and deleted documents, against the model."""
    columns = {
        "print_status": "status",
        "printed_at": "updated_at",
        **({"print_version": "version"} if order == "by version" else {}),
    }
    sink = begun(open_sink(declare(database_url, event=ORDERS[order], columns=columns)))
    rules = guard.Rules(ordered=order != "by place", order_is_time=order == "by time")
    model = Model(rules, {}, {}, tuple(columns))
    decoder, dice, offset, expected = (
        Decoder(sink.target.mapping),
        random.Random(f"{order} {trusting}"),
        0,
        [],
    )
    for _ in range(18):
        batch = []
        for _ in range(dice.choice([1, 2, 3, 8])):
            name, version = dice.choice("abcdefgh"), dice.randrange(40)
            if dice.random() < 0.04:
                batch.append(record(offset, name, None))
            else:
                batch.append(
                    event(
                        offset, name, version, f"S{offset}", updated_at=1_790_000_000_000 + version
                    )
                )
            offset += 1
        sink.table.expect_late_rows(0 if trusting else 100)
        apply(sink, batch)
        expected += [(one.offset, model.apply(one).value) for one in decoder.decode_all(batch)[0]]
        rows = sorted((str(name), row["print_status"]) for name, row in model.rows.items())
        assert (
            run_sql(
                database_url, "SELECT doc_no, print_status FROM contract_document ORDER BY doc_no"
            )
            == rows
        )
    quoted = "`offset`" if database_url.startswith("m") else '"offset"'
    assert (
        run_sql(database_url, f"SELECT {quoted}, verdict FROM instep_history ORDER BY {quoted}")
        == expected
    )
    assert {verdict for _, verdict in expected} >= (
        {"applied", "stale"} if rules.ordered else {"applied"}
    )


def test_late_rows_are_read_only_after_a_late_event(
    database_url: str, open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = begun(open_sink(declare(database_url)))
    looks: list[int] = []
    late, stored = sink.table.late_rows, sink.stored

    def seen_late() -> Any:
        looks.append(1)
        return late()

    def seen_stored(documents: Any) -> Any:
        looks.append(2)
        return stored(documents)

    monkeypatch.setattr(sink.table, "late_rows", seen_late)
    monkeypatch.setattr(sink, "stored", seen_stored)
    apply(sink, [event(0, "a", 2), event(1, "b", 2)])
    apply(sink, [event(2, "a", 3), event(3, "b", 3)])
    assert looks == [], "a row was read though nothing was late"
    outcome = apply(sink, [event(4, "a", 2), event(5, "b", 4)])
    assert (looks, outcome.verdicts[Verdict.STALE], outcome.verdicts[Verdict.APPLIED]) == (
        [1],
        1,
        1,
    )
    for number in range(PESSIMISTIC_BATCHES):
        looks.clear()
        apply(
            sink, [event(6 + 2 * number, "a", 10 + number), event(7 + 2 * number, "b", 10 + number)]
        )
        assert bool(looks) is (number < PESSIMISTIC_BATCHES - 1)


def test_of_documents_with_several_events_only_rows_that_may_be_late_are_read(
    database_url: str, open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = begun(open_sink(declare(database_url)))
    apply(sink, [event(0, "a", 1), event(1, "b", 1), event(2, "c", 5)])
    read: list[Any] = []
    ask = sink.table.rows_not_before

    def seen(*asked: Any) -> Any:
        found = list(ask(*asked))
        read.append([document for document, _ in found])
        return found

    monkeypatch.setattr(sink.table, "rows_not_before", seen)
    outcome = apply(sink, [event(3, "a", 2), event(4, "a", 3), event(5, "b", 3), event(6, "b", 4)])
    assert (read, outcome.verdicts[Verdict.APPLIED]) == ([[]], 4)
    outcome = apply(sink, [event(7, "a", 4), event(8, "a", 5), event(9, "c", 5), event(10, "c", 6)])
    assert sorted(read[1]) == ["c"]
    assert (outcome.verdicts[Verdict.APPLIED], outcome.verdicts[Verdict.REPEATED]) == (3, 1)
    assert table(database_url) == [("a", "PRINTED", 5), ("b", "PRINTED", 4), ("c", "PRINTED", 6)]


def test_postgres_plans_for_the_documents_of_the_batch(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    """Check the plan of PostgreSQL.

    A prepared plan for any array compares every row with every document: 75,000 of them took
    minutes.
    """
    sink = begun(open_sink(declare(new_database("postgres"))))
    for number in range(12):
        apply(
            sink,
            [event(2 * number, "a", 2 * number + 1), event(2 * number + 1, "a", 2 * number + 2)],
        )
        sink.stored(["a", "b"])
    prepared = [
        row[0] for row in sink.connection.select("SELECT statement FROM pg_prepared_statements")
    ]
    assert prepared, "nothing is prepared any more, so this proves nothing"
    assert not [statement for statement in prepared if "ANY" in statement]


def test_records_below_the_ledger_are_applied_already(database_url: str, open_sink: Open) -> None:
    sink = begun(
        open_sink(
            declare(
                database_url,
                event={"document": "doc_id", "status": "status"},
                columns={"print_status": "status"},
            )
        )
    )
    batch = [event(0, "a", 1, "ONE"), event(1, "a", 2, "TWO")]
    assert apply(sink, batch).records == 2
    assert apply(sink, batch).records == 0
    assert apply(sink, [*batch, event(2, "a", 3, "THREE")]).records == 1
    assert run_sql(database_url, "SELECT count(*) FROM instep_history") == [(3,)]
    assert run_sql(database_url, "SELECT print_status FROM contract_document") == [("THREE",)]


def test_an_older_writer_is_fenced_and_writes_nothing(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    sink.ledger.take_epoch([])
    with pytest.raises(errors.Fenced, match="epoch 2 is newer than 1"):
        apply(sink, [event(0, "a", 1)])
    with pytest.raises(errors.Fenced):
        apply(sink, [event(0, "a", 1)], partition=7)
    assert table(database_url) == []
    assert apply(sink, [event(0, "a", 1)], writer=Writer(2, "c", "t")).records == 1


def test_a_partition_added_later_gets_its_own_row(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    apply(sink, [event(0, "a", 1)], partition=5)
    assert {partition: row.next_offset for partition, row in sink.ledger.positions().items()} == {
        0: 0,
        5: 1,
    }


def test_partial_events_leave_other_columns_alone(database_url: str, open_sink: Open) -> None:
    columns = {
        "print_status": "status",
        "print_version": "version",
        "note": "note",
        "place": "place",
    }
    sink = begun(open_sink(declare(database_url, columns=columns)))
    apply(sink, [event(0, "a", 1, note="n1", place="p1"), event(1, "b", 1, note="n1")])
    apply(
        sink,
        [
            event(2, "a", 2, note="n2"),
            event(3, "b", 2, place="p2"),
            event(4, "c", 1),
            event(5, "a", 3, note=None),
        ],
    )
    rows = table(database_url, "doc_no, print_version, note, place")
    assert rows == [("a", 3, None, "p1"), ("b", 2, "n1", "p2"), ("c", 1, None, None)]


def test_only_a_later_event_recreates_a_deleted_document(
    database_url: str, open_sink: Open
) -> None:
    sink = begun(open_sink(declare(database_url)))
    apply(sink, [event(0, "a", 5), event(1, "b", 1), record(2, "a", None)])
    assert table(database_url) == [("b", "PRINTED", 1)]
    assert apply(sink, [event(3, "a", 4)]).verdicts[Verdict.STALE] == 1
    assert (
        apply(
            sink,
            [event(4, "a", 6), record(5, "b", None), event(6, "b", 2), record(7, "nobody", None)],
        ).verdicts[Verdict.APPLIED]
        == 3
    )
    assert table(database_url) == [("a", "PRINTED", 6), ("b", "PRINTED", 2)]
    apply(sink, [record(8, "a", None), record(9, "b", None)])
    assert table(database_url) == []
    assert run_sql(
        database_url, "SELECT document, order_value FROM instep_deleted ORDER BY document"
    ) == [("a", 6), ("b", 2)]


def test_ids_that_look_alike_are_different_documents(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    ids = [
        "a",
        "A",
        "a ",
        "\u00e9",
        "e\u0301",
        "😀",
        "😁",
        "ß",
        "ss",
        "'; DROP TABLE contract_document; --",
        "%s",
        "{0}",
        "\\",
        "x" * 255,
    ]
    apply(sink, [event(i, document, i) for i, document in enumerate(ids)])
    apply(sink, [event(100 + i, document, 100 + i) for i, document in enumerate(ids)])
    assert {row[0]: row[2] for row in table(database_url)} == {
        document: 100 + i for i, document in enumerate(ids)
    }


def test_a_batch_may_contain_one_key_thousands_of_times(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    outcome = apply(sink, [event(i, "a", i + 1) for i in range(5_000)])
    assert outcome.verdicts[Verdict.APPLIED] == 5_000
    assert table(database_url) == [("a", "PRINTED", 5_000)]


def test_a_batch_of_bad_records_still_advances_the_ledger(
    database_url: str, open_sink: Open
) -> None:
    sink = begun(open_sink(declare(database_url)))
    big = b'{"doc_id": "' + b"x" * 1_000_000
    apply(
        sink,
        [
            record(0, None, {"doc_id": "a"}),
            record(1, "b", b"\xff\xfe"),
            record(2, "c", big),
            record(3, "d", b""),
        ],
    )
    assert sink.ledger.positions()[0].next_offset == 4
    reasons = run_sql(database_url, "SELECT reason FROM instep_dead_letters ORDER BY reason")
    assert reasons == [("KEY_MISSING",), ("NOT_JSON",), ("NOT_JSON",), ("NOT_UTF8",)]
    assert run_sql(database_url, "SELECT max(length(value)) FROM instep_dead_letters") == [
        (len(big),)
    ]


def test_missing_ignore_changes_only_existing_documents(database_url: str, open_sink: Open) -> None:
    run_sql(
        database_url,
        KNOWN_DOCUMENTS(database_url),
        "INSERT INTO contract_document (doc_no, owner) VALUES ('a', 'Ann')",
    )
    sink = begun(open_sink(declare(database_url, missing="ignore")))
    outcome = apply(sink, [event(0, "a", 1), event(1, "b", 1), event(2, "a", 2)])
    assert (outcome.verdicts[Verdict.APPLIED], outcome.verdicts[Verdict.IGNORED]) == (2, 1)
    assert table(database_url, "doc_no, print_status, print_version, owner") == [
        ("a", "PRINTED", 2, "Ann")
    ]


def test_a_refused_row_is_found_and_quarantined(database_url: str, open_sink: Open) -> None:
    preparation.prepare(declare(database_url))
    run_sql(database_url, *REFUSE_CANCELLED[database_url.partition(":")[0]])
    sink = begun(open_sink(declare(database_url)))
    apply(sink, [event(0, "warm", 1)])
    records = [event(i, f"d{i % 40:02}", i) for i in range(1, 200)]
    records[56] = event(57, "x1", 57, "CANCELLED")
    records[92:95] = [event(93, "x2", 93), event(94, "x2", 94, "CANCELLED"), event(95, "x2", 95)]
    outcome = apply(sink, records)
    assert (outcome.dead, outcome.verdicts[Verdict.PARKED]) == (0, 3)
    expected = {f"d{i % 40:02}": i for i in range(160, 200)}
    assert {row[0]: row[2] for row in table(database_url)} == {**expected, "warm": 1, "x2": 93}
    assert parked(database_url) == [
        (57, "x1", "REFUSED_BY_TARGET"),
        (94, "x2", "REFUSED_BY_TARGET"),
        (95, "x2", "WAITS_BEHIND"),
    ]
    verdicts = run_sql(
        database_url,
        "SELECT verdict, count(*) FROM instep_history GROUP BY verdict ORDER BY verdict",
    )
    assert verdicts == [("applied", 197), ("parked", 3)]
    assert sink.ledger.positions()[0].next_offset == 200
    apply(sink, [event(200, "x1", 200), record(201, "x2", None), event(202, "warm", 2)])
    assert parked(database_url)[-2:] == [(200, "x1", "WAITS_BEHIND"), (201, "x2", "WAITS_BEHIND")]
    assert sink.journal.parked_count() == 2
    assert {row[0]: row[2] for row in table(database_url)} == {**expected, "warm": 2, "x2": 93}


def test_a_refusal_by_the_rules_parks_only_that_document(
    database_url: str, open_sink: Open
) -> None:
    machine = {"CREATED": ["QUEUED"], "QUEUED": ["PRINTED"]}
    sink = begun(open_sink(declare(database_url, transitions=machine)))
    apply(
        sink,
        [
            event(0, "a", 1, "CREATED"),
            event(1, "b", 1, "CREATED"),
            event(2, "b", 2, "PRINTED"),
            event(3, "b", 3, "QUEUED"),
        ],
    )
    outcome = apply(
        sink,
        [
            event(4, "a", 2, "QUEUED"),
            event(5, "b", 4, "QUEUED"),
            event(6, "c", 1, "x" * 256),
            event(7, "d", 1, "QUEUED"),
        ],
    )
    assert (outcome.verdicts[Verdict.APPLIED], outcome.verdicts[Verdict.PARKED], outcome.dead) == (
        2,
        2,
        0,
    )
    apply(sink, [event(8, "a", 3, "CREATED"), event(9, "a", 1, "LOST")])
    assert table(database_url) == [("a", "QUEUED", 2), ("b", "CREATED", 1), ("d", "QUEUED", 1)]
    assert parked(database_url) == [
        (2, "b", "TRANSITION_NOT_ALLOWED"),
        (3, "b", "WAITS_BEHIND"),
        (5, "b", "WAITS_BEHIND"),
        (6, "c", "TEXT_TOO_LONG"),
        (8, "a", "TRANSITION_NOT_ALLOWED"),
        (9, "a", "WAITS_BEHIND"),
    ]


def test_missing_park_waits_for_the_document(database_url: str, open_sink: Open) -> None:
    run_sql(
        database_url,
        KNOWN_DOCUMENTS(database_url),
        "INSERT INTO contract_document (doc_no, owner) VALUES ('a', 'Ann')",
    )
    sink = begun(open_sink(declare(database_url, missing="park")))
    apply(
        sink,
        [
            event(0, "a", 1),
            event(1, "b", 1),
            event(2, "a", 2),
            event(3, "b", 2),
            record(4, "c", None),
        ],
    )
    assert table(database_url, "doc_no, print_version") == [("a", 2)]
    assert parked(database_url) == [(1, "b", "DOCUMENT_MISSING"), (3, "b", "WAITS_BEHIND")]
    run_sql(database_url, "INSERT INTO contract_document (doc_no, owner) VALUES ('b', 'Bob')")
    apply(sink, [event(5, "b", 3)])
    assert table(database_url, "doc_no, print_version") == [("a", 2), ("b", None)]


SIGNAL = (
    "BEGIN IF NEW.print_status = 'CANCELLED' THEN SIGNAL SQLSTATE '45000'"
    " SET MESSAGE_TEXT = 'no'; END IF; END"
)
REFUSE_CANCELLED = {
    "sqlite": [
        f"CREATE TRIGGER refuse_{verb} BEFORE {verb} ON contract_document"
        " WHEN NEW.print_status = 'CANCELLED'"
        " BEGIN SELECT RAISE(ABORT, 'no'); END"
        for verb in ("insert", "update")
    ],
    "postgresql": ["ALTER TABLE contract_document ADD CHECK (print_status <> 'CANCELLED')"],
    "mariadb": ["ALTER TABLE contract_document ADD CHECK (print_status <> 'CANCELLED')"],
    "mysql": [
        f"CREATE TRIGGER refuse_{verb} BEFORE {verb} ON contract_document FOR EACH ROW {SIGNAL}"
        for verb in ("insert", "update")
    ],
}


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
@pytest.mark.parametrize("ordered", [True, False])
def test_random_logs_equal_the_model(
    database_url: str, open_sink: Open, guarantee: settings.Guarantee, ordered: bool
) -> None:
    dice = random.Random(f"{guarantee} {ordered}")
    preparation.prepare(declare(database_url))
    changes: dict[str, Any] = (
        {} if ordered else {"event": {"document": "doc_id", "status": "status"}}
    )
    sink = begun(open_sink(declare(database_url, guarantee=guarantee, **changes)))
    rows: dict[str, tuple[str, int]] = {}
    orders: dict[str, int] = {}
    offset = 0
    for _ in range(6):
        batch = []
        for _ in range(dice.randint(1, 60)):
            document, version = f"d{dice.randint(0, 9)}", dice.randint(1, 40)
            if dice.random() < 0.1:
                batch.append(record(offset, document, None))
                rows.pop(document, None)
            else:
                status = f"S{offset}"
                batch.append(event(offset, document, version, status))
                if not ordered or version > orders.get(document, -1):
                    rows[document] = (status, version)
                    orders[document] = version
            offset += dice.randint(1, 3)
        apply(sink, batch)
    assert {row[0]: (row[1], row[2]) for row in table(database_url)} == rows


def test_the_ledger_decides_whether_an_unanswered_commit_succeeded(
    database_url: str, open_sink: Open
) -> None:
    sink = begun(open_sink(declare(database_url)))
    connection = sink.connection
    commit = connection.commit

    def commit_and_lose_the_answer() -> None:
        commit()
        raise errors.DatabaseUnreachable("gone")

    connection.commit = commit_and_lose_the_answer  # type: ignore[method-assign]
    work = BatchTransaction(WRITER, 0, [event(0, "a", 1)], log_holds_nothing)
    with pytest.raises(errors.DatabaseUnreachable):
        work.apply(sink, Decoder(sink.target.mapping))
    again = open_sink(declare(database_url))
    assert work.apply(again, Decoder(again.target.mapping)).records == 0
    assert run_sql(database_url, "SELECT count(*) FROM instep_history") == [(1,)]


@pytest.mark.parametrize(
    ("guarantee", "left", "again"),
    [("exactly-once", 0, 2), ("at-least-once", 2, 2), ("at-most-once", 0, 0)],
)
def test_a_crash_before_the_last_commit_keeps_the_guarantee(
    database_url: str, open_sink: Open, guarantee: settings.Guarantee, left: int, again: int
) -> None:
    """Crash at step 7, where the weaker guarantees differ.

    By then one has its rows, the other its position, and exactly-once has neither.
    """
    sink = begun(open_sink(declare(database_url, guarantee=guarantee)))
    batch = [event(0, "a", 1), event(1, "b", 1), record(2, "c", b"{")]

    def die(moment: ProbeEvent) -> None:
        if moment.step == 7:
            raise Crash

    with pytest.raises(Crash):
        BatchTransaction(WRITER, 0, batch, log_holds_nothing, die).apply(
            sink, Decoder(sink.target.mapping)
        )
    assert len(table(database_url)) == left
    restarted = open_sink(declare(database_url, guarantee=guarantee))
    assert apply(restarted, batch).verdicts[Verdict.APPLIED] + apply(restarted, batch).records == (
        0 if left else again
    )
    assert len(table(database_url)) == max(left, again)
    assert restarted.ledger.positions()[0].next_offset == 3
    assert run_sql(database_url, "SELECT count(*) FROM instep_history") == [(max(left, again),)]


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("step", [7, 8])
def test_a_repeated_delete_keeps_documents_created_after_it(
    database_url: str, open_sink: Open, step: int, history: bool
) -> None:
    """Repeat the batch of the crash, as at-least-once does.

    The delete must not remove a document that was created after it.
    """
    pipeline = declare(database_url, guarantee="at-least-once", history=history)
    sink = begun(open_sink(pipeline))
    apply(sink, [event(0, "a", 1)])
    batch = [record(1, "a", None), event(2, "a", 2), event(3, "b", 1)]

    def die(moment: ProbeEvent) -> None:
        if moment.step == step:
            raise Crash

    with contextlib.suppress(Crash):
        BatchTransaction(WRITER, 0, batch, log_holds_nothing, die).apply(
            sink, Decoder(sink.target.mapping)
        )
    apply(open_sink(pipeline), batch)
    assert table(database_url) == [("a", "PRINTED", 2), ("b", "PRINTED", 1)]


def test_a_task_stops_when_the_ledger_went_back(database_url: str, open_sink: Open) -> None:
    """Restore a backup: the records between it and the batch must not be skipped."""
    sink = begun(open_sink(declare(database_url)))
    asked = []

    def log_holds_records(partition: int, start: int, end: int) -> bool:
        asked.append((partition, start, end))
        return True

    with pytest.raises(errors.LedgerMoved, match="was moved to 0"):
        BatchTransaction(WRITER, 0, [event(20, "a", 1)], log_holds_records).apply(
            sink, Decoder(sink.target.mapping)
        )
    assert asked == [(0, 0, 20)]
    with pytest.raises(errors.LedgerMoved):
        apply(sink, [event(0, "a", 1)], writer=Writer(2, "c", "t"))
    assert table(database_url) == []
    assert sink.ledger.positions()[0].next_offset == 0


def test_a_pipeline_can_start_over_beside_its_old_history(
    database_url: str, open_sink: Open
) -> None:
    sink = begun(open_sink(declare(database_url)))
    batch = [event(0, "a", 1), event(1, "b", 1), record(2, "c", b"{")]
    apply(sink, batch)
    run_sql(database_url, "DELETE FROM instep_ledger")
    again = begun(open_sink(declare(database_url)))
    outcome = apply(again, batch)
    assert (outcome.records, outcome.verdicts[Verdict.REPEATED]) == (3, 2)
    assert run_sql(
        database_url, "SELECT verdict, count(*) FROM instep_history GROUP BY verdict"
    ) == [("applied", 2)]
    assert again.journal.dead_letter_count() == 1
    assert again.ledger.positions()[0].next_offset == 3


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_two_partitions_may_write_one_document(
    kind: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    """Write one document from two partitions, as after a topic got more partitions.

    The second writer waits for the first, and retries where it cannot continue.
    """
    url = new_database(kind)
    first, second = begun(open_sink(declare(url)), partitions=2), open_sink(declare(url))
    outrun: list[BaseException] = []

    def meet(later: int) -> None:
        try:
            apply(second, [event(later, "d", later, "SECOND")], partition=1)
        except errors.Transient as error:
            outrun.append(error)

    for version, later in ((5, 6), (7, 8), (10, 9)):
        thread = threading.Thread(target=meet, args=(later,))
        with first.transaction():
            first.write(
                guard.settle(
                    [_decoded(first, event(0, "d", version, "FIRST"))],
                    first.stored(["d"]),
                    first.target.rules,
                )
            )
            thread.start()
            wait_until(lambda: is_blocked(url, kind), "the second writer to wait")
        thread.join()
        if outrun:
            apply(second, [event(later, "d", later, "SECOND")], partition=1)
            outrun.clear()
        assert table(url) == [("d", "SECOND" if later > version else "FIRST", max(later, version))]


def _decoded(sink: Sink, found: Record) -> Any:
    return Decoder(sink.target.mapping).decode(found)


DROP_SILENTLY = {
    "sqlite": [
        "CREATE TRIGGER drop_silently BEFORE INSERT ON contract_document"
        " WHEN NEW.print_status = 'DROP'"
        " BEGIN SELECT RAISE(IGNORE); END"
    ],
    "postgres": [
        "CREATE FUNCTION drop_silently() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF NEW.print_status = ''DROP'' THEN RETURN NULL; END IF; RETURN NEW; END'",
        (
            "CREATE TRIGGER drop_silently BEFORE INSERT ON contract_document FOR EACH ROW"
            " EXECUTE FUNCTION drop_silently()"
        ),
    ],
}


@pytest.mark.parametrize("kind", DROP_SILENTLY)
def test_a_row_that_a_trigger_skips_is_quarantined(
    kind: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database(kind)
    sink = begun(open_sink(declare(url)))
    run_sql(url, *DROP_SILENTLY[kind])
    work = BatchTransaction(
        WRITER, 0, [event(0, "a", 1), event(1, "b", 1, "DROP"), event(2, "c", 1)], log_holds_nothing
    )
    for _ in range(3):
        with pytest.raises(errors.Outrun):
            work.apply(sink, Decoder(sink.target.mapping))
    assert work.apply(sink, Decoder(sink.target.mapping)).verdicts[Verdict.PARKED] == 1
    assert [row[0] for row in table(url)] == ["a", "c"]


def test_a_skipped_and_a_refused_row_in_one_batch_are_both_found(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    """Put both in one batch: neither may hide the other, and the rest is written."""
    url = new_database("postgres")
    sink = begun(open_sink(declare(url)))
    run_sql(url, *DROP_SILENTLY["postgres"], *REFUSE_CANCELLED["postgresql"])
    records = [
        event(0, "a", 1),
        event(1, "b", 1, "DROP"),
        event(2, "c", 1, "CANCELLED"),
        event(3, "d", 1),
    ]
    work = BatchTransaction(WRITER, 0, records, log_holds_nothing)
    for _ in range(3):
        with pytest.raises(errors.Outrun):
            work.apply(sink, Decoder(sink.target.mapping))
    assert work.apply(sink, Decoder(sink.target.mapping)).verdicts[Verdict.PARKED] == 2
    assert [row[0] for row in table(url)] == ["a", "d"]


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_uuid_may_be_the_key(
    kind: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database(kind)
    if not has_uuid_type(url):
        pytest.skip("MariaDB before 10.7 has no type UUID")
    run_sql(
        url,
        "CREATE TABLE contract_document (doc_no UUID NOT NULL PRIMARY KEY,"
        " print_status VARCHAR(20), print_version BIGINT)",
    )
    sink = begun(
        open_sink(declare(url, columns={"print_status": "status", "print_version": "version"}))
    )
    name = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"
    apply(sink, [event(0, name, 1), event(1, name.upper(), 2)])
    apply(sink, [event(2, name, 3), event(3, name, 1)])
    assert [str(row[0]) + " " + str(row[2]) for row in table(url)] == [f"{name} 3"]
    apply(sink, [record(4, name, None)])
    assert table(url) == []


def test_times_of_any_year_keep_their_order(database_url: str, open_sink: Open) -> None:
    changes = {
        "event": {
            "document": "doc_id",
            "status": "status",
            "order": "updated_at",
            "at": "updated_at",
        }
    }
    sink = begun(
        open_sink(
            declare(
                database_url,
                columns={"print_status": "status", "printed_at": "updated_at"},
                **changes,
            )
        )
    )
    oldest = "1000-01-01" if database_url.startswith("m") else "0001-01-01"
    times = [
        f"{oldest}T00:00:00Z",
        "1969-12-31T23:59:59.999999Z",
        "2026-11-01T08:00:00.000001Z",
        "2026-11-01T08:00:00Z",
        "9999-12-31T00:00:00Z",
    ]
    for offset, at in enumerate(times):
        apply(sink, [event(offset, "d", 0, f"S{offset}", updated_at=at)])
    assert run_sql(database_url, "SELECT print_status FROM contract_document") == [("S4",)]
    verdicts = run_sql(database_url, "SELECT verdict FROM instep_history WHERE status = 'S3'")
    assert verdicts == [("stale",)]


def test_a_text_too_large_for_an_index_is_quarantined(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("postgres")
    sink = begun(open_sink(declare(url, columns={"print_version": "version", "note": "note"})))
    run_sql(url, "CREATE INDEX by_note ON contract_document (note)")
    noise = "".join(chr(random.Random(number).randrange(0x4E00, 0x9FFF)) for number in range(9_000))
    assert (
        apply(sink, [event(0, "a", 1, note=noise), event(1, "b", 1, note="short")]).verdicts[
            Verdict.PARKED
        ]
        == 1
    )
    assert run_sql(url, "SELECT doc_no FROM contract_document") == [("b",)]


def test_a_full_database_loses_nothing(new_database: Callable[[str], str], open_sink: Open) -> None:
    url = new_database("sqlite")
    sink = begun(open_sink(declare(url)))
    sink.connection.execute("PRAGMA max_page_count = 20")
    batch = [event(n, f"d{n}", 1) for n in range(2_000)]
    with pytest.raises(errors.DatabaseFull):
        apply(sink, batch)
    assert (table(url), sink.ledger.positions()[0].next_offset) == ([], 0)
    sink.connection.execute("PRAGMA max_page_count = 100000")
    assert apply(sink, batch).verdicts[Verdict.APPLIED] == 2_000


def test_a_read_only_database_and_a_missing_right_are_reported(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("postgres")
    begun(open_sink(declare(url)))
    name = url.rpartition("/")[2]
    run_sql(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(errors.TargetReadOnly), reopened(url) as sink:
        apply(sink, [event(0, "a", 1)])
    run_sql(
        url.rpartition("/")[0] + "/instep",
        f"ALTER DATABASE {name} RESET default_transaction_read_only",
    )
    run_sql(url, "REVOKE INSERT ON contract_document FROM CURRENT_USER")
    with reopened(url) as sink, pytest.raises(errors.PermissionLost):
        apply(sink, [event(0, "a", 1)])


@contextmanager
def reopened(url: str) -> Iterator[Sink]:
    """Open a sink on existing tables. It must not create any."""
    sink = sinks.open_sink(inspection.inspect("contracts", declare(url)))
    try:
        yield sink
    finally:
        sink.close()


COUNT_WRITES = {
    "sqlite": "CREATE TRIGGER w AFTER UPDATE OF print_status ON contract_document BEGIN"
    " UPDATE contract_document SET writes = writes + 1 WHERE doc_no = NEW.doc_no; END",
    "mariadb": (
        "CREATE TRIGGER w BEFORE UPDATE ON contract_document FOR EACH ROW"
        " SET NEW.writes = OLD.writes + 1"
    ),
    "mysql": (
        "CREATE TRIGGER w BEFORE UPDATE ON contract_document FOR EACH ROW"
        " SET NEW.writes = OLD.writes + 1"
    ),
}


@pytest.mark.parametrize("kind", COUNT_WRITES)
def test_a_table_with_triggers_is_written_in_whole_batches(
    kind: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database(kind)
    open_sink(declare(url)).close()
    run_sql(
        url,
        "ALTER TABLE contract_document ADD COLUMN writes INTEGER NOT NULL DEFAULT 0",
        COUNT_WRITES[kind],
    )
    sink = begun(open_sink(declare(url)))
    steps: list[int] = []
    work = BatchTransaction(
        WRITER,
        0,
        [event(n, f"d{n}", 1) for n in range(500)],
        log_holds_nothing,
        lambda moment: steps.append(moment.step),
    )
    assert work.apply(sink, Decoder(sink.target.mapping)).dead == 0
    assert steps.count(1) == 1, "the batch was refused at first, and written with care"
    apply(sink, [event(500 + n, f"d{n}", 2) for n in range(250)])
    assert run_sql(
        url, "SELECT writes, count(*) FROM contract_document GROUP BY writes ORDER BY writes"
    ) == [(0, 250), (1, 250)]


def test_transitions_work_on_an_enum_column(
    new_database: Callable[[str], str], open_sink: Open
) -> None:
    url = new_database("postgres")
    run_sql(
        url,
        "CREATE TYPE status AS ENUM ('CREATED', 'QUEUED', 'PRINTED')",
        "CREATE TABLE contract_document (doc_no VARCHAR(40) NOT NULL PRIMARY KEY,"
        " print_status status, print_version BIGINT)",
    )
    columns = {"print_status": "status", "print_version": "version"}
    sink = begun(
        open_sink(
            declare(
                url, columns=columns, transitions={"CREATED": ["QUEUED"], "QUEUED": ["PRINTED"]}
            )
        )
    )
    apply(sink, [event(0, "a", 1, "CREATED"), event(1, "b", 1, "CREATED")])
    apply(sink, [event(2, "a", 2, "QUEUED"), event(3, "b", 2, "PRINTED"), event(4, "c", 1, "LOST")])
    assert table(url) == [("a", "QUEUED", 2), ("b", "CREATED", 1)]
    assert parked(url) == [(3, "b", "TRANSITION_NOT_ALLOWED"), (4, "c", "NOT_A_CHOICE")]
    assert sink.table.statuses(10) == {"CREATED", "QUEUED"}
