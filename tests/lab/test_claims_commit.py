"""Test claims about commits on a real broker; the others run the same code with other crashes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from instep_lab.claims import commit, rebalance, speed
from instep_lab.clients import committed_offsets, table
from instep_lab.clients.consuming import CommitMode
from instep_lab.clients.table import SqliteTable
from instep_lab.verdict import ClaimVerdict, PartOutcome, Role
from tests.lab.conftest import Settle

LONG = pytest.mark.long


@dataclass(frozen=True)
class FakeMessage:
    """What a table needs of a message."""

    place: int
    part: int = 0

    def value(self) -> bytes:
        return f"k{self.part}#{self.place}|".encode()

    def partition(self) -> int:
        return self.part

    def offset(self) -> int:
        return self.place


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        pytest.param("commit-1", ClaimVerdict.DEPENDS_ON_CLIENT, marks=LONG),
        pytest.param("commit-2", ClaimVerdict.RIGHT, marks=LONG),
        pytest.param("commit-3", ClaimVerdict.RIGHT, marks=LONG),
        pytest.param("commit-4", ClaimVerdict.RIGHT, marks=LONG),
        pytest.param("commit-6", ClaimVerdict.DEPENDS_ON_SETTING, marks=LONG),
        pytest.param("commit-7", ClaimVerdict.RIGHT, marks=LONG),
        pytest.param("commit-8", ClaimVerdict.DEPENDS_ON_SETTING, marks=LONG),
        pytest.param("commit-10", ClaimVerdict.WRONG, marks=LONG),
        pytest.param("commit-11", ClaimVerdict.DEPENDS_ON_SETTING, marks=LONG),
        pytest.param("commit-12", ClaimVerdict.RIGHT, marks=LONG),
        pytest.param("commit-13", ClaimVerdict.DEPENDS_ON_SETTING, marks=LONG),
        pytest.param("commit-14", ClaimVerdict.DEPENDS_ON_CLIENT, marks=LONG),
        pytest.param("commit-15", ClaimVerdict.DEPENDS_ON_SETTING, marks=LONG),
        ("commit-16", ClaimVerdict.RIGHT),
        pytest.param("commit-17", ClaimVerdict.RIGHT, marks=LONG),
        pytest.param("commit-18", ClaimVerdict.WRONG, marks=LONG),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: ClaimVerdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because


@LONG  # the speed of a busy machine decides it
def test_asynchronous_commits_are_faster_and_only_librdkafka_retries_them(settle: Settle) -> None:
    result = settle("commit-5")
    statements = {
        (part.client, part.statement): part.outcome
        for part in result.parts
        if part.role is Role.STATEMENT
    }
    passed, failed = PartOutcome.PASS, PartOutcome.FAIL
    assert statements == {
        ("Java", "asynchronous commit is faster"): passed,
        ("Java", "a commit without a response is not retried"): passed,
        ("Java", "an older commit overtakes a newer one"): failed,
        ("librdkafka", "asynchronous commit is faster"): passed,
        ("librdkafka", "a commit without a response is not retried"): failed,
        ("librdkafka", "an older commit overtakes a newer one"): passed,
        ("Java", "a synchronous commit without a response is retried until it succeeds"): passed,
        (
            "librdkafka",
            "a synchronous commit without a response is retried until it succeeds",
        ): passed,
    }, result.judgement.because
    assert result.verdict is ClaimVerdict.DEPENDS_ON_CLIENT


@LONG
def test_side_effects_beside_a_unique_row_are_repeated(settle: Settle) -> None:
    result = settle("commit-9")
    assert all(part.outcome is PartOutcome.PASS for part in result.parts), result.judgement.because


def test_commits_overtake_each_other_only_if_one_was_sent_again() -> None:
    def stored(*offsets: int) -> commit.DroppedCommits:
        return commit.DroppedCommits(len(offsets), list(offsets), 0, 0)

    once, again, back = stored(5, 10, 15), stored(5, 10, 10, 15), stored(5, 10, 15, 10)
    assert commit.overtakes([once]) is False
    assert commit.overtakes([once, again]) is None
    assert commit.overtakes([again, back]) is True
    assert back.steps[-1] == "stored as number 4: offset 10 (older than the one before)"
    assert once.steps == []


@pytest.mark.parametrize(
    ("stored", "failed", "retried"),
    [([5, 10, 10], 0, True), ([5, 10], 0, False), ([5, 10, 10], 1, None), ([5, 10], 1, None)],
)
def test_a_synchronous_commit_whose_time_ran_out_says_nothing(
    stored: list[int], failed: int, retried: bool | None
) -> None:
    assert commit.DroppedCommits(len(stored), stored, failed, 0).was_retried is retried


@pytest.mark.parametrize(
    ("best_async", "faster"), [(30_000.0, True), (7_000.0, None), (4_000.0, False)]
)
def test_asynchronous_commits_are_slower_only_if_their_best_round_is(
    best_async: float, faster: bool | None
) -> None:
    sync, asynchronous = CommitMode.SYNC, CommitMode.ASYNC
    speeds = {sync: [800.0, 5_000.0], asynchronous: [900.0, best_async]}
    assert commit._is_faster(speeds) is faster


@pytest.mark.parametrize(
    ("best", "claimed"), [(136_000.0, True), (60_000.0, None), (9_000.0, False)]
)
def test_the_best_round_decides_how_fast_a_server_is(best: float, claimed: bool | None) -> None:
    assert speed._is_claimed([1_000.0, best]) is claimed


@pytest.mark.parametrize(
    ("minutes", "near"), [(45.0, True), (47.0, True), (52.0, None), (60.0, False), (30.0, False)]
)
def test_a_time_between_near_and_far_is_undecided(minutes: float, near: bool | None) -> None:
    assert speed._is_near(60 * minutes) is near


@pytest.mark.parametrize(
    ("hanging", "commit_s", "waits"), [(20, 0.1, False), (0, 0.1, True), (0, 9.0, None)]
)
def test_that_no_commit_came_says_nothing_if_the_broker_is_slow(
    hanging: int, commit_s: float, waits: bool | None
) -> None:
    assert rebalance.HangingCommits(hanging, 12.0, 20, commit_s).waits is waits


def test_only_a_checked_offset_stops_a_writer_that_was_overtaken(tmp_path: Path) -> None:
    for checked in (False, True):
        file = tmp_path / f"{checked}.db"
        rows = SqliteTable(file, unique="", with_offset=True, checked=checked)
        written = [
            rows.write("topic", FakeMessage(offset), before_commit=lambda: None)  # type: ignore[arg-type]
            for offset in (0, 1, 2, 1)  # the last one by a writer that does not know of the others
        ]
        assert written == [True, True, True, not checked]
        assert len(table.work(file)) == table.total(file) == sum(written)
        assert rows.offsets("topic") == {0: 3 if checked else 2}
        rows.close()


def test_an_index_on_the_offset_alone_mixes_partitions_up(tmp_path: Path) -> None:
    counts = {}
    for unique in ("place", "part, place"):
        file = tmp_path / f"{unique}.db"
        rows = SqliteTable(file, unique=unique, with_offset=False, checked=False)
        for partition in (0, 1):
            rows.write("topic", FakeMessage(5, partition), before_commit=lambda: None)  # type: ignore[arg-type]
        rows.close()
        counts[unique] = len(table.work(file))
    assert counts == {"place": 1, "part, place": 2}


def test_keys_of_the_offsets_topic_are_decoded() -> None:
    group, topic = b"my-group", "thème".encode()
    key = (
        b"\x00\x01"
        + len(group).to_bytes(2, "big")
        + group
        + len(topic).to_bytes(2, "big")
        + topic
        + (7).to_bytes(4, "big")
    )
    assert committed_offsets.decode_key(key) == ("my-group", "thème", 7)
    assert committed_offsets.decode_key(b"\x00\x02" + key[2:]) is None
    assert committed_offsets.decode_key(b"") is None
