"""The demo as one HTML page that needs nothing else, to send to a colleague. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from instep.demo import polling, story
from instep.demo.stage import ProgressSample, positions
from instep.demo.story import DemoResult
from instep.report import web_page
from instep.report.markup import element, escaped, figure, prose
from instep.report.tables import Cell, Plot, PlotKind, ReportTable, Series

KIND = "demo"
POINTS_MAX = 150


def render(result: DemoResult, samples: Sequence[ProgressSample], commands: Sequence[str]) -> str:
    """Return the page."""
    body = (
        _header(result)
        + _race(result, samples)
        + _faults(result)
        + _life(result)
        + _commands(commands)
    )
    return web_page.document(KIND, "instep demo: events instead of polling, whatever dies", body)


def _header(result: DemoResult) -> str:
    told = (
        f"A print system published {result.events:,} status changes of {result.documents:,} documents to Kafka, and instep kept a"
        f" table in step with them through {len(result.faults)} faults. Afterwards every document was compared with the source:"
    )
    facts = {
        "took": f"{figure(result.seconds)} s",
        "target": result.target,
        "applied": f"{result.applied:,} of {result.events:,} events; the others were late or repeated",
        "dead letters": f"{result.dead_letters:,}, malformed on purpose, each kept with its reason",
        "at full speed": f"{result.events_per_s:,.0f} events/s",
        "freshness": f"p50 {figure(result.freshness_ms.p50)} ms, p99 {figure(result.freshness_ms.p99)} ms"
        f" at {story.STEADY_PER_S:,} events/s",
    }
    return element(
        "header",
        element("h1", "Events instead of polling")
        + element("p", escaped(told))
        + _scores(result)
        + web_page.facts(facts),
    )


def _scores(result: DemoResult) -> str:
    """The counts that the demo is about, side by side."""
    naive = result.naive
    rows: list[tuple[str, int, str]] = [
        ("instep", result.differences, "pipeline and broker killed, the database locked"),
        (
            "a naive loop",
            naive.differences,
            f"the same events and the same kill: {story.naive_words(naive)}",
        ),
    ]
    cells = (
        element("td", escaped(name))
        + element(
            "td", element("span", f"{count:,}", class_=f"verdict {'wrong' if count else 'right'}")
        )
        + element("td", escaped(words))
        for name, count, words in rows
    )
    return web_page.grid(("way", "differences", "under"), cells)


def _race(result: DemoResult, samples: Sequence[ProgressSample]) -> str:
    thinned = list(_thinned(samples))
    series = [
        Series("polling", [(one.at_s, round(one.polled_share * 100, 2)) for one in thinned]),
        Series("events", [(one.at_s, round(one.applied_share * 100, 2)) for one in thinned]),
    ]
    words = (
        f"Polling asked for {result.polling_sampled:,} of {result.documents:,} documents meanwhile, {polling.CALL_S:g} s a call;"
        f" a whole round would take {result.polling_s / 60:.0f} minutes (extrapolated)."
    )
    plot = Plot(
        "How much is known", "seconds since the start", "% done", series, kind=PlotKind.LINES
    )
    return element(
        "section",
        element("h2", "The race")
        + element("p", escaped(words))
        + (web_page.plotted(plot) if thinned else ""),
    )


def _faults(result: DemoResult) -> str:
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
        "ledger when it came",
        "ledger at the next commit",
        "records before",
        "records after",
        "seconds between",
    ]
    words = (
        "The ledger holds the next offset of each partition, as partition:offset. It is committed in the transaction that writes"
        " the rows, so after a fault the pipeline goes on exactly where the table stands."
    )
    return element(
        "section",
        element("h2", "Faults")
        + element("p", escaped(words))
        + web_page.table(ReportTable("", head, rows)),
    )


def _life(result: DemoResult) -> str:
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
    words = "`stale` is an event that came after a later one: it is kept in the history and changes nothing."
    title = element("h2", f"The life of {escaped(result.document)}")
    return element(
        "section", title + element("p", prose(words)) + web_page.table(ReportTable("", head, rows))
    )


def _commands(commands: Sequence[str]) -> str:
    if not commands:
        return ""
    words = "On the machine where the demo ran, as long as its folder is there:"
    return element(
        "section",
        element("h2", "To try")
        + element("p", words)
        + element("pre", "\n".join(map(escaped, commands))),
    )


def _thinned(samples: Sequence[ProgressSample]) -> Iterator[ProgressSample]:
    """Yield at most so many samples, the last one among them."""
    step = max(1, -(-len(samples) // POINTS_MAX))
    yield from reversed(samples[::-1][::step])
