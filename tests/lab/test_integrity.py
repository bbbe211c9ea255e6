"""Test that every bug of a client is noticed, and nothing in what Kafka itself may do."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep_lab import integrity
from instep_lab.history import ClientOperation, OperationKind, OperationStatus

MEMBER = ("g", "m")
SENDER = "p"
BATCH = 5
EXPECTED = integrity.Expected(
    commits_after_work={MEMBER},
    commits_at_end={MEMBER},
    continues_at_commit={MEMBER},
    knows_commits={"g"},
    learns_offsets={SENDER},
    sends_keys={SENDER},
    reads_to_end={MEMBER},
    routes_by_key={MEMBER},
    sends_once={"t"},
    sets_timestamps={SENDER},
)


def good_history(seed: int, count: int = 40) -> list[ClientOperation]:
    """Return the history of a sender, and of a consumer that commits after each batch."""
    dice = random.Random(seed)
    numbers: dict[str, int] = {}
    log: dict[int, list[ClientOperation]] = {0: [], 1: []}
    operations = []
    for sequence in range(count):
        key = f"k{dice.randrange(4)}"
        number = numbers.get(key, 0)
        numbers[key] = number + 1
        partition = int(key[1:]) % 2
        sent = ClientOperation(
            kind=OperationKind.SEND,
            member=SENDER,
            key=key,
            number=number,
            topic="t",
            partition=partition,
            offset=len(log[partition]),
            timestamp_ms=1_000 + sequence,
        )
        operations.append(sent)
        log[partition].append(msgspec.structs.replace(sent, sender="s", sequence=sequence))
    operations += [_of(OperationKind.ASSIGN, partition=partition) for partition in log]
    for partition, records in log.items():
        for at in range(0, len(records), BATCH):
            batch = records[at : at + BATCH]
            for kind in (OperationKind.READ, OperationKind.WORK):
                operations += [
                    msgspec.structs.replace(one, kind=kind, group="g", member="m") for one in batch
                ]
            commit = _of(OperationKind.COMMIT, partition=partition, offset=at + len(batch))
            operations.append(msgspec.structs.replace(commit, note="sync"))
    ends = [
        _of(OperationKind.POSITION, partition=part, offset=len(records))
        for part, records in log.items()
    ]
    return [*operations, *ends, _of(OperationKind.END)]


def _of(kind: OperationKind, **rest: int) -> ClientOperation:
    return ClientOperation(kind=kind, group="g", member="m", **rest)  # type: ignore[arg-type]


def faults(operations: list[ClientOperation]) -> list[str]:
    return integrity.check(operations, EXPECTED).faults


def _index(operations: list[ClientOperation], kind: OperationKind, nth: int) -> int:
    return [n for n, one in enumerate(operations) if one.kind is kind][nth]


def drop_read(operations: list[ClientOperation]) -> None:
    at = _index(operations, OperationKind.READ, 2)
    gone = operations.pop(at)
    operations[:] = [
        one
        for one in operations
        if not (one.kind is OperationKind.WORK and one.record == gone.record)
    ]


def swap_reads(operations: list[ClientOperation]) -> None:
    at = _index(operations, OperationKind.READ, 1)
    operations[at], operations[at + 1] = operations[at + 1], operations[at]


def swap_records(operations: list[ClientOperation]) -> None:
    """Hand out two records under each other's offset."""
    for kind in (OperationKind.READ, OperationKind.WORK):
        at = _index(operations, kind, 1)
        one, other = operations[at], operations[at + 1]
        operations[at] = msgspec.structs.replace(one, key=other.key, number=other.number)
        operations[at + 1] = msgspec.structs.replace(other, key=one.key, number=one.number)


def repeat_read(operations: list[ClientOperation]) -> None:
    at = _index(operations, OperationKind.READ, 3)
    operations.insert(at, operations[at])


def skip_work(operations: list[ClientOperation]) -> None:
    operations.pop(_index(operations, OperationKind.WORK, 4))


def commit_too_far(operations: list[ClientOperation]) -> None:
    at = _index(operations, OperationKind.COMMIT, 0)
    offset = operations[at].offset
    operations[at] = msgspec.structs.replace(operations[at], offset=(offset or 0) + 1)


