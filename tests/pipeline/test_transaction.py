"""The one transaction on every real database, against the model of one event at a time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from instep import errors, settings
from instep.document.decoding import Decoder, Record
from instep.document.guard import Verdict
from instep.pipeline.transaction import Outcome, Work, Writer
from instep.sinks import preparation
from instep.sinks.sink import Sink
from instep.sinks.target import Position
from tests.sinks.conftest import declare, open_sink, run_sql

__all__ = ["open_sink"]

Open = Callable[..., Sink]
WRITER = Writer(epoch=1, cluster_id="c", topic_id="t")


def record(offset: int, document: str | None, value: Any) -> Record:
    raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return Record(offset, 1_790_000_000_000 + offset, None if document is None else document.encode(), raw)


def event(offset: int, document: str, version: int, status: str = "PRINTED", **fields: Any) -> Record:
    return record(
        offset, document, {"doc_id": document, "status": status, "version": version, "updated_at": 1_790_000_000_000, **fields}
    )


def apply(sink: Sink, records: list[Record], partition: int = 0, writer: Writer = WRITER) -> Outcome:
    return Work(writer, partition, records).apply(sink, Decoder(sink.to.mapping))


def begun(sink: Sink, partitions: int = 1) -> Sink:
    sink.take_epoch(Position(partition, 0, 0, "c", "t") for partition in range(partitions))
    return sink


def table(url: str, columns: str = "doc_no, print_status, print_version") -> list[Any]:
    return run_sql(url, f"SELECT {columns} FROM contract_document ORDER BY doc_no, print_version")


def test_events_become_rows_history_and_a_ledger_that_moved(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    outcome = apply(
        sink, [event(0, "a", 1, "CREATED"), event(1, "b", 1), event(2, "a", 2), record(3, "c", b"{"), event(5, "a", 1)]
    )
    assert (outcome.records, outcome.dead, outcome.verdicts[Verdict.APPLIED], outcome.verdicts[Verdict.STALE]) == (5, 1, 3, 1)
    assert table(database_url) == [("a", "PRINTED", 2), ("b", "PRINTED", 1)]
    quoted = "`offset`" if database_url.startswith("m") else '"offset"'
    history = run_sql(database_url, f"SELECT {quoted}, document, order_value, verdict FROM instep_history ORDER BY {quoted}")
    assert history == [(0, "a", 1, "applied"), (1, "b", 1, "applied"), (2, "a", 2, "applied"), (5, "a", 1, "stale")]
    dead = run_sql(database_url, f"SELECT {quoted}, reason FROM instep_dead_letters")
    assert dead == [(3, "NOT_JSON")]
    assert sink.positions()[0].next_offset == 6
    assert sink.dead_count() == 1


def test_records_below_the_ledger_are_applied_already(database_url: str, open_sink: Open) -> None:
    sink = begun(
        open_sink(declare(database_url, event={"document": "doc_id", "status": "status"}, columns={"print_status": "status"}))
    )
    batch = [event(0, "a", 1, "ONE"), event(1, "a", 2, "TWO")]
    assert apply(sink, batch).records == 2
    assert apply(sink, batch).records == 0
    assert apply(sink, [*batch, event(2, "a", 3, "THREE")]).records == 1
    assert run_sql(database_url, "SELECT count(*) FROM instep_history") == [(3,)]
    assert run_sql(database_url, "SELECT print_status FROM contract_document") == [("THREE",)]


def test_an_older_writer_is_fenced_and_writes_nothing(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    sink.take_epoch([])
    with pytest.raises(errors.Fenced, match="epoch 2 is newer than 1"):
        apply(sink, [event(0, "a", 1)])
    with pytest.raises(errors.Fenced):
        apply(sink, [event(0, "a", 1)], partition=7)
    assert table(database_url) == []
    assert apply(sink, [event(0, "a", 1)], writer=Writer(2, "c", "t")).records == 1


def test_a_partition_added_later_gets_its_own_row(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    apply(sink, [event(0, "a", 1)], partition=5)
    assert {partition: row.next_offset for partition, row in sink.positions().items()} == {0: 0, 5: 1}


def test_partial_events_leave_other_columns_alone(database_url: str, open_sink: Open) -> None:
    columns = {"print_status": "status", "print_version": "version", "note": "note", "place": "place"}
    sink = begun(open_sink(declare(database_url, columns=columns)))
    apply(sink, [event(0, "a", 1, note="n1", place="p1"), event(1, "b", 1, note="n1")])
    apply(sink, [event(2, "a", 2, note="n2"), event(3, "b", 2, place="p2"), event(4, "c", 1), event(5, "a", 3, note=None)])
    rows = table(database_url, "doc_no, print_version, note, place")
    assert rows == [("a", 3, None, "p1"), ("b", 2, "n1", "p2"), ("c", 1, None, None)]


def test_deletes_and_what_comes_after_them(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    apply(sink, [event(0, "a", 5), event(1, "b", 1), record(2, "a", None)])
    assert table(database_url) == [("b", "PRINTED", 1)]
    assert apply(sink, [event(3, "a", 4)]).verdicts[Verdict.STALE] == 1
    assert (
        apply(sink, [event(4, "a", 6), record(5, "b", None), event(6, "b", 2), record(7, "nobody", None)]).verdicts[
            Verdict.APPLIED
        ]
        == 3
    )
    assert table(database_url) == [("a", "PRINTED", 6), ("b", "PRINTED", 2)]
    apply(sink, [record(8, "a", None), record(9, "b", None)])
    assert table(database_url) == []
    assert run_sql(database_url, "SELECT document, order_value FROM instep_deleted ORDER BY document") == [("a", 6), ("b", 2)]


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
    assert {row[0]: row[2] for row in table(database_url)} == {document: 100 + i for i, document in enumerate(ids)}


def test_a_key_thousands_of_times_in_one_batch(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    outcome = apply(sink, [event(i, "a", i + 1) for i in range(5_000)])
    assert outcome.verdicts[Verdict.APPLIED] == 5_000
    assert table(database_url) == [("a", "PRINTED", 5_000)]


def test_nothing_but_bad_records_still_moves_on(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    big = b'{"doc_id": "' + b"x" * 1_000_000
    apply(sink, [record(0, None, {"doc_id": "a"}), record(1, "b", b"\xff\xfe"), record(2, "c", big), record(3, "d", b"")])
    assert sink.positions()[0].next_offset == 4
    reasons = run_sql(database_url, "SELECT reason FROM instep_dead_letters ORDER BY reason")
    assert reasons == [("KEY_MISSING",), ("NOT_JSON",), ("NOT_JSON",), ("NOT_UTF8",)]
    assert run_sql(database_url, "SELECT max(length(value)) FROM instep_dead_letters") == [(len(big),)]


def test_missing_ignore_changes_only_documents_that_are_there(database_url: str, open_sink: Open) -> None:
    run_sql(database_url, KNOWN_DOCUMENTS(database_url), "INSERT INTO contract_document (doc_no, owner) VALUES ('a', 'Ann')")
    sink = begun(open_sink(declare(database_url, missing="ignore")))
    outcome = apply(sink, [event(0, "a", 1), event(1, "b", 1), event(2, "a", 2)])
    assert (outcome.verdicts[Verdict.APPLIED], outcome.verdicts[Verdict.IGNORED]) == (2, 1)
    assert table(database_url, "doc_no, print_status, print_version, owner") == [("a", "PRINTED", 2, "Ann")]


def KNOWN_DOCUMENTS(url: str) -> str:  # noqa: N802 - reads as the statement it is
    collation = {"mysql": " COLLATE utf8mb4_0900_bin", "mariadb": " COLLATE utf8mb4_nopad_bin"}.get(url.partition(":")[0], "")
    charset = " CHARACTER SET utf8mb4" if collation else ""
    key = f"doc_no VARCHAR(40){charset}{collation} NOT NULL PRIMARY KEY"
    return f"CREATE TABLE contract_document ({key}, owner VARCHAR(40) NOT NULL)"


def test_a_row_the_table_refuses_is_found_and_set_aside(database_url: str, open_sink: Open) -> None:
    pipeline = declare(database_url)
    sink = begun(open_sink(pipeline))
    apply(sink, [event(0, "warm", 1)])
    run_sql(database_url, *REFUSE_CANCELLED[database_url.partition(":")[0]])
    records = [event(i, f"d{i % 40:02}", i) for i in range(1, 200)]
    records[56] = event(57, "x1", 57, "CANCELLED")
    records[92:94] = [event(93, "x2", 93), event(94, "x2", 94, "CANCELLED")]
    outcome = apply(sink, records)
    assert outcome.dead == 2
    expected = {f"d{i % 40:02}": i for i in range(160, 200)}
    assert {row[0]: row[2] for row in table(database_url)} == {**expected, "warm": 1, "x2": 93}
    quoted = "`offset`" if database_url.startswith("m") else '"offset"'
    dead = run_sql(database_url, f"SELECT {quoted}, reason FROM instep_dead_letters ORDER BY {quoted}")
    assert dead == [(57, "REFUSED_BY_TARGET"), (94, "REFUSED_BY_TARGET")]
    assert run_sql(database_url, "SELECT count(*) FROM instep_history") == [(198,)]
    assert sink.positions()[0].next_offset == 200


SIGNAL = "BEGIN IF NEW.print_status = 'CANCELLED' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'; END IF; END"
REFUSE_CANCELLED = {
    "sqlite": [
        f"CREATE TRIGGER refuse_{verb} BEFORE {verb} ON contract_document WHEN NEW.print_status = 'CANCELLED'"
        " BEGIN SELECT RAISE(ABORT, 'no'); END"
        for verb in ("insert", "update")
    ],
    "postgresql": ["ALTER TABLE contract_document ADD CHECK (print_status <> 'CANCELLED')"],
    "mariadb": ["ALTER TABLE contract_document ADD CHECK (print_status <> 'CANCELLED')"],
    "mysql": [
        f"CREATE TRIGGER refuse_{verb} BEFORE {verb} ON contract_document FOR EACH ROW {SIGNAL}" for verb in ("insert", "update")
    ],
}


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
@pytest.mark.parametrize("ordered", [True, False])
def test_random_logs_give_what_the_model_gives(
    database_url: str, open_sink: Open, guarantee: settings.Guarantee, ordered: bool
) -> None:
    dice = random.Random(f"{guarantee} {ordered}")
    preparation.prepare(declare(database_url))
    changes: dict[str, Any] = {} if ordered else {"event": {"document": "doc_id", "status": "status"}}
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


def test_a_lost_answer_to_a_commit_is_settled_by_the_ledger(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    commit = type(sink).commit

    def commit_and_lose_the_answer() -> None:
        commit(sink)
        raise errors.DatabaseUnreachable("gone")

    sink.commit = commit_and_lose_the_answer  # type: ignore[method-assign]
    work = Work(WRITER, 0, [event(0, "a", 1)])
    with pytest.raises(errors.DatabaseUnreachable):
        work.apply(sink, Decoder(sink.to.mapping))
    again = open_sink(declare(database_url))
    assert work.apply(again, Decoder(again.to.mapping)).records == 0
    assert run_sql(database_url, "SELECT count(*) FROM instep_history") == [(1,)]


class Crash(Exception):
    """The process dies here."""


@pytest.mark.parametrize(
    ("guarantee", "left", "again"), [("exactly-once", 0, 2), ("at-least-once", 2, 2), ("at-most-once", 0, 0)]
)
def test_a_crash_before_the_last_commit(
    database_url: str, open_sink: Open, guarantee: settings.Guarantee, left: int, again: int
) -> None:
    """Step 7 parts the weaker guarantees: one has its rows by then, the other its position, and exactly-once neither."""
    sink = begun(open_sink(declare(database_url, guarantee=guarantee)))
    batch = [event(0, "a", 1), event(1, "b", 1), record(2, "c", b"{")]

    def die(_pipeline: str, step: int) -> None:
        if step == 7:
            raise Crash

    with pytest.raises(Crash):
        Work(WRITER, 0, batch, die).apply(sink, Decoder(sink.to.mapping))
    assert len(table(database_url)) == left
    restarted = open_sink(declare(database_url, guarantee=guarantee))
    assert apply(restarted, batch).verdicts[Verdict.APPLIED] + apply(restarted, batch).records == (0 if left else again)
    assert len(table(database_url)) == max(left, again)
    assert restarted.positions()[0].next_offset == 3
    assert run_sql(database_url, "SELECT count(*) FROM instep_history") == [(max(left, again),)]
