"""Test `instep bench archive`: its figures, wrong options, and one small run."""

from __future__ import annotations

import pytest

from instep import errors
from instep_bench import archive
from instep_bench.archive import ArchiveOptions, ArchivingRun


def test_figures_are_per_event() -> None:
    options = ArchiveOptions(events=1_000)
    measured = {archive.ARCHIVE: [ArchivingRun(2.0, 4, 50_000), ArchivingRun(4.0, 4, 60_000)]}
    throughput, size = archive.figures(options, measured)
    assert throughput.values == [500, 250]
    assert size.values == [50, 60]


@pytest.mark.parametrize("wrong", [{"events": 0}, {"rounds": 0}, {"events": 5, "documents": 6}])
def test_wrong_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(errors.SettingsError):
        archive.run(ArchiveOptions(**wrong), lambda _: None, "")  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_small_run_measures_both() -> None:
    options = ArchiveOptions(events=2_000, documents=100, partitions=2, rounds=1)
    result = archive.run(options, lambda _: None, "instep bench archive")
    throughput = [one for one in result.figures if one.name == "throughput"]
    assert [one.labels["contestant"] for one in throughput] == list(archive.PROMISES)
    assert all(one.low > 0 for one in throughput)