def acknowledge_elsewhere(operations: list[ClientOperation]) -> None:
    at = _index(operations, OperationKind.SEND, 0)
    offset = operations[at].offset
    operations[at] = msgspec.structs.replace(operations[at], offset=(offset or 0) + 1)


def read_something_else(operations: list[ClientOperation]) -> None:
    for kind in (OperationKind.READ, OperationKind.WORK):
        at = _index(operations, kind, 0)
        operations[at] = msgspec.structs.replace(operations[at], key="stranger")


def hand_over_in_another_order(operations: list[ClientOperation]) -> None:
    """Let the sender swap the last two records of a key before it hands them over."""
    key = "k0"
    sequences = sorted(
        one.sequence or 0 for one in operations if one.kind is OperationKind.READ and one.key == key
    )[-2:]
    swapped = dict(zip(sequences, reversed(sequences), strict=True))
    for at, one in enumerate(operations):
        if one.key == key and one.sequence in swapped:
            operations[at] = msgspec.structs.replace(one, sequence=swapped[one.sequence])


def acknowledge_without_offset(operations: list[ClientOperation]) -> None:
    operations[0] = msgspec.structs.replace(operations[0], offset=None)


def hand_over_twice(operations: list[ClientOperation]) -> None:
    """Let the log end with a record that it already has."""
    at = max(number for number, one in enumerate(operations) if one.kind is OperationKind.COMMIT)
    last = next(one for one in reversed(operations) if one.kind is OperationKind.READ)
    first = next(
        one
        for one in operations
        if one.kind is OperationKind.READ and one.partition == last.partition
    )
    again = msgspec.structs.replace(first, offset=(last.offset or 0) + 1)
    work = msgspec.structs.replace(again, kind=OperationKind.WORK)
    operations[at:at] = [again, work]


def scatter_a_key(operations: list[ClientOperation]) -> None:
    one = operations[0]
    operations[0] = msgspec.structs.replace(one, partition=1 - (one.partition or 0), offset=-1)


def work_twice(operations: list[ClientOperation]) -> None:
    at = _index(operations, OperationKind.WORK, 2)
    operations.insert(at, operations[at])


def read_another_time(operations: list[ClientOperation]) -> None:
    at = _index(operations, OperationKind.READ, 3)
    early = (operations[at].timestamp_ms or 0) - 2 * integrity.CLOCK_MS
    operations[at] = msgspec.structs.replace(operations[at], timestamp_ms=early)


def read_a_time_after_the_answer(operations: list[ClientOperation]) -> None:
    at = _index(operations, OperationKind.READ, 3)
    late = (operations[at].timestamp_ms or 0) + 2 * integrity.CLOCK_MS
    operations[at] = msgspec.structs.replace(operations[at], timestamp_ms=late)


def commit_nothing(operations: list[ClientOperation]) -> None:
    """Let the next member of the group begin where the first one began."""
    reads = [one for one in operations if one.kind is OperationKind.READ and one.partition == 0]
    operations[-1:] = [_of(OperationKind.ASSIGN, partition=0), *reads]


def skip_final_commit(operations: list[ClientOperation]) -> None:
    operations.pop(_index(operations, OperationKind.COMMIT, -1))


def continue_too_late(operations: list[ClientOperation]) -> None:
    """Let the next member of the group begin after a record that nobody has read."""
    sent = ClientOperation(
        kind=OperationKind.SEND, member=SENDER, key="k0", number=99, topic="t", partition=0
    )
    offset = 1 + sum(one.partition == 0 for one in operations if one.kind is OperationKind.SEND)
    late = msgspec.structs.replace(sent, offset=offset)
    read = msgspec.structs.replace(late, kind=OperationKind.READ, group="g", member="m")
    work = msgspec.structs.replace(read, kind=OperationKind.WORK)
    commit = _of(OperationKind.COMMIT, partition=0, offset=offset + 1)
    end = _of(OperationKind.POSITION, partition=0, offset=offset + 1)
    again = _of(OperationKind.ASSIGN, partition=0)
    operations[-1:] = [late, again, read, work, commit, end, operations[-1]]


def end_early(operations: list[ClientOperation]) -> None:
    operations.pop(_index(operations, OperationKind.POSITION, 0))


def work_in_another_thread(operations: list[ClientOperation]) -> None:
    at = _index(operations, OperationKind.WORK, 4)
    operations[at] = msgspec.structs.replace(operations[at], note="Thread-2")


