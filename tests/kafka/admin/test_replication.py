"""Test planned replicas: the requested number, on different brokers, moved only if needed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from instep.kafka.admin import replication
from instep.kafka.layout import Layout, Partition


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Layout, dict[int, str | None], int]:
    nodes = list(range(1, draw(st.integers(1, 7)) + 1))
    racks = draw(
        st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=len(nodes), max_size=len(nodes))
    )
    parts = []
    for number in range(draw(st.integers(1, 8))):
        replicas = draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True))
        in_sync = draw(st.lists(st.sampled_from(replicas), unique=True))
        parts.append(
            Partition(number, in_sync[0] if in_sync else None, tuple(replicas), tuple(in_sync))
        )
    return (
        Layout("t", tuple(parts)),
        dict(zip(nodes, racks, strict=True)),
        draw(st.integers(1, len(nodes))),
    )


@given(clusters())
def test_a_plan_is_sound(case: tuple[Layout, dict[int, str | None], int]) -> None:
    topic, brokers, wanted = case
    moves = {move.partition: move for move in replication.spread(topic, brokers, wanted)}
    for part in topic.partitions:
        new = moves[part.partition].new if part.partition in moves else part.replicas
        assert len(new) == len(set(new)) == wanted
        assert set(new) <= brokers.keys()
        if len(part.replicas) <= wanted:
            assert new[: len(part.replicas)] == part.replicas
        elif part.leader is not None:
            assert part.leader in new
        if part.partition in moves:
            assert moves[part.partition].new != part.replicas


def test_new_replicas_are_spread_over_racks_and_brokers() -> None:
    topic = Layout("t", tuple(Partition(number, 1, (1,), (1,)) for number in range(6)))
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    moves = replication.spread(topic, racks, 3)
    for move in moves:
        assert sorted({racks[node] or "" for node in move.new}) == ["a", "b", "c"]
    held = Counter(node for move in moves for node in move.new[1:])
    assert max(held.values()) - min(held.values()) <= 1
    assert replication.spread(topic, racks, 1) == []


def test_a_broker_that_is_down_is_not_waited_for() -> None:
    topic = Layout("t", (Partition(0, 1, (1, 9), (1,)),))
    (move,) = replication.spread(topic, {1: None, 2: None, 3: None}, 3)
    assert sorted(move.new) == [1, 2, 3]
