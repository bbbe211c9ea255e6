"""Test the join of the sender's notes and the tasks' notes, on hand-made notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from instep.pipeline.apply.batch import ProbeEvent
from instep_bench import commit_log, latency_join
from instep_bench.commit_log import CommitTimes
from instep_bench.latency_join import EventTiming, SentEvent

MS = 1_000_000


def sent(offset: int, due: int, answered: int, *, partition: int = 0, late: int = 0) -> SentEvent:
    return SentEvent(offset, due * MS, (due + late) * MS, answered * MS, partition, offset)


def commit(
    first: int, last: int, began: int, opened: int, committed: int, partition: int = 0
) -> CommitTimes:
    return CommitTimes(partition, first, last, began * MS, opened * MS, committed * MS)


def timing(due: int, committed: int) -> EventTiming:
    return EventTiming(due * MS, committed * MS, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_a_life_is_divided_into_its_parts() -> None:
    [one], missing = latency_join.join([sent(5, 0, 7)], [commit(3, 9, 40, 60, 75)])
    assert missing == []
    assert (one.publish, one.wait, one.batch, one.write, one.total) == (7, 33, 20, 15, 75)


def test_a_late_sender_counts_against_the_result() -> None:
    [one], _ = latency_join.join([sent(0, 100, 190, late=80)], [commit(0, 0, 200, 201, 210)])
    assert (one.late_ms, one.publish, one.total) == (80, 90, 110)


def test_an_answer_after_the_fetch_adds_no_waiting_time() -> None:
    [one], _ = latency_join.join([sent(0, 0, 50)], [commit(0, 0, 30, 35, 40)])
    assert (one.publish, one.wait, one.batch, one.write) == (30, 0, 5, 5)
    assert one.publish + one.wait + one.batch + one.write == one.total


def test_the_first_commit_that_reaches_an_event_counts() -> None:
    seen = [
        commit(0, 4, 10, 11, 12),
        commit(0, 4, 50, 51, 52),
        commit(5, 9, 60, 61, 62),
        commit(0, 9, 1, 2, 3, partition=1),
    ]
    timings, missing = latency_join.join(
        [sent(4, 0, 1), sent(5, 0, 1), sent(9, 0, 1, partition=1), sent(10, 0, 1)], seen
    )
    assert [one.total for one in timings] == [12, 62, 3]
    assert [one.offset for one in missing] == [10]


def test_events_of_a_partition_without_commits_are_missing() -> None:
    assert latency_join.join([sent(0, 0, 1)], []) == ([], [sent(0, 0, 1)])


def test_a_commit_that_was_not_recorded_counts_as_the_next_one() -> None:
    timings, missing = latency_join.join(
        [sent(2, 0, 1)], [commit(0, 1, 5, 6, 7), commit(4, 6, 90, 95, 99)]
    )
    assert ([one.total for one in timings], missing) == ([99], [])


def test_percentiles() -> None:
    assert latency_join.percentiles(range(101)) == {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    assert latency_join.percentiles([7.0]) == {"p50": 7, "p90": 7, "p99": 7, "max": 7}
    assert latency_join.percentiles([]) == {}


def test_a_curve_says_only_what_there_are_events_for() -> None:
    assert latency_join.curve(range(101)) == [
        (1.0, 0),
        (1.33, 25),
        (2.0, 50),
        (4.0, 75),
        (10.0, 90),
        (20.0, 95),
        (50.0, 98),
        (100.0, 99),
    ]
    assert latency_join.curve([]) == []


def test_lives_are_divided_into_thirds() -> None:
    assert [len(part) for part in latency_join.thirds([timing(0, 1)] * 8)] == [3, 3, 2]
    assert latency_join.thirds([]) == []


def test_the_effect_of_a_fault_is_measured() -> None:
    timings = [
        timing(0, 90),
        timing(900, 1_050),
        timing(980, 5_000),
        timing(3_000, 5_100),
        timing(4_900, 5_200),
        timing(6_000, 6_100),
    ]
    delayed, seconds = latency_join.period(timings, 1_000 * MS)
    assert seconds == pytest.approx(4.1)
    assert [one.total for one in delayed] == [150, 4_020, 2_100]


def test_a_fault_without_effect_is_recognised() -> None:
    assert latency_join.period([timing(0, 90), timing(2_000, 2_100)], 1_000 * MS) == ([], 0.0)


def test_a_slow_machine_is_back_in_step_when_it_is_as_slow_as_before() -> None:
    timings = [timing(0, 900), timing(980, 5_000), timing(6_000, 7_500)]
    assert latency_join.period(timings, 1_000 * MS)[1] == pytest.approx(4.0)


def test_commits_of_a_process_are_recorded() -> None:
    lines = [
        "0 10 -1 -1 -1 contracts",
        "1 12 0 0 4 contracts",
        "1 15 0 0 4 contracts",
        "9 20 0 0 4 contracts",
        "1 21 1 0 3 contracts",
        "9 25 1 0 3 contracts",
        "0 30 -1 -1 -1 contracts",
        "1 31 0 5",
        "9 33 0 5 8 contra",
        "",
    ]
    assert commit_log.commits(lines, "contracts") == [
        CommitTimes(0, 0, 4, 10, 12, 20),
        CommitTimes(1, 0, 3, 10, 21, 25),
    ]


def test_an_open_transaction_of_an_earlier_task_does_not_count() -> None:
    lines = ["0 10 -1 -1 -1 a", "1 12 0 0 4 a", "0 30 -1 -1 -1 a", "1 31 0 0 4 a", "9 40 0 0 4 a"]
    assert commit_log.commits(lines, "a") == [CommitTimes(0, 0, 4, 30, 31, 40)]


def test_pipelines_of_one_process_are_separated() -> None:
    lines = [
        "0 10 -1 -1 -1 a",
        "1 12 0 0 4 a",
        "0 14 -1 -1 -1 of two words",
        "1 15 0 0 4 of two words",
        "9 20 0 0 4 a",
        "9 30 0 0 4 of two words",
    ]
    assert commit_log.commits(lines, "a") == [CommitTimes(0, 0, 4, 10, 12, 20)]
    assert commit_log.commits(lines, "of two words") == [CommitTimes(0, 0, 4, 14, 15, 30)]


def test_commits_are_read_by_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(commit_log.FOLDER, str(tmp_path))
    monkeypatch.setattr(commit_log, "_file", None)
    for name, partition in (("a", 0), ("b", 1)):
        commit_log.note(ProbeEvent(name, commit_log.BEGAN))
        for step in (commit_log.OPENED, 5, commit_log.COMMITTED):
            commit_log.note(ProbeEvent(name, step, partition, 3, 7))
    [found] = commit_log.read(tmp_path, "b")
    assert (found.partition, found.first, found.last) == (1, 3, 7)
    assert found.began_ns < found.opened_ns < found.committed_ns
    assert commit_log.read(tmp_path, "b", since_ns=found.committed_ns) == []
    assert commit_log.read(tmp_path, "c") == []