BUGS = [
    skip_final_commit,
    continue_too_late,
    end_early,
    work_in_another_thread,
    acknowledge_without_offset,
    hand_over_twice,
    scatter_a_key,
    work_twice,
    commit_nothing,
    drop_read,
    read_another_time,
    read_a_time_after_the_answer,
    swap_reads,
    swap_records,
    repeat_read,
    skip_work,
    commit_too_far,
    acknowledge_elsewhere,
    read_something_else,
    hand_over_in_another_order,
]


@given(st.integers(0, 1_000))
def test_a_good_history_has_no_faults(seed: int) -> None:
    checked = integrity.check(good_history(seed), EXPECTED)
    assert checked.faults == []
    assert str(checked) == f"{checked.operations} operations checked"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_every_bug_is_noticed(bug: Callable[[list[ClientOperation]], None]) -> None:
    for seed in range(20):
        operations = good_history(seed)
        bug(operations)
        assert faults(operations), seed


def test_a_group_may_continue_at_any_commit_that_was_tried() -> None:
    operations = good_history(1)
    continue_too_late(operations)
    [fault] = faults(operations)
    assert "although its group had committed at most" in fault
    at = _index(operations, OperationKind.ASSIGN, -1)
    tried = _of(OperationKind.COMMIT, partition=0, offset=(operations[at + 1].offset or 0))
    unknown = msgspec.structs.replace(tried, outcome=OperationStatus.FAIL)
    assert faults([*operations[:at], unknown, *operations[at:]]) == []


def test_a_member_that_lost_its_partition_need_not_have_committed() -> None:
    operations = good_history(1)
    skip_final_commit(operations)
    assert any("ended without a commit" in fault for fault in faults(operations))
    lost = [_of(OperationKind.REVOKE, partition=part) for part in (0, 1)]
    assert faults([*operations[:-1], *lost, operations[-1]]) == []


def test_a_second_assignment_may_begin_anywhere() -> None:
    operations = good_history(1)[:-1]
    reads = [one for one in operations if one.kind is OperationKind.READ and one.partition == 0]
    again = [_of(OperationKind.ASSIGN, partition=0), *reads[5:]]
    moved = integrity.Expected(commits_after_work={MEMBER})
    assert integrity.check([*operations, *again], moved).faults == []


def test_a_lost_record_is_no_fault_of_the_client() -> None:
    """Accept that the log ends early, and that another record took the offset of a lost one."""
    operations = good_history(2)
    acknowledged = [one for one in operations if one.kind is OperationKind.SEND]
    lost = msgspec.structs.replace(
        acknowledged[0], key="lost", number=0, offset=acknowledged[0].offset
    )
    assert faults([lost, *operations]) == []


def test_a_log_that_lost_its_disk_begins_again() -> None:
    operations = good_history(2)
    acknowledge_elsewhere(operations)
    assert faults(operations)
    assert not integrity.check(operations, integrity.Expected(disk_lost=True)).faults


def test_an_offset_that_the_broker_does_not_tell_is_not_compared() -> None:
    operations = good_history(3)
    operations[0] = msgspec.structs.replace(operations[0], offset=-1)
    assert faults(operations) == []


def test_transactions_leave_gaps() -> None:
    operations = good_history(4)
    drop_read(operations)
    assert faults(operations)
    operations[0] = msgspec.structs.replace(operations[0], transaction="t-1")
    assert not any("after" in fault for fault in faults(operations))


def test_a_consumer_that_was_killed_need_not_have_worked() -> None:
    operations = good_history(5)[:-1]
    skip_work(operations)
    assert integrity.check(operations, integrity.Expected()).faults == []


def test_a_failed_commit_is_not_compared() -> None:
    operations = good_history(6)
    commit_too_far(operations)
    at = _index(operations, OperationKind.COMMIT, 0)
    operations[at] = msgspec.structs.replace(operations[at], outcome=OperationStatus.FAIL)
    assert faults(operations) == []


def test_only_a_few_faults_are_shown() -> None:
    found = integrity.Checked(9, [f"fault {number}" for number in range(7)])
    assert str(found) == "fault 0; fault 1; fault 2; fault 3; fault 4 and 2 more"
