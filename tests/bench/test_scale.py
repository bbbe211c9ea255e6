"""Test which points are measured and how they are reported, with one small run on real servers."""

from __future__ import annotations

import msgspec
import pytest

from instep import errors
from instep.local import broker as kafka
from instep.report import plots
from instep_bench import scale, scale_report
from instep_bench.meters import MemorySample
from instep_bench.scale_report import Conditions, ScaleRound


def test_each_dimension_is_varied_alone() -> None:
    options = scale.ScaleOptions()
    points = scale.points(options, has_distance=True)
    assert {name: list(values) for name, values in points.items()} == {
        "documents": ["10000", "1000000", "10000000"],
        "events": ["100000", "1000000", "10000000"],
        "partitions": ["1", "4", "12", "48"],
        "distance": ["0", "1", "5", "20"],
        "master": ["local[1]", "local[2]", "cluster"],
    }
    base = msgspec.structs.replace(scale.BASE, events=options.base_events)
    assert (
        points["events"]["100000"]
        == points["partitions"]["4"]
        == points["master"]["local[2]"]
        == base
    )
    for values in points.values():
        for point in values.values():
            changed = [
                field
                for field in base.__struct_fields__
                if getattr(point, field) != getattr(base, field)
            ]
            assert len(changed) <= 1
    assert "distance" not in scale.points(options, has_distance=False)


@pytest.mark.parametrize("documents", [1, 2, 3, 10, 97, 1_000, 1_024, 7_919])
def test_events_visit_every_document_once_per_cycle(documents: int) -> None:
    found = list(scale.events(documents, 0, 2 * documents))
    for cycle in (0, 1):
        part = found[cycle * documents : (cycle + 1) * documents]
        assert len({sent.key for sent in part}) == documents
        assert all(f'"version": {cycle + 1},'.encode() in sent.value for sent in part)
    assert list(scale.events(documents, documents, 1)) == found[documents : documents + 1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": "oracle"},
        {"rounds": 0},
        {"partitions": (0,)},
        {"delays_ms": (-1,)},
        {"masters": ("yarn",)},
        {"documents": (), "events": (), "partitions": (), "delays_ms": (), "masters": ()},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(errors.SettingsError):
        scale.run(scale.ScaleOptions(**wrong), print, "instep bench scale")  # type: ignore[arg-type]


def example_run() -> scale_report.ScaleRun:
    points = scale.points(scale.ScaleOptions(masters=("local[1]", "cluster")), has_distance=True)
    wanted = {point for values in points.values() for point in values.values()}

    def measured(point: Conditions) -> list[ScaleRound]:
        cpu = {
            "driver": 0.1,
            "jvm": 0.5,
            "workers": 0.4,
            "executors": 1.0,
            "database": 0.5,
            "broker": 0.1,
        }
        return [ScaleRound(point.events, seconds, cpu, 900.0) for seconds in (1.0, 3.0, 2.0)]

    trips = {point: 2.2 for point in wanted if point.delay_ms is not None}
    return scale_report.ScaleRun(
        points, {point: measured(point) for point in wanted}, trips, "postgres"
    )


def test_figures_report_the_observations() -> None:
    reported = {figure.key: figure for figure in scale_report.figures(example_run())}
    assert len(reported) == len(scale_report.figures(example_run()))
    labels = (("dimension", "events"), ("value", "1000000"))
    assert reported["cost per event", labels].values == [1, 3, 2]
    assert reported["throughput", labels].better == "more"
    assert reported["CPU per event", (labels[0], ("role", "pipeline"), labels[1])].median == 2
    assert reported["round trip", (("dimension", "distance"), ("value", "5"))].values == [2.2]
    [by_distance] = [
        table for table in scale_report.tables(example_run()) if "one way" in table.title
    ]
    assert by_distance.rows[0] == [0, 2.2, 20, 10, 30, 1, 20, 5, 900]
    assert any("cluster" in note for note in scale_report.notes(example_run()))
    assert all("no values" not in plots.svg(plot) for plot in scale_report.plots(example_run()))


def test_memory_is_summed_at_one_time() -> None:
    samples = {
        "jvm": [MemorySample(0, 0, 500), MemorySample(1, 0, 600)],
        "workers": [MemorySample(0, 0, 300), MemorySample(1, 0, 100)],
        "broker": [],
    }
    assert scale_report.together_mb(samples) == 800
    assert scale_report.together_mb({}) == 0


@pytest.mark.long
def test_a_small_run_has_a_result(
    broker: kafka.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "WARM_UPS", 1)
    options = scale.ScaleOptions(
        target="sqlite",
        documents=(700,),
        events=(),
        partitions=(),
        delays_ms=(),
        masters=(),
        rounds=1,
        base_events=1_000,
        bootstrap=broker.bootstrap,
    )
    result = scale.run(options, print, "instep bench scale")
    costs = [figure for figure in result.figures if figure.name == "cost per event"]
    assert [figure.labels["value"] for figure in costs] == ["700"]
    assert all(figure.median > 0 for figure in costs)
    assert result.options["documents"] == "700"
