"""Test `instep bench sink`: its figures, wrong options, and one small run."""

from __future__ import annotations

import pytest

from instep import errors
from instep_bench import sink
from instep_bench.sink import SinkOptions


def test_a_door_is_compared_within_each_round() -> None:
    options = SinkOptions(rows=1_000, batches=2, rounds=2)
    measured = {
        sink.LARGE: {
            sink.NOOP: [[10.0, 10.0], [10.0, 10.0]],
            sink.FOR_EACH: [[50.0, 50.0], [100.0, 100.0]],
            sink.FORMAT: [[100.0, 100.0], [200.0, 200.0]],
            sink.JDBC: [[200.0, 200.0], [200.0, 200.0]],
        },
        sink.SMALL: {
            sink.NOOP: [[10.0, 11.0, 90.0], [20.0]],
            sink.FOR_EACH: [[20.0, 21.0, 99.0], [31.0]],
            sink.FORMAT: [[40.0], [50.0]],
            sink.JDBC: [[60.0], [70.0]],
        },
    }
    found = {
        (one.name, one.labels["contestant"]): one.values for one in sink.figures(options, measured)
    }
    assert found["throughput", sink.FOR_EACH] == [10_000, 5_000]
    assert found["throughput, compared with JDBC", sink.FOR_EACH] == [4, 2]
    assert found["added to a small batch", sink.FOR_EACH] == [10, 11]
    assert ("added to a small batch", sink.NOOP) not in found


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 0},
        {"rounds": 0},
        {"rows": 3, "batches": 4},
        {"small_batches": 101},
        {"target": "postgresql://app@db/shop"},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(errors.SettingsError):
        sink.run(SinkOptions(**wrong), lambda _: None, "")  # type: ignore[arg-type]


@pytest.mark.long
def test_a_small_run_measures_every_door() -> None:
    options = SinkOptions(
        target="sqlite", rows=400, batches=2, small_batches=2, documents=50, rounds=1
    )
    result = sink.run(options, lambda _: None, "instep bench sink")
    throughput = [one for one in result.figures if one.name == "throughput"]
    assert [one.labels["contestant"] for one in throughput] == list(sink.PROMISES)
    assert all(one.low > 0 for one in throughput)
