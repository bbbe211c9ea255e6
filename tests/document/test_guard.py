"""Test the guard against its model: one event at a time, in log order."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from instep.document import guard, transitions
from instep.document.decoding import Event
from instep.document.guard import Changes, DocumentId, Rules, Stored, Verdict
from instep.document.reasons import Reason, Refusal
from instep.document.transitions import Transitions
from tests.support.guard_model import COLUMNS, Model, Row, bringing, named

DOCUMENTS = st.sampled_from(["a", "b", "A", "a ", "é", "é"])
ORDERS = st.integers(0, 6)
VALUES = st.tuples(*[st.integers(0, 9) | st.just(UNSET)] * len(COLUMNS))
STATUSES = st.sampled_from(["NEW", "BUSY", "DONE", "ODD"])
MACHINE = transitions.declare({"NEW": ["BUSY"], "BUSY": ["DONE", "NEW"]})
TOO_LONG = Refusal(Reason.TEXT_TOO_LONG, "x")


@st.composite
def batches(
    draw: st.DrawFn,
) -> tuple[Rules, dict[DocumentId, Row], dict[DocumentId, int], list[list[Event]]]:
    rules = Rules(
        ordered=draw(st.booleans()),
        order_is_time=draw(st.booleans()),
        missing=draw(st.sampled_from(["insert", "insert", "park", "ignore"])),
        transitions=draw(st.sampled_from([Transitions(), MACHINE])),
    )
    deletes_have_order = rules.order_is_time and draw(st.booleans())
    rows: dict[DocumentId, Row] = {}
    for document in draw(st.sets(DOCUMENTS)):
        order = draw(st.none() | ORDERS) if rules.ordered else None
        rows[document] = {
            "x": draw(st.integers(0, 9)),
            "order": order,
            "status": draw(st.none() | STATUSES),
        }
    deleted: dict[DocumentId, int] = {}
    if rules.ordered:
        deleted |= {d: draw(ORDERS) for d in draw(st.sets(DOCUMENTS)) if d not in rows}
    offset = 0
    log: list[list[Event]] = []
    for size in draw(st.lists(st.integers(0, 12), min_size=1, max_size=4)):
        batch = []
        for _ in range(size):
            delete = draw(st.integers(0, 4)) == 0
            order = draw(ORDERS) if rules.ordered and (not delete or deletes_have_order) else None
            values = None if delete else draw(VALUES)
            refusal = TOO_LONG if not delete and draw(st.integers(0, 9)) == 0 else None
            batch.append(
                Event(
                    offset,
                    draw(DOCUMENTS),
                    order,
                    None,
                    None if delete else draw(STATUSES),
                    values,
                    refusal,
                )
            )
            offset += 1
        log.append(batch)
    return rules, rows, deleted, log


def written(
    rows: dict[DocumentId, Row],
    deleted: dict[DocumentId, int],
    changes: Changes,
    last: dict[DocumentId, Row],
) -> None:
    """Apply changes to plain dictionaries as a sink does, and check that each is possible."""
    for document in changes.deletes:
        del rows[document]
    for document, values in changes.inserts.items():
        assert document not in rows
        rows[document] = {**named(values), **last[document]}
    for document, values in changes.updates.items():
        rows[document] = {**rows[document], **named(values), **last[document]}
    deleted.update(changes.deleted_orders)


def settled(
    rules: Rules,
    rows: dict[DocumentId, Row],
    deleted: dict[DocumentId, int],
    batch: list[Event],
    held: set[DocumentId],
) -> Changes:
    stored: dict[DocumentId, Stored] = {
        document: Stored(False, order) for document, order in deleted.items()
    }
    stored |= {
        document: Stored(True, row["order"], row["status"]) for document, row in rows.items()
    }
    return guard.settle(batch, stored, rules, held)


@given(batches())
@settings(max_examples=700)
def test_deciding_a_batch_equals_deciding_one_by_one(
    case: tuple[Rules, dict[DocumentId, Row], dict[DocumentId, int], list[list[Event]]],
) -> None:
    rules, rows, deleted, log = case
    model = Model(rules, rows, deleted)
    rows, deleted = dict(rows), dict(deleted)
    waiting: dict[DocumentId, list[int]] = {}
    for batch in log:
        expected = [model.apply(event) for event in batch]
        changes = settled(rules, rows, deleted, batch, set(waiting))
        for parked in changes.parked:
            behind = parked.refusal.reason is Reason.WAITS_BEHIND
            assert behind is (parked.event.document in waiting)
            waiting.setdefault(parked.event.document, []).append(parked.event.offset)
        assert waiting == model.waiting
        assert changes.verdicts == expected
        last = {
            e.document: {"order": e.order, "status": e.status}
            for e, verdict in zip(batch, expected, strict=True)
            if verdict is Verdict.APPLIED and e.values is not None
        }
        written(rows, deleted, changes, last)
        assert rows == model.rows
        known = {d: model.order_of(d) for d in {*rows, *deleted, *model.deleted}}
        assert {d: rows[d]["order"] if d in rows else deleted.get(d) for d in known} == known


@given(batches())
@settings(max_examples=300)
def test_where_batches_are_cut_does_not_matter(
    case: tuple[Rules, dict[DocumentId, Row], dict[DocumentId, int], list[list[Event]]],
) -> None:
    rules, rows, deleted, log = case
    events = [event for batch in log for event in batch]
    whole = settled(rules, rows, deleted, events, set())
    one_by_one = Model(rules, rows, deleted)
    assert whole.verdicts == [one_by_one.apply(event) for event in events]


@given(st.permutations(list(range(1, 8))), st.integers(1, 3))
def test_versions_in_any_order_end_with_the_highest(versions: list[int], copies: int) -> None:
    events = [
        Event(i, "d", version, None, None, bringing(x=version))
        for i, version in enumerate(versions * copies)
    ]
    changes = guard.settle(events, {}, Rules(ordered=True))
    assert changes.inserts == {"d": bringing(x=7)}
    assert changes.verdicts.count(Verdict.APPLIED) == len(
        {max(versions[: i + 1]) for i in range(len(versions))}
    )


def test_a_late_event_does_not_bring_a_deleted_document_back() -> None:
    log = [
        Event(0, "d", 3, None, None, bringing(x=3)),
        Event(1, "d", None, None, None, None),
        Event(2, "d", 2, None, None, bringing(x=2)),
    ]
    changes = guard.settle(log, {}, Rules(ordered=True))
    assert (changes.inserts, changes.deleted_orders) == ({}, {"d": 3})
    again = guard.settle(
        [Event(3, "d", 3, None, None, bringing(x=3)), Event(4, "d", 4, None, None, bringing(x=4))],
        {"d": Stored(False, 3)},
        Rules(ordered=True),
    )
    assert again.verdicts == [Verdict.REPEATED, Verdict.APPLIED]
    assert again.inserts == {"d": bringing(x=4)}


def test_a_recreated_document_starts_without_its_old_values() -> None:
    log = [Event(0, "d", None, None, None, None), Event(1, "d", 9, None, None, bringing(x=1))]
    changes = guard.settle(log, {"d": Stored(True, 5)}, Rules(ordered=True))
    assert (changes.deletes, changes.inserts, changes.updates) == (["d"], {"d": bringing(x=1)}, {})


def test_changes_come_in_id_order() -> None:
    events = [Event(i, name, 1, None, None, bringing()) for i, name in enumerate(["c", "a", "b"])]
    assert list(guard.settle(events, {}, Rules(ordered=True)).inserts) == ["a", "b", "c"]


@given(batches())
@settings(max_examples=300)
def test_in_rounds_every_event_is_written_and_nothing_else_changes(
    case: tuple[Rules, dict[DocumentId, Row], dict[DocumentId, int], list[list[Event]]],
) -> None:
    rules, rows, deleted, log = case
    events = [event for batch in log for event in batch]
    rounds = guard.split_rounds(events)
    assert (
        sorted((event for wave in rounds for event in wave), key=lambda event: event.offset)
        == events
    )
    assert all(len({event.document for event in wave}) == len(wave) for wave in rounds)
    model, waiting, verdicts = Model(rules, rows, deleted), set[DocumentId](), dict[int, Verdict]()
    for wave in rounds:
        changes = settled(rules, model.rows, model.deleted, wave, waiting)
        verdicts |= {
            event.offset: verdict for event, verdict in zip(wave, changes.verdicts, strict=True)
        }
        waiting |= {parked.event.document for parked in changes.parked}
        for event in wave:
            model.apply(event)
    whole = Model(rules, rows, deleted)
    assert [verdicts[event.offset] for event in events] == [whole.apply(event) for event in events]


WHOLE = st.tuples(*[st.integers(0, 9)] * len(COLUMNS))


@given(st.data(), st.booleans(), st.booleans())
@settings(max_examples=700)
def test_rows_reported_by_the_upsert_are_judged_as_if_they_had_been_read(
    data: st.DataObject, ordered: bool, is_time: bool
) -> None:
    """Take the fast path: write without reading what is stored.

    The database returns only stored values that are at least as late as a document's first event.
    """
    rules = Rules(ordered=ordered, order_is_time=is_time)
    orders: dict[DocumentId, int | None] = {}
    if ordered:
        orders |= data.draw(st.dictionaries(DOCUMENTS, st.none() | ORDERS))
    rows: dict[DocumentId, Row] = {
        document: {"order": order, "status": None} for document, order in orders.items()
    }
    batch = [
        Event(
            offset,
            data.draw(DOCUMENTS),
            data.draw(ORDERS) if ordered else None,
            None,
            None,
            data.draw(WHOLE),
        )
        for offset in range(data.draw(st.integers(0, 14)))
    ]
    reduced = guard.reduce(batch, rules)
    assert reduced is not None
    firsts = {
        document: reduced.first.get(document, latest)[0]
        for document, latest in reduced.latest.items()
    }
    late: dict[DocumentId, Stored] = {
        document: Stored(True, orders[document])
        for document, order in firsts.items()
        if document in orders
        and guard.judge(order, orders[document], is_time) is not Verdict.APPLIED
    }
    verdicts, count = guard.rejudge(reduced, batch, late, rules)
    model = Model(rules, rows, {})
    assert verdicts == [model.apply(event) for event in batch]
    through = {
        document: latest
        for document, latest in reduced.latest.items()
        if document not in late
        or guard.judge(latest[0], orders[document], is_time) is Verdict.APPLIED
    }
    assert len(through) == count
    assert {
        document: {**named(values), "order": order, "status": None}
        for document, (order, values) in through.items()
    } == {
        document: row
        for document, row in model.rows.items()
        if row != rows.get(document) or document in through
    }


def test_events_that_need_the_slow_path_are_not_reduced() -> None:
    whole = Event(0, "d", 1, None, None, (1, 2, 3))
    assert guard.reduce([whole], Rules(ordered=True)) is not None
    for odd in (
        Event(1, "d", None, None, None, None),
        Event(1, "d", 2, None, None, bringing(x=1)),
        Event(1, "d", 2, None, None, (1, 2, 3), TOO_LONG),
    ):
        assert guard.reduce([whole, odd], Rules(ordered=True)) is None
    assert guard.reduce([whole], Rules(ordered=True, missing="ignore")) is None
    assert guard.reduce([whole], Rules(ordered=True, transitions=MACHINE)) is None


def claim(offset: int, document: str, slot: Any) -> Event:
    return Event(offset, document, offset, None, "S", (slot, offset))


def test_events_with_the_same_unique_value_keep_the_order_of_the_log() -> None:
    unique = guard.UniqueValues([(0,)], {"a": (1, UNSET), "b": (2, UNSET)})
    events = [
        claim(0, "b", 3),
        claim(1, "a", 4),
        claim(2, "c", 1),
        claim(3, "d", 2),
        claim(4, "e", None),
        claim(5, "e", 9),
    ]
    rounds = [[event.offset for event in one] for one in unique.rounds(events)]
    # c takes a's old value, and e occurs twice: each starts a round; d is a round after b
    assert rounds == [[0, 1], [2, 3, 4], [5]]
    often = [claim(offset, "a", offset) for offset in range(20)] + [
        claim(20, "b", 99),
        claim(21, "c", 98),
    ]
    assert [len(one) for one in guard.UniqueValues([(0,)], {}).rounds(often)] == [*[1] * 20, 2]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from([None, 1, 2, 3])), max_size=20))
def test_writing_in_rounds_equals_writing_one_by_one(moves: list[tuple[str, int | None]]) -> None:
    """Check that the order of writes within a round makes no difference."""
    events = [claim(offset, document, slot) for offset, (document, slot) in enumerate(moves)]
    rounds = guard.UniqueValues([(0,)], {}).rounds(events)
    assert [event for one in rounds for event in one] == events
    had: dict[Any, set[Any]] = {}
    for one in rounds:
        for event in one:
            slot = (event.values or (None,))[0]
            others = [other for other in one if other is not event]
            # whichever earlier events were applied, no other document of the round had or takes the
            # value
            assert slot is None or not any(slot in had.get(other.document, ()) for other in others)
            assert slot is None or not any((other.values or (None,))[0] == slot for other in others)
        for event in one:
            had.setdefault(event.document, set()).add((event.values or (None,))[0])
