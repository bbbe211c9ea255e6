"""The demo as one self-contained HTML page, to send to a colleague."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from instep.demo import polling, story
from instep.demo.stage import ProgressSample, positions
from instep.demo.story import DemoResult
from instep.report import web_page
from instep.report.markup import figure
from instep.report.tables import Cell, Plot, PlotKind, ReportTable, Series

KIND = "demo"
POINTS_MAX = 150


def render(result: DemoResult, samples: Sequence[ProgressSample], commands: Sequence[str]) -> str:
    """Render the page of the demo."""
    return web_page.render(
        KIND,
        "instep demo: events instead of polling, through every fault",
        "instep.demo",
        "demo.html",
        result=result,
        scores=_scores(result),
        summary=_summary(result),
        race=_race(samples) if samples else None,
        call_s=polling.CALL_S,
        faults=_faults(result),
        life=_timeline(result),
        commands=commands,
    )


def _summary(result: DemoResult) -> dict[str, str]:
    freshness = result.freshness_ms
    return {
        "took": f"{figure(result.seconds)} s",
        "target": result.target,
        "applied": f"{result.applied:,} of {result.events:,} events; the others were late or"
        " repeated",
        "dead letters": f"{result.dead_letters:,}, malformed on purpose, each kept with its reason",
        "at full speed": f"{result.events_per_s:,.0f} events/s",
        "freshness": f"p50 {figure(freshness.p50)} ms, p99 {figure(freshness.p99)} ms"
        f" at {story.STEADY_PER_S:,} events/s",
    }


def _scores(result: DemoResult) -> list[tuple[str, int, str]]:
    """Return the differences of instep and of the naive loop, with the conditions."""
    naive = result.naive
    return [
        ("instep", result.differences, "pipeline and broker killed, the database locked"),
        (
            "a naive loop",
            naive.differences,
            f"the same events and the same kill: {story.naive_words(naive)}",
        ),
    ]


def _race(samples: Sequence[ProgressSample]) -> Plot:
    thinned = list(_thinned(samples))
    series = [
        Series("polling", [(one.at_s, round(one.polled_share * 100, 2)) for one in thinned]),
        Series("events", [(one.at_s, round(one.applied_share * 100, 2)) for one in thinned]),
    ]
    return Plot("Progress", "seconds since the start", "% done", series, kind=PlotKind.LINES)


def _faults(result: DemoResult) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            one.what,
            positions(one.before),
            positions(one.after),
            sum(one.before.values()),
            sum(one.after.values()),
            one.down_s,
        ]
        for one in result.faults
    ]
    head = [
        "fault",
        "ledger at the fault",
        "ledger at the next commit",
        "records before",
        "records after",
        "seconds between",
    ]
    return ReportTable("", head, rows)


def _timeline(result: DemoResult) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            step.place,
            step.status,
            step.version,
            step.happened.isoformat(timespec="milliseconds") if step.happened else "",
            step.freshness_ms,
            step.verdict,
        ]
        for step in result.life
    ]
    head = ["partition:offset", "status", "version", "happened", "freshness in ms", "verdict"]
    return ReportTable("", head, rows)


def _thinned(samples: Sequence[ProgressSample]) -> Iterator[ProgressSample]:
    """Yield at most POINTS_MAX samples, including the last one."""
    step = max(1, -(-len(samples) // POINTS_MAX))
    yield from reversed(samples[::-1][::step])
