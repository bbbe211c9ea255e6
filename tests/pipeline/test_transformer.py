"""Test how the records are found on which a transformation fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from pyspark.errors import PySparkException

from instep import errors
from instep.document.decoding import Record
from instep.pipeline import failures
from instep.pipeline.transformed import transformer
from instep.pipeline.transformed.transformer import Transformer

BAD, GOOD = b"bad", b"good"
Fails = Callable[[Sequence[Record]], str | None]


class Plan:
    """A plan whose jobs fail if a function says why."""

    def __init__(self, fails: Fails) -> None:
        self._fails = fails
        self.jobs: list[list[int]] = []

    def given(self, records: Sequence[Record]) -> list[str]:
        self.jobs.append([record.offset for record in records])
        if (why := self._fails(records)) is not None:
            raise PySparkException(why)
        return [f"made of {record.offset}" for record in records]

    def failed(self, record: Record, why: str) -> str:
        return f"{record.offset} failed: {why}"


def log(*values: bytes) -> list[Record]:
    return [Record(offset, 0, b"k", value, 0) for offset, value in enumerate(values)]


def on_bad(records: Sequence[Record]) -> str | None:
    return "no number" if any(record.value == BAD for record in records) else None


def test_only_the_record_that_fails_is_said_to_fail() -> None:
    found = Transformer(Plan(on_bad))(log(GOOD, GOOD, BAD, GOOD))
    assert found == ["made of 0", "made of 1", "2 failed: no number", "made of 3"]


@pytest.mark.parametrize("stops_at", range(1, 8))
def test_a_stop_never_makes_a_good_record_fail(stops_at: int) -> None:
    """The first jobs fail on a bad record. Then the flow is stopped, which cancels the jobs."""
    plan: Plan

    def is_stopped() -> bool:
        return len(plan.jobs) >= stops_at

    def fails(records: Sequence[Record]) -> str | None:
        return "cancelled as part of cancelled job group" if is_stopped() else on_bad(records)

    plan = Plan(fails)
    with pytest.raises(errors.StartAgain, match="stopped"):
        Transformer(plan, is_stopped)(log(BAD, GOOD, GOOD, GOOD))
    assert len(plan.jobs) == stops_at  # and nothing is tried after it


@pytest.mark.parametrize("lost", range(1, 5))
def test_a_job_that_fails_once_makes_no_record_fail(lost: int) -> None:
    """An executor may die, or somebody may end a job in Spark's pages."""
    plan: Plan

    def fails(records: Sequence[Record]) -> str | None:
        return "executor lost" if len(plan.jobs) == lost else on_bad(records)

    plan = Plan(fails)
    found = Transformer(plan)(log(GOOD, BAD, GOOD))
    assert found == ["made of 0", "1 failed: no number", "made of 2"]


def test_spark_that_fails_without_records_is_no_failure_of_a_record() -> None:
    with pytest.raises(errors.InstepError, match="the flow failed"):
        Transformer(Plan(lambda _: "no space"))(log(GOOD))


def test_an_error_of_a_task_is_raised_as_what_it_is() -> None:
    lost = str(failures.TaskFailed(errors.TopicMissing("the topic is gone")))
    with pytest.raises(errors.TopicMissing):
        Transformer(Plan(lambda _: lost))(log(GOOD, GOOD))


def test_records_are_transformed_in_jobs_of_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "BYTES_MAX", 100)
    headers = (("name", b"v" * 60), ("null", None))
    records = [Record(n, 0, b"k", None, 0, headers) for n in range(5)]
    plan = Plan(on_bad)
    assert len(Transformer(plan)(records)) == 5
    assert plan.jobs == [[0, 1], [2, 3], [4]]
