"""Test folding against the guard's model, however the log is cut into stretches."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from instep.document import folding, guard
from instep.document.decoding import Event
from instep.document.folding import ABSENT, FoldedRun, FoldedState, FoldStep, Shape
from instep.document.guard import Rules
from tests.support.guard_model import COLUMNS, Model, Row, bringing

ORDERS = st.integers(0, 5)
CELLS = st.sampled_from(["0", "1", "2", None])


@st.composite
def logs(draw: st.DrawFn) -> tuple[Rules, list[Event], list[int]]:
    """Generate the events of one document in one partition, and where the log is cut."""
    rules = Rules(ordered=draw(st.booleans()), order_is_time=draw(st.booleans()))
    events = []
    for offset in range(draw(st.integers(0, 14))):
        delete = draw(st.integers(0, 3)) == 0
        named = draw(st.booleans())
        order = (
            draw(ORDERS)
            if rules.ordered and (not delete or (rules.order_is_time and named))
            else None
        )
        full = draw(st.booleans())
        values = tuple(draw(CELLS) if full or draw(st.booleans()) else UNSET for _ in COLUMNS)
        events.append(Event(offset, "d", order, None, None, None if delete else values))
    cuts = sorted(draw(st.sets(st.integers(0, 14), max_size=4)))
    return rules, events, cuts


def step(event: Event, partition: int = 0) -> FoldStep:
    if event.values is None:
        return FoldStep(partition, event.offset, event.offset, event.order, Shape.DELETE, None)
    values = [ABSENT if value is UNSET else value for value in event.values]
    return FoldStep(
        partition,
        event.offset,
        event.offset,
        event.order,
        Shape.PARTIAL if ABSENT in values else Shape.FULL,
        folding.pack(values),
    )


def row(state: FoldedState) -> Row | None:
    if not state.present:
        return None
    return {
        name: value for name, value in zip(COLUMNS, state.values, strict=True) if value != ABSENT
    }


def modelled(rules: Rules, events: list[Event]) -> tuple[Row | None, int | None]:
    model = Model(rules, {}, {})
    for event in events:
        model.apply(event)
    kept = model.rows.get("d")
    return {
        name: value for name, value in kept.items() if name in COLUMNS
    } if kept else kept, model.order_of("d")


@given(logs())
@settings(max_examples=600)
def test_folding_equals_applying_events_one_by_one(
    case: tuple[Rules, list[Event], list[int]],
) -> None:
    rules, events, _ = case
    state = folding.fold(map(step, events), rules)
    assert (row(state), state.order) == modelled(rules, events)


@given(logs())
@settings(max_examples=1000)
def test_thinning_changes_nothing_wherever_the_log_is_cut(
    case: tuple[Rules, list[Event], list[int]],
) -> None:
    rules, events, cuts = case
    thinned: list[FoldStep] = []
    for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        run = FoldedRun()
        for event in events[start:end]:
            run.add(step(event), rules)
        thinned += run.steps
    state = folding.fold(thinned, rules)
    assert (row(state), state.order) == modelled(rules, events)


def test_thinning_keeps_only_the_steps_that_matter() -> None:
    run = FoldedRun()
    for number in range(1000):
        run.add(
            step(Event(number, "d", number % 7, None, None, (str(number),) * len(COLUMNS))),
            Rules(ordered=True),
        )
    assert len(run.steps) == 1


def test_equal_values_are_packed_equally() -> None:
    values: list[Any] = ["a", None, ABSENT]
    assert folding.unpack(folding.pack(values)) == values
    assert folding.pack(values) == folding.pack(list(values))


ORDERED, UNORDERED = Rules(ordered=True), Rules(ordered=False)


def in_partition(
    partition: int, *events: tuple[int, int | None, dict[str, Any] | None]
) -> list[FoldStep]:
    """Build the steps of one partition from (time, order, values) of each event."""
    return [
        msgspec.structs.replace(
            step(
                Event(
                    offset, "d", order, None, None, None if values is None else bringing(**values)
                ),
                partition,
            ),
            timestamp_ms=at,
        )
        for offset, (at, order, values) in enumerate(events)
    ]


def test_a_document_in_two_partitions_ends_with_the_highest_order() -> None:
    low = in_partition(4, (1, 1, {"x": "1", "y": "1"}), (2, 2, {"x": "2"}))
    high = in_partition(1, (3, 3, {"x": "3"}), (4, 4, {"z": "4"}))
    state = folding.fold([*high, *low], ORDERED)
    assert (row(state), state.order) == ({"x": "3", "y": "1", "z": "4"}, 4)


def test_a_delete_in_another_partition_is_ordered_by_its_time() -> None:
    created = in_partition(0, (1, 1, {"x": "1"}), (2, 2, {"x": "2"}))
    deleted = in_partition(3, (3, None, None))
    for rules in (ORDERED, UNORDERED):
        state = folding.fold([*created, *deleted], rules)
        assert (state.present, state.deleted) == (False, True)
    back = folding.fold([*created, *in_partition(3, (3, None, None), (4, 3, {"y": "3"}))], ORDERED)
    assert (row(back), back.order) == ({"y": "3"}, 3)
    stays = folding.fold(
        [*in_partition(0, (5, 2, {"x": "2"})), *in_partition(3, (3, None, None))], ORDERED
    )
    assert row(stays) == {"x": "2"}


def test_without_an_order_the_later_partition_wins() -> None:
    early, late = (
        in_partition(5, (1, None, {"x": "1", "y": "1"})),
        in_partition(2, (2, None, {"x": "2"})),
    )
    assert row(folding.fold([*late, *early], UNORDERED)) == {"x": "2", "y": "1"}


CLEARED = (None, "gone", UNSET)


@given(logs())
@settings(max_examples=600)
def test_folding_deletes_that_clear_equals_one_by_one_wherever_the_log_is_cut(
    case: tuple[Rules, list[Event], list[int]],
) -> None:
    """Compare folding, and the guard that writes the rows, with a model of a few lines."""
    rules, events, cuts = case
    rules = msgspec.structs.replace(rules, deletes="clear", cleared=CLEARED)
    kept, order = None, None
    for event in events:
        if (
            rules.ordered
            and guard.judge(event.order, order, rules.order_is_time) is not guard.Verdict.APPLIED
        ):
            continue
        if event.values is not None:
            kept, order = guard.merged(kept, event.values), event.order if rules.ordered else None
        elif kept is not None:
            kept = guard.merged(kept, CLEARED)
    changes = guard.settle(events, {}, rules)
    assert changes.inserts.get("d") == kept
    assert not changes.deletes

    thinned: list[FoldStep] = []
    for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        run = FoldedRun()
        for event in events[start:end]:
            clearing = msgspec.structs.replace(
                step(event),
                shape=Shape.CLEAR,
                values=folding.pack([ABSENT if one is UNSET else one for one in CLEARED]),
            )
            run.add(step(event) if event.values is not None else clearing, rules)
        thinned += run.steps
    state = folding.fold(thinned, rules)
    if kept is None:
        assert not state.present
    else:
        assert state.present
        assert [UNSET if value == ABSENT else value for value in state.values] == list(kept)
