"""Test the page of a benchmark.

It shows the whole result and draws its spread. No text becomes markup, and nothing is loaded from
elsewhere.
"""

from __future__ import annotations

import msgspec

from instep.report.tables import Plot, PlotKind, ReportTable, Series
from instep_bench import charts, page
from instep_bench.result import BenchResult, Figure
from tests.bench import examples
from tests.support.web_pages import HOSTILE, self_contained


def test_the_page_shows_the_whole_result() -> None:
    text = page.render({"one": examples.result(target="postgres")})
    parsed = self_contained(text)
    shown = " ".join(parsed.text)
    for words in (
        *(
            "instep bench apply --rounds 3",
            "a fast one",
            "4.3.1",
            "12.5 s",
            "exactly-once",
            "throughput",
            "peak memory",
        ),
        *(
            "contestant",
            "110",
            "100",
            "120",
            "Freshness",
            "Memory",
            "promises less",
            "lowest",
            "postgres",
        ),
    ):
        assert words in shown, words
    assert parsed.tags.count("img") == 3
    assert parsed.tags.count("figure") == parsed.tags.count("summary") - 1
    [policy] = [value for _, value in parsed.attributes if value.startswith("default-src")]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")


def test_a_page_of_several_results_links_to_each() -> None:
    parsed = self_contained(page.render({"one": examples.result(), "two": examples.result()}))
    links = [value[1:] for name, value in parsed.attributes if name == "href"]
    assert len(links) == 2
    assert set(links) <= {value for name, value in parsed.attributes if name == "id"}


def test_hostile_text_stays_text() -> None:
    hostile = HOSTILE.replace("\ud800", "")
    figure = Figure(
        name=hostile, unit=hostile, better="less", labels={hostile: hostile}, values=[1.0, 2.0]
    )
    result = BenchResult(
        bench="scale",
        command=hostile,
        begun_at=hostile,
        seconds=1.0,
        options={hostile: hostile},
        machine={hostile: hostile},
        releases={hostile: hostile},
        figures=[figure],
        tables=[ReportTable(hostile, [hostile], [[hostile]])],
        plots=[
            charts.bars(hostile, [figure], x=hostile, by=hostile),
            charts.curves(hostile, [figure], x=hostile),
            Plot(
                hostile, hostile, hostile, [Series(hostile, [(hostile, 1.0)])], kind=PlotKind.HEAT
            ),
        ],
        notes=[hostile],
    )
    text = page.render({hostile: result, "two": result})
    parsed = self_contained(text)
    assert "script" not in parsed.tags
    assert "<script>alert(1)</script>" in "".join(parsed.text)


def test_figures_are_tabulated_by_their_labels() -> None:
    first, second = page.figures(examples.FIGURES)
    assert first.columns == [
        "figure",
        "target",
        "contestant",
        "median",
        "lowest",
        "highest",
        "unit",
        "rounds",
    ]
    assert first.rows[0] == ["throughput", "postgres", "instep", 110.0, 100.0, 120.0, "events/s", 3]
    assert second.rows == [["peak memory", "jvm", 700.0, 700.0, 700.0, "MB", 1]]


def test_percentiles_and_curves() -> None:
    [distribution] = charts.percentiles("t", {"none": [], "two": [1.0, 3.0]}, unit="ms").series
    assert distribution.points[0] == (0.0, 1.0)
    assert (50.0, 2.0) in distribution.points
    assert distribution.points[-1] == (100.0, 3.0)
    curve = charts.curves(
        "t",
        [examples.speed([3.0, 1.0], documents="1000"), examples.speed([5.0], documents="many")],
        x="documents",
    )
    assert [(one.points, one.spread) for one in curve.series] == [
        ([(1000.0, 2.0), ("many", 5.0)], [(1.0, 3.0), None])
    ]
    assert msgspec.json.decode(msgspec.json.encode(curve), type=Plot) == curve
