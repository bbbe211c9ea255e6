"""Test the checkers: histories with exactly one anomaly, histories without, and mutations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep import errors
from instep_lab import checkers, history
from instep_lab.checkers import Anomalies
from instep_lab.history import ClientOperation, OperationKind, OperationStatus

Check = Callable[[list[ClientOperation]], Anomalies]
CHECKS: dict[str, Check] = {
    "lost": checkers.lost,
    "repeated": checkers.repeated,
    "inverted": checkers.inverted,
    "reordered": checkers.reordered,
    "unsent": checkers.unsent,
    "aborted": checkers.aborted,
}


def send(
    key: str,
    number: int,
    outcome: OperationStatus = OperationStatus.OK,
    transaction: str | None = None,
) -> ClientOperation:
    return ClientOperation(
        kind=OperationKind.SEND, outcome=outcome, key=key, number=number, transaction=transaction
    )


def read(key: str, number: int, offset: int, member: str = "m1") -> ClientOperation:
    return ClientOperation(
        kind=OperationKind.READ,
        group="g",
        member=member,
        key=key,
        number=number,
        partition=0,
        offset=offset,
    )


def work(key: str, number: int) -> ClientOperation:
    return ClientOperation(kind=OperationKind.WORK, group="g", key=key, number=number)


CLEAN = [send("a", 1), send("a", 2), read("a", 1, 0), work("a", 1), read("a", 2, 1), work("a", 2)]

# the one anomaly that a history has, or none
HISTORIES: list[tuple[str, list[ClientOperation]]] = [
    ("", CLEAN),
    ("", []),
    ("", [send("a", 1, OperationStatus.UNKNOWN)]),
    ("", [send("a", 1, OperationStatus.UNKNOWN), read("a", 1, 0), work("a", 1)]),
    ("", [send("a", 1, OperationStatus.FAIL), send("a", 2), read("a", 2, 0), work("a", 2)]),
    ("lost", [*CLEAN, send("a", 3)]),
    ("lost", [*CLEAN, send("a", 3), read("a", 3, 2)]),
    ("repeated", [*CLEAN, work("a", 2)]),
    (
        "inverted",
        [send("a", 1), send("a", 2), read("a", 1, 0), read("a", 2, 1), work("a", 2), work("a", 1)],
    ),
    (
        "",
        [send("a", 1), send("b", 1), read("a", 1, 0), read("b", 1, 1), work("b", 1), work("a", 1)],
    ),
    (
        "reordered",
        [send("a", 1), send("b", 1), read("a", 1, 5), read("b", 1, 4), work("a", 1), work("b", 1)],
    ),
    (
        "",
        [
            send("a", 1),
            send("b", 1),
            read("a", 1, 5),
            work("a", 1),
            ClientOperation(kind=OperationKind.ASSIGN, group="g", member="m1", partition=0),
            read("b", 1, 4),
            work("b", 1),
        ],
    ),
    ("unsent", [*CLEAN, read("z", 9, 2)]),
    (
        "aborted",
        [
            send("a", 1, transaction="t"),
            ClientOperation(
                kind=OperationKind.COMMIT, outcome=OperationStatus.FAIL, transaction="t"
            ),
            read("a", 1, 0),
            work("a", 1),
        ],
    ),
    (
        "",
        [
            send("a", 1, transaction="t"),
            ClientOperation(
                kind=OperationKind.COMMIT, outcome=OperationStatus.UNKNOWN, transaction="t"
            ),
            read("a", 1, 0),
            work("a", 1),
        ],
    ),
]


def test_going_back_means_a_repetition_after_a_later_record() -> None:
    assert not checkers.went_back([*CLEAN, work("a", 2)])
    found = checkers.went_back([*CLEAN, work("a", 1), work("b", 1)])
    assert (found.count, found.of, found.examples) == (1, 3, ("a#1",))
    assert not checkers.went_back([work("a", 2), work("a", 1)]), "an inversion is no repeat"


@pytest.mark.parametrize(
    ("anomaly", "operations"),
    HISTORIES,
    ids=[f"{name or 'none'} {number}" for number, (name, _) in enumerate(HISTORIES)],
)
def test_each_history_shows_exactly_its_anomaly(
    anomaly: str, operations: list[ClientOperation]
) -> None:
    assert {name for name, check in CHECKS.items() if check(operations)} == (
        {anomaly} if anomaly else set()
    )


@st.composite
def clean_histories(draw: st.DrawFn) -> list[ClientOperation]:
    """Generate interleaved keys, each in order, with every record sent, read and processed once."""
    order = draw(st.permutations([key for key in "abc" for _ in range(draw(st.integers(2, 5)))]))
    counts: dict[str, int] = {}
    operations = []
    for offset, key in enumerate(order):
        counts[key] = counts.get(key, 0) + 1
        operations += [
            send(key, counts[key]),
            read(key, counts[key], offset),
            work(key, counts[key]),
        ]
    return operations


@given(clean_histories(), st.data())
def test_one_loss_one_repetition_and_one_swap_are_all_found(
    operations: list[ClientOperation], data: st.DataObject
) -> None:
    assert not any(check(operations) for check in CHECKS.values())
    works = [number for number, one in enumerate(operations) if one.kind is OperationKind.WORK]
    chosen = data.draw(st.sampled_from(works))
    without = operations[:chosen] + operations[chosen + 1 :]
    assert checkers.lost(without).count == 1
    twice = [*operations, operations[chosen]]
    assert checkers.repeated(twice).count == 1
    mates = [
        number
        for number in works
        if operations[number].key == operations[chosen].key and number != chosen
    ]
    other = data.draw(st.sampled_from(mates))
    swapped = list(operations)
    swapped[chosen], swapped[other] = swapped[other], swapped[chosen]
    assert checkers.inverted(swapped).count >= 1
    assert not checkers.lost(swapped)
    assert not checkers.repeated(swapped)


def test_each_group_is_checked_separately() -> None:
    other = ClientOperation(kind=OperationKind.WORK, group="h", key="a", number=1)
    assert checkers.repeated([*CLEAN, other]).count == 1
    assert not checkers.repeated([*CLEAN, other], "g")
    assert checkers.lost(CLEAN, "h").count == 2


def test_the_order_is_checked_over_a_whole_topic() -> None:
    mixed = [
        send("a", 1),
        send("b", 1),
        send("a", 2),
        read("b", 1, 0),
        read("a", 1, 0),
        read("a", 2, 1),
    ]
    found = checkers.unsorted(mixed)
    assert (found.count, found.of, found.examples) == (1, 3, ("a#1",))
    assert not checkers.inverted(mixed, by=OperationKind.READ)


def test_pauses_and_shares_are_measured() -> None:
    reads = [
        ClientOperation(kind=OperationKind.READ, group="g", member=m, at_ns=at)
        for m, at in (("x", 1), ("y", 2), ("x", 12), ("x", 13))
    ]
    assert checkers.pauses(reads, "g", 5) == [10]
    assert checkers.shares(reads, "g") == {"x": 3, "y": 1}


def test_an_empty_history_proves_nothing() -> None:
    assert checkers.lost([]).share is None
    assert checkers.lost(CLEAN).share == 0.0


def test_a_history_survives_the_death_of_its_writer(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    with history.HistoryWriter(file) as history_writer:
        for operation in CLEAN:
            history_writer.note(operation)
    found = history.read(file)
    assert [(one.kind, one.record) for one in found] == [(one.kind, one.record) for one in CLEAN]
    assert all(one.at_ns for one in found)
    with file.open("ab") as stream:
        stream.write(b'{"kind": "se')
    assert history.read(file) == found
    assert history.merge([found[3:], found[:3]]) == found
    file.write_bytes(b"nonsense\n" + file.read_bytes())
    with pytest.raises(errors.InstepError, match="line 1 is not an operation"):
        history.read(file)


def test_a_sampled_history_has_the_first_and_the_last_operation_of_each_kind(
    tmp_path: Path,
) -> None:
    file = tmp_path / "history.jsonl"
    operations = [read("k1", number, number) for number in range(5)] + [send("k1", 9)]
    with history.HistoryWriter(file, sampled=True) as history_writer:
        for operation in operations:
            history_writer.note(operation)
        assert history_writer.count(OperationKind.READ) == 5
    found = [(one.kind, one.number) for one in history.read(file)]
    assert sorted(found) == [
        (OperationKind.READ, 0),
        (OperationKind.READ, 4),
        (OperationKind.SEND, 9),
    ]


def test_the_operations_around_a_record_are_its_own_and_its_neighbours() -> None:
    read_in_order = [number for number in range(20) if number != 9] + [9]
    operations = [send("k1", number) for number in range(20)]
    operations += [read("k1", number, offset) for offset, number in enumerate(read_in_order)]
    operations += [read("k2", 0, 20)]
    lines = history.around(operations, "k1#9", neighbours=2)
    assert [line.split("k1#")[1].split()[0] for line in lines] == ["9", "18", "19", "9"]
    assert lines[-1].endswith("read  ok  k1#9  partition 0 offset 19")


def test_the_order_of_a_topic_shows_among_the_records_of_all_keys() -> None:
    operations = [read(f"k{offset}", 0, offset) for offset in range(9)]
    assert len(history.around(operations, "k4#0", neighbours=2)) == 1
    lines = history.around(operations, "k4#0", neighbours=2, any_key=True)
    assert [line.split()[5] for line in lines] == ["k2#0", "k3#0", "k4#0", "k5#0", "k6#0"]


def test_a_record_that_a_group_did_not_read_is_shown_with_what_the_group_did() -> None:
    def of_group(kind: OperationKind, partition: int | None) -> ClientOperation:
        return ClientOperation(kind=kind, group="g", member="m1", partition=partition)

    sent = msgspec.structs.replace(send("k1", 0), partition=1)
    operations = [
        of_group(OperationKind.END, None),
        sent,
        of_group(OperationKind.ASSIGN, 0),
        of_group(OperationKind.ASSIGN, 1),
    ]
    lines = history.around_unread(operations, "k1#0", "g")
    assert [line.split()[-4:] for line in lines] == [
        ["s", "g/m1", "end", "ok"],
        ["ok", "k1#0", "partition", "1"],
        ["assign", "ok", "partition", "1"],
    ]
    assert history.around_unread(operations, "k9#0", "g") == []


def test_records_that_a_group_did_not_read_are_found() -> None:
    operations = [send("k1", 0), send("k1", 5), send("k1", 6), read("k1", 6, 2)]
    found = checkers.unread(operations, "g", first=5)
    assert (found.anomaly, found.count, found.examples) == ("unread", 1, ("k1#5",))


def test_nothing_is_around_a_record_that_nobody_mentions() -> None:
    assert history.around([send("k1", 0)], "k9#9") == []


def test_chosen_operations_are_shown_by_time_each_once() -> None:
    operations = [send("k1", number) for number in range(4)]
    lines = history.excerpt(operations, [operations[3], operations[1], operations[3]])
    assert [line.split()[-1] for line in lines] == ["k1#1", "k1#3"]
