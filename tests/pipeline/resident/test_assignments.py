"""Test which task reads which partition, whatever happens to tasks and in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from instep.pipeline.resident.assignments import FlowPartitions, Moves

TASKS = st.integers(0, 4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), TASKS),
        st.tuples(st.just("lose"), TASKS),
        st.tuples(st.just("answer"), TASKS),
        st.tuples(st.just("grow"), st.integers(1, 12)),
    ),
    max_size=30,
)


class Cluster:
    """What tasks do with their orders: they read what was assigned, until they answer a revoke."""

    def __init__(self, partitions: int, first: int) -> None:
        self.flow = FlowPartitions(range(partitions))
        self.partitions, self.first = partitions, first
        self.reads: dict[int, set[int]] = {}
        self.asked: dict[int, set[int]] = {}

    def step(self, kind: str, number: int) -> None:
        if kind == "join" and number not in self.reads:
            self.reads[number], self.asked[number] = set(), set()
        elif kind == "lose" and number in self.reads:
            del self.reads[number], self.asked[number]
            self.flow.unassign(number)
        elif kind == "answer" and number in self.reads:
            given_back, self.asked[number] = self.asked[number], set()
            self.reads[number] -= given_back
            self.flow.unassign(number, given_back)
        elif kind == "grow":
            self.partitions = max(self.partitions, number)
            self.flow.add(range(self.partitions))
        self.balance()

    def balance(self) -> Moves:
        moves = self.flow.balance(sorted(self.reads), self.first)
        for task, partitions in moves.revoke.items():
            assert set(partitions) <= self.reads[task] - self.asked[task]
            self.asked[task] |= set(partitions)
        for task, partitions in moves.assign.items():
            for others in self.reads.values():
                assert not set(partitions) & others, "read by two tasks that both live"
            self.reads[task] |= set(partitions)
        return moves

    def settle(self) -> None:
        for _ in range(3):
            for task in list(self.reads):
                self.step("answer", task)


@given(STEPS, st.integers(1, 12), st.integers(0, 9))
def test_every_partition_is_read_by_exactly_one_task(
    steps: list[tuple[str, int]], partitions: int, first: int
) -> None:
    cluster = Cluster(partitions, first)
    for kind, number in steps:
        cluster.step(kind, number)
    cluster.settle()
    shares = [share for share in cluster.reads.values() if share]
    if not cluster.reads:
        assert shares == []
        return
    assert sorted(one for share in shares for one in share) == list(range(cluster.partitions))
    sizes = [len(share) for share in cluster.reads.values()]
    assert max(sizes) - min(sizes) <= 1
    assert cluster.balance() == Moves({}, {})


def test_pipelines_with_one_partition_use_different_tasks() -> None:
    chosen = [FlowPartitions([0]).balance([0, 1], first).assign for first in (0, 1)]
    assert chosen == [{0: [0]}, {1: [0]}]


def test_a_partition_that_is_finished_is_given_to_nobody() -> None:
    flow = FlowPartitions([0, 1])
    flow.balance([0], 0)
    flow.finish([0])
    assert not flow.is_finished()
    flow.finish([1])
    assert flow.is_finished()
    assert flow.balance([0, 1], 0) == Moves({}, {})
