"""Test release, skip, replay, drop and the timeline on every real database."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from instep import errors
from instep.document.decoding import Record
from instep.operate import dead_letters, history, parked, selection, timeline
from instep.pipeline.apply import release
from instep.pipeline.apply.maintenance import Change
from instep.sinks import journal, ledger_reader
from instep.sinks.journal_entries import RecordPosition, Selection
from instep.sinks.target import Position
from tests.support.databases import declare, run_sql
from tests.support.quarantine import session
from tests.support.transactions import (
    KNOWN_DOCUMENTS,
    Open,
    apply,
    begun,
    event,
    is_blocked,
    record,
    table,
)
from tests.support.transactions import parked as parked_rows
from tests.support.waiting import wait_until

MACHINE = {"CREATED": ["QUEUED"], "QUEUED": ["PRINTED"]}
TOPIC = "print-status"


def never(_position: Any, _events: Any) -> set[int]:
    """Return no event: with an order, none is overtaken."""
    return set()


def no_cluster() -> Any:
    raise AssertionError("the topic was asked for")


def verdicts_of(lines: list[Change]) -> list[tuple[int, str, str | None]]:
    return [(line.position.offset, line.verdict, line.reason) for line in lines]


def test_a_release_applies_the_waiting_events_in_order(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url, transitions=MACHINE)))
    batch = [
        event(0, "a", 1, "CREATED"),
        event(1, "a", 2, "PRINTED"),
        event(2, "a", 3, "QUEUED"),
        event(3, "b", 1, "CREATED"),
    ]
    apply(sink, batch)
    apply(
        sink, [event(4, "a", 1, "QUEUED"), event(5, "a", 4, "PRINTED"), event(6, "b", 2, "PRINTED")]
    )
    with session(database_url, transitions=MACHINE) as at:
        heads = at.sink.journal.parked_heads(Selection())
        assert [(one.document, one.waiting, one.reason) for one in heads] == [
            ("a", 4, "TRANSITION_NOT_ALLOWED"),
            ("b", 1, "TRANSITION_NOT_ALLOWED"),
        ]
        assert verdicts_of(release.release(at, "a", execute=True))[:2] == [
            (1, "parked", "TRANSITION_NOT_ALLOWED"),
            (2, "parked", "WAITS_BEHIND"),
        ]
        passed, left = parked.skip(at, "a", "the printer lied", execute=True)
        assert (passed.record.offset, left) == (1, 3)
        plan = release.release(at, "a", execute=False)
        assert verdicts_of(plan) == [(2, "applied", None), (4, "stale", None), (5, "applied", None)]
        assert table(database_url) == [("a", "CREATED", 1), ("b", "CREATED", 1)]
        assert verdicts_of(release.release(at, "a", execute=True)) == verdicts_of(plan)
        assert table(database_url) == [("a", "PRINTED", 4), ("b", "CREATED", 1)]
        life = timeline.read(at, "a", no_cluster)
        assert [(one.position.offset, one.verdict) for one in life.events] == [
            (0, "applied"),
            (1, "skipped"),
            (2, "released"),
            (4, "stale"),
            (5, "released"),
        ]
        assert (life.decisions[0].action, life.decisions[0].actor, life.decisions[0].reason) == (
            "skipped",
            "ann",
            "the printer lied",
        )
        assert life.row is not None
        assert life.row["print_status"] == "PRINTED"
        with pytest.raises(errors.SettingsError, match="not parked"):
            release.release(at, "a", execute=True)
    assert parked_rows(database_url) == [(6, "b", "TRANSITION_NOT_ALLOWED")]
    apply(sink, [event(7, "a", 5, "PRINTED"), event(8, "b", 3, "QUEUED")])
    assert table(database_url) == [("a", "PRINTED", 5), ("b", "CREATED", 1)]


def test_a_release_stops_at_the_next_refused_event(database_url: str, open_sink: Open) -> None:
    run_sql(database_url, KNOWN_DOCUMENTS(database_url))
    sink = begun(open_sink(declare(database_url, missing="park")))
    apply(sink, [event(0, "a", 1), event(1, "a", 2, "x" * 300), event(2, "a", 3)])
    run_sql(database_url, "INSERT INTO contract_document (doc_no, owner) VALUES ('a', 'Ann')")
    with session(database_url, missing="park") as at:
        assert verdicts_of(release.release(at, "a", execute=True)) == [
            (0, "applied", None),
            (1, "parked", "TEXT_TOO_LONG"),
            (2, "parked", "WAITS_BEHIND"),
        ]
    assert table(database_url, "doc_no, print_version, owner") == [("a", 1, "Ann")]
    assert parked_rows(database_url) == [(1, "a", "TEXT_TOO_LONG"), (2, "a", "WAITS_BEHIND")]


def test_dead_letters_can_be_replayed_after_the_settings_are_corrected(
    database_url: str, open_sink: Open
) -> None:
    wrong = {
        "event": {"document": "doc_id", "status": "state", "order": "version", "at": "updated_at"}
    }
    sink = begun(
        open_sink(
            declare(
                database_url, columns={"print_status": "state", "print_version": "version"}, **wrong
            )
        )
    )
    batch = [
        event(0, "a", 1),
        event(1, "a", 3),
        event(2, "a", 2, "OLD"),
        event(3, "b", 1),
        record(4, "c", b"{"),
        event(5, "d", 1),
    ]
    assert apply(sink, batch).dead == 6
    with session(
        database_url, columns={"print_status": "status", "print_version": "version"}
    ) as at:
        groups = at.sink.journal.dead_letter_reasons(Selection())
        assert [(one.reason, one.count) for one in groups] == [
            ("FIELD_MISSING", 5),
            ("NOT_JSON", 1),
        ]
        assert len(at.sink.journal.dead_letters(Selection(document="a"))) == 3
        assert (
            len(
                at.sink.journal.dead_letters(
                    Selection(since=datetime.now(UTC) + timedelta(hours=1))
                )
            )
            == 0
        )
        assert (
            len(
                at.sink.journal.dead_letters(
                    Selection(until=datetime.now(UTC) + timedelta(hours=1), reason="NOT_JSON"),
                )
            )
            == 1
        )
        plan = list(dead_letters.replay(at, Selection(), never, execute=False))
        assert verdicts_of(plan) == [
            (0, "applied", None),
            (1, "applied", None),
            (2, "stale", None),
            (3, "applied", None),
            (4, "dead", "NOT_JSON"),
            (5, "applied", None),
        ]
        assert (plan[1].before, str((plan[1].after or {})["print_version"])) == (None, "3")
        assert plan[0].before == plan[0].after
        assert table(database_url) == []
        dropped = dead_letters.drop(
            at,
            Selection(positions=(RecordPosition(TOPIC, 0, 5),)),
            "a test of the source",
            execute=True,
        )
        assert verdicts_of(dropped) == [(5, "dropped", "FIELD_MISSING")]
        assert (
            verdicts_of(list(dead_letters.replay(at, Selection(), never, execute=True)))
            == verdicts_of(plan)[:5]
        )
        assert table(database_url) == [("a", "PRINTED", 3), ("b", "PRINTED", 1)]
        assert [one.position.offset for one in at.sink.journal.dead_letters(Selection())] == [4]
        life = timeline.read(at, "a", no_cluster)
        assert [(one.position.offset, one.verdict) for one in life.events] == [
            (0, "applied"),
            (1, "applied"),
            (2, "stale"),
        ]
        assert {one.action for one in life.decisions} == {"replayed"}
        assert [one.verdict for one in timeline.read(at, "c", no_cluster).events] == ["dead"]
        [kept] = at.sink.journal.decisions(position=RecordPosition(TOPIC, 0, 5))
        assert (kept.action, kept.outcome, kept.reason) == (
            "dropped",
            "FIELD_MISSING",
            "a test of the source",
        )
        assert at.sink.journal.unapplied() == {
            RecordPosition(TOPIC, 0, offset) for offset in (2, 4, 5)
        }


def test_only_the_planned_event_is_skipped(database_url: str, open_sink: Open) -> None:
    """Leave the event behind it alone, which nobody has seen as the first one."""
    sink = begun(open_sink(declare(database_url, transitions=MACHINE)))
    batch = [("CREATED", 1), ("PRINTED", 2), ("QUEUED", 3)]
    apply(sink, [event(at, "a", version, status) for at, (status, version) in enumerate(batch)])
    first, second = RecordPosition(TOPIC, 0, 1), RecordPosition(TOPIC, 0, 2)
    with session(database_url, transitions=MACHINE) as at:
        with pytest.raises(errors.NotBlocking, match="is not blocked by the event at 0:2"):
            parked.skip(at, "a", "too early", execute=True, planned=second)
        parked.skip(at, "a", "the printer lied", execute=True, planned=first)
        with pytest.raises(errors.NotBlocking, match="it waits for the one at 0:2"):
            parked.skip(at, "a", "the same again", execute=True, planned=first)
        assert [one.position for one in at.sink.journal.waiting_events("a")] == [second]
        assert len(at.sink.journal.decisions(document="a")) == 1


def test_a_selection_ends_where_its_plan_ended(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    apply(sink, [record(0, "a", b"{"), record(1, "b", b"{")])
    with session(database_url) as at:
        [end] = at.sink.journal.dead_letter_ends(Selection(reason="NOT_JSON"))
        assert (end.end, end.count) == (RecordPosition(TOPIC, 0, 1), 2)
        apply(sink, [record(2, "c", b"{")])
        seen = Selection(reason="NOT_JSON", up_to=(end.end,))
        assert [one.offset for one in at.sink.journal.dead_letter_positions(seen)] == [0, 1]
        until = Selection(until=end.last + timedelta(microseconds=1))
        assert [one.offset for one in at.sink.journal.dead_letter_positions(until)] == [0, 1]


def test_decisions_of_one_time_are_read_in_parts(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    apply(sink, [record(offset, "a", b"{") for offset in range(5)])
    with session(database_url) as at:
        dead_letters.drop(at, Selection(), "all at once", execute=True)
        read = at.sink.journal.recent_decisions
        first = read(2)
        rest = read(10, first[-1].at, first[-1].position)
        assert [one.position.offset for one in first + rest] == [0, 1, 2, 3, 4]
        assert read(10, first[-1].at) == []


def test_the_newest_of_a_long_timeline_are_read(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url, transitions=MACHINE)))
    apply(sink, [event(0, "a", 1, "CREATED")])
    apply(sink, [event(at, "a", at + 1, "PRINTED") for at in range(1, 6)])
    with session(database_url, transitions=MACHINE) as at:
        for _ in range(2):
            parked.skip(at, "a", "not needed", execute=True)
        found = timeline.read(at, "a", no_cluster, 2)
        whole = timeline.read(at, "a", no_cluster)
        assert (found.events, found.decisions) == (whole.events[-2:], whole.decisions[-2:])
        assert found.waiting == whole.waiting == 3
        waiting = at.sink.journal.waiting_events("a", 2)
        assert [one.position.offset for one in waiting] == [3, 4]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("2:17", RecordPosition(TOPIC, 2, 17)),
        ("2:17#3", RecordPosition(f"{TOPIC}#3", 2, 17)),
        ("2:17#0", RecordPosition(TOPIC, 2, 17)),
        ("load:1:5", RecordPosition("load:1", 0, 5)),
    ],
)
def test_a_place_is_parsed(text: str, position: RecordPosition) -> None:
    assert selection.parse_position(TOPIC, text) == position


@pytest.mark.parametrize("text", ["2", "2:", "2:x", "2:1#", "2:1#x", ":1", "2:²"])
def test_a_wrong_place_is_explained(text: str) -> None:
    with pytest.raises(errors.SettingsError, match="is not a place"):
        selection.parse_position(TOPIC, text)


def test_a_dead_letter_of_a_parked_document_waits_in_line(
    database_url: str, open_sink: Open
) -> None:
    columns = {"print_status": "status", "print_version": "version", "note": "note"}
    sink = begun(open_sink(declare(database_url, transitions=MACHINE, columns=columns)))
    apply(
        sink,
        [
            event(0, "a", 1, "CREATED"),
            event(1, "a", 2, "PRINTED"),
            event(2, "a", 3, "QUEUED", note=["x"]),
        ],
    )
    assert sink.journal.dead_letter_count() == 1
    run_sql(
        database_url,
        "UPDATE instep_dead_letters SET value = ?".replace(
            "?", _literal(database_url, event(2, "a", 3, "QUEUED").value)
        ),
    )
    with session(database_url, transitions=MACHINE, columns=columns) as at:
        assert verdicts_of(list(dead_letters.replay(at, Selection(), never, execute=True))) == [
            (2, "parked", "WAITS_BEHIND")
        ]
        assert at.sink.journal.dead_letter_count() == 0
    assert parked_rows(database_url) == [
        (1, "a", "TRANSITION_NOT_ALLOWED"),
        (2, "a", "WAITS_BEHIND"),
    ]


def _literal(url: str, value: bytes | None) -> str:
    assert value is not None
    return f"'\\x{value.hex()}'" if url.startswith("postgres") else f"x'{value.hex()}'"


def test_the_history_is_pruned_in_chunks(
    database_url: str, open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "CHUNK_ROWS", 7)
    sink = begun(open_sink(declare(database_url)))
    apply(sink, [event(n, f"d{n}", 1) for n in range(50)])
    middle = datetime.now(UTC)
    apply(sink, [event(50 + n, f"d{n}", 2) for n in range(20)])
    apply(sink, [event(n, f"e{n}", 2) for n in range(5)], partition=1)
    with session(database_url) as at:
        assert history.prune(at, middle, execute=False) == 50
        assert history.prune(at, middle, execute=True) == 50
        assert history.prune(at, middle, execute=True) == 0
        assert [one.order for one in at.sink.journal.history("d3")] == [2]
    assert run_sql(database_url, "SELECT count(*) FROM instep_history") == [(25,)]
    assert len(table(database_url)) == 55


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_a_running_pipeline_and_a_command_take_turns(
    kind: str, new_database: Callable[[str], str], open_sink: Open
) -> None:
    """Check that a release does not miss an event that a task parks behind it meanwhile."""
    database_url = new_database(kind)
    sink = begun(open_sink(declare(database_url, transitions=MACHINE)))
    apply(sink, [event(0, "a", 1, "CREATED"), event(1, "a", 2, "PRINTED")])
    with session(database_url) as at:  # the settings were repaired: no transitions any more
        with at.transaction(execute=True):
            task = threading.Thread(target=apply, args=(sink, [event(2, "a", 3, "QUEUED")]))
            task.start()
            wait_until(lambda: is_blocked(database_url, kind), "the task to wait for its turn")
        task.join()
        assert verdicts_of(release.release(at, "a", execute=True)) == [
            (1, "applied", None),
            (2, "applied", None),
        ]
    assert parked_rows(database_url) == []


def test_parked_documents_are_found_in_large_batches_too(
    database_url: str, open_sink: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = begun(open_sink(declare(database_url)))
    apply(sink, [event(n, f"p{n}", 1, "x" * 300) for n in range(5)])
    for limit in (1_000, 3):
        monkeypatch.setattr(journal, "LOOKUP_MAX", limit)
        assert sink.journal.parked_among([f"p{n}" for n in range(3, 10)]) == {"p3", "p4"}
        assert sink.journal.parked_among([f"p{n}" for n in range(4)]) == {"p0", "p1", "p2", "p3"}


def test_the_flow_continues_while_a_replay_reads_the_log(
    database_url: str, open_sink: Open
) -> None:
    """Look for later events before the ledger is locked, and again under the lock."""
    sink = begun(open_sink(declare(database_url)))
    assert apply(sink, [event(0, "a", 1, note="x"), record(1, "b", b"{broken")]).dead == 1
    _correct(database_url, event(1, "b", 1))
    asked: list[int] = []
    is_reading, may_go_on = threading.Event(), threading.Event()

    def slow(position: Position, _events: Any) -> set[int]:
        asked.append(position.next_offset)
        is_reading.set()
        assert may_go_on.wait(30)
        return set()

    plan: list[Change] = []

    def look() -> None:
        with session(database_url) as at:
            plan.extend(dead_letters.replay(at, Selection(), slow, execute=False))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    assert is_reading.wait(30)
    apply(sink, [event(2, "a", 2, "LATER")])
    assert table(database_url) == [("a", "LATER", 2)]
    may_go_on.set()
    thread.join(30)
    assert verdicts_of(plan) == [(1, "applied", None)]
    assert (asked[0], asked[-1]) == (2, 3)


def test_a_dead_letter_that_is_dropped_meanwhile_is_not_replayed(
    database_url: str, open_sink: Open
) -> None:
    sink = begun(open_sink(declare(database_url)))
    apply(sink, [record(0, "a", b"{broken"), record(1, "b", b"{broken")])
    _correct(database_url, event(1, "b", 1))

    def drop_the_first(_position: Any, _events: Any) -> set[int]:
        with session(database_url) as at:
            first = Selection(positions=(RecordPosition(TOPIC, 0, 0),))
            dead_letters.drop(at, first, "a test", execute=True)
        return set()

    calls = iter([drop_the_first])
    with session(database_url) as at:
        changes = dead_letters.replay(
            at, Selection(), lambda *asked: next(calls, never)(*asked), execute=True
        )
        assert verdicts_of(list(changes)) == [(1, "applied", None)]
    assert table(database_url) == [("b", "PRINTED", 1)]


def test_dropping_is_planned_without_a_lock(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url)))
    apply(sink, [record(0, "a", b"{broken")])
    with session(database_url) as at, sink.transaction():
        sink.ledger.positions(lock=True)
        plan = dead_letters.drop(at, Selection(), "a test", execute=False)
    assert verdicts_of(plan) == [(0, "dropped", "NOT_JSON")]


def test_dead_letters_of_results_and_loads_are_counted(database_url: str, open_sink: Open) -> None:
    """Leave out those of a topic that was replaced: nothing can be done about them any more."""
    pipeline = declare(database_url)
    sink = begun(open_sink(pipeline))
    apply(sink, [record(offset, "a", b"{broken") for offset in range(5)])
    offset = "`offset`" if database_url.startswith("m") else '"offset"'
    for number, topic in enumerate((f"{TOPIC}#1", "load:7", f"{TOPIC}@old", f"{TOPIC}2")):
        run_sql(
            database_url,
            f"UPDATE instep_dead_letters SET topic = '{topic}' WHERE {offset} = {number}",
        )
    assert ledger_reader.read("contracts", pipeline).dead_letters == 3
    assert sink.journal.dead_letter_count() == 3


def test_lists_have_the_beginnings_of_large_records(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url, transitions=MACHINE)))
    large = event(2, "b", 2, "PRINTED", note="ü" * 100_000)
    apply(sink, [record(0, "a", b"\xff" * 5_000), event(1, "b", 1, "CREATED"), large])
    [letter] = sink.journal.dead_letter_beginnings(Selection())
    assert (letter.key, letter.key_bytes, letter.value_bytes) == (b"a", 1, 5_000)
    assert letter.value == b"\xff" * journal.BEGINNING_SHOWN_BYTES
    [waiting] = sink.journal.waiting_beginnings("b")
    assert waiting.value_bytes == len(large.value or b"")
    assert waiting.value
    assert (large.value or b"").startswith(waiting.value)
    assert waiting.value.decode()


def test_the_last_waiting_event_of_each_log_is_known(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url, transitions=MACHINE)))
    apply(sink, [event(0, "b", 1, "CREATED"), event(1, "b", 2, "PRINTED"), event(2, "b", 3)])
    assert sink.journal.waiting_ends("b") == [RecordPosition(TOPIC, 0, 2)]
    [head] = sink.journal.parked_heads_of(["a", "b", "c"])
    assert (head.document, head.waiting, head.position.offset) == ("b", 2, 1)


def test_a_plan_looks_at_a_few_events_of_a_document(database_url: str, open_sink: Open) -> None:
    sink = begun(open_sink(declare(database_url, transitions=MACHINE)))
    apply(sink, [event(0, "b", 1, "CREATED"), *(event(n, "b", n + 1) for n in range(1, 6))])
    with session(database_url) as at:
        assert len(release.release(at, "b", execute=False, most=2)) == 2
        assert parked.blocking(at, "b").position.offset == 1


def _correct(url: str, corrected: Record) -> None:
    """Let a dead letter hold what the source should have sent."""
    offset = "`offset`" if url.startswith("m") else '"offset"'
    run_sql(
        url,
        f"UPDATE instep_dead_letters SET value = {_literal(url, corrected.value)}"
        f" WHERE {offset} = {corrected.offset}",
    )
