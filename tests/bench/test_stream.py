"""Test `instep bench stream`: its figures, wrong options, and one small run."""

from __future__ import annotations

import pytest

from instep import errors
from instep_bench import stream
from instep_bench.stream import StreamOptions


def test_figures_are_events_per_second() -> None:
    measured = {name: [2.0, 4.0] for name in stream.KINDS} | {stream.COPY: [1.0, 1.0]}
    found = list(stream.figures(StreamOptions(events=1_000), measured))
    by_name = {one.labels["contestant"]: one.values for one in found}
    assert by_name[stream.COPY] == [1_000, 1_000]
    assert by_name[stream.BOTH] == [500, 250]
    speeds = {row[0]: row[1:3] for row in stream.speed_table(found).rows}
    assert speeds[stream.BOTH] == [375, "at least 80,000"]
    ratios = {row[0]: row[2] for row in stream.ratio_table(found).rows}
    assert ratios == {stream.COPY: 2.67, stream.BOTH: 1}


@pytest.mark.parametrize("wrong", [{"events": 0}, {"rounds": 0}, {"events": 5, "documents": 6}])
def test_wrong_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(errors.SettingsError):
        stream.run(StreamOptions(**wrong), lambda _: None, "")  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_small_run_measures_all() -> None:
    options = StreamOptions(target="sqlite", events=2_000, documents=100, partitions=2, rounds=1)
    result = stream.run(options, lambda _: None, "instep bench stream")
    assert [one.labels["contestant"] for one in result.figures] == list(stream.KINDS)
    assert all(one.low > 0 for one in result.figures)
