"""Test that a second call of a sink in one micro-batch is noticed. Spark itself is not needed."""

from __future__ import annotations

import pytest

from instep import errors
from instep.spark_sink import definition
from instep.spark_sink.calls import CallLog
from instep.spark_sink.definition import SinkDefinition


def sink(url: str = "sqlite:///t.db", name: str | None = None) -> SinkDefinition:
    return definition.define(url, [definition.table("orders", key="id")], name=name)


def test_a_second_call_in_a_batch_is_refused() -> None:
    calls = CallLog()
    calls.refuse_second(sink(), "run", 3)
    calls.finish(sink(), "run", 3)

    with pytest.raises(errors.SinkCalledTwice, match="called twice in batch 3") as caught:
        calls.refuse_second(sink(), "run", 3)
    assert "union the rows" in caught.value.remedy


def test_of_two_calls_at_the_same_time_the_later_one_is_refused() -> None:
    calls = CallLog()
    calls.refuse_second(sink(), "run", 3)
    calls.refuse_second(sink(), "run", 3)
    calls.finish(sink(), "run", 3)

    with pytest.raises(errors.SinkCalledTwice):
        calls.finish(sink(), "run", 3)


@pytest.mark.parametrize(
    ("other", "run", "batch_id"),
    [
        (sink(name="orders of b"), "run", 3),
        (sink(url="sqlite:///other.db"), "run", 3),
        (sink(), "a new run", 3),
        (sink(), "run", 4),
    ],
)
def test_another_sink_run_or_batch_is_no_second_call(
    other: SinkDefinition, run: str, batch_id: int
) -> None:
    calls = CallLog()
    calls.finish(sink(), "run", 3)

    calls.finish(other, run, batch_id)


def test_a_call_may_follow_one_that_failed() -> None:
    calls = CallLog()
    calls.refuse_second(sink(), "run", 3)  # and the batch fails

    calls.refuse_second(sink(), "run", 3)
    calls.finish(sink(), "run", 3)
