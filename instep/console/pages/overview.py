"""Overview: every pipeline, those that need attention first. And one pipeline with its charts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response

from instep.console import charts, rendering
from instep.console.charts import ChartLine
from instep.console.live import Part
from instep.console.requests import ConsolePage, PageRequest
from instep.console.sampling import KEPT_S, PipelineSampler, StatusSample
from instep.operate.status import PipelineStatus
from instep.sinks import runs

LAG_WARNING_S = 60.0
ALARM, WARNING, FINE = 0, 1, 2


class PipelineRow(msgspec.Struct, frozen=True):
    """A pipeline in the overview. Without a status, its servers have not answered yet."""

    name: str
    urgency: int
    alarms: list[str]
    status: PipelineStatus | None
    trend: str


def overview(view: PageRequest) -> Response:
    """Show every pipeline."""
    return view.render("overview.html", "Overview", **_overview_values(view))


def pipeline(view: PageRequest) -> Response:
    """Show one pipeline."""
    name = view.pipeline()
    return view.render("pipeline.html", f"Pipeline {name}", **_pipeline_values(view, name))


def alarms_of(sample: StatusSample | None) -> tuple[int, list[str]]:
    """Return how urgent a pipeline's state is, and why."""
    if sample is None:
        return WARNING, ["its servers have not answered yet"]
    found: list[tuple[int, str]] = []
    status, run = sample.status, sample.status.run
    if sample.is_stale:
        found.append(
            (ALARM, f"no answer since {sample.at:%Y-%m-%dT%H:%M:%SZ}: this is an old state")
        )
    if status.error:
        found.append((ALARM, status.error.partition("\n")[0]))
    if run is not None and run.state == "dead":
        found.append((ALARM, "presumed dead: no heartbeat"))
    elif run is not None and run.code:
        found.append((ALARM, f"stopped with {run.code}"))
    elif run is not None and run.state in (runs.STOPPED, "never"):
        found.append((WARNING, "it does not run"))
    elif run is not None and run.state == "waiting":
        found.append((WARNING, f"waits: {run.detail}"))
    if status.lag_seconds is not None and status.lag_seconds > LAG_WARNING_S:
        found.append((WARNING, f"{rendering.seconds(status.lag_seconds)} behind"))
    found += [(WARNING, note) for note in status.notes]
    if status.parked_documents:
        found.append((WARNING, f"{status.parked_documents:,} documents are parked"))
    if status.dead_letters:
        found.append((WARNING, f"{status.dead_letters:,} dead letters"))
    return min((urgency for urgency, _ in found), default=FINE), [text for _, text in found]


def _overview_values(view: PageRequest) -> dict[str, Any]:
    rows = [_row(sampler) for sampler in view.workspace.samplers.values()]
    return {"rows": sorted(rows, key=lambda row: (row.urgency, row.name))}


def _row(sampler: PipelineSampler) -> PipelineRow:
    sample = sampler.watch()
    status = sample.status if sample else None
    urgency, alarms = alarms_of(sample)
    trend = charts.spark("lag of the last hour", sampler.points("lag"), KEPT_S)
    return PipelineRow(sampler.name, urgency, alarms, status, trend)


def _pipeline_values(view: PageRequest, name: str) -> dict[str, Any]:
    sampler = view.workspace.sampler(name)
    sample = sampler.watch()
    status = sample.status if sample else None
    return {
        "name": name,
        "sample": sample,
        "status": status,
        "alarms": alarms_of(sample)[1],
        "charts": [
            charts.chart(
                "Events applied",
                "per second",
                [ChartLine("applied", sampler.points("applied"))],
                KEPT_S,
            ),
            charts.chart(
                "Freshness",
                "s",
                [
                    ChartLine("p50", sampler.points("p50")),
                    ChartLine("p99", sampler.points("p99")),
                ],
                KEPT_S,
            ),
            charts.chart("Lag", "records", [ChartLine("lag", sampler.points("lag"))], KEPT_S),
        ],
        "commands": [view.workspace.command("status", items=[name])],
    }


def _numbers(view: PageRequest, names: list[str]) -> tuple[object, ...]:
    samples = [view.workspace.sampler(name).watch(0.0) for name in names]
    return tuple((one.number, one.is_stale) if one else (0, False) for one in samples)


def live_overview(view: PageRequest) -> Part:
    """Return the table of the overview as it changes."""
    names = list(view.workspace.pipelines())

    def part() -> tuple[object, Callable[[], str]]:
        numbers = _numbers(view, names)

        def render() -> str:
            return rendering.render("overview_part.html", view=view, **_overview_values(view))

        return numbers, lambda: view.workspace.cached(("overview", numbers), 60.0, render)

    return part


def live_pipeline(view: PageRequest) -> Part:
    """Return the state of a pipeline as it changes."""

    def part() -> tuple[object, Callable[[], str]]:
        name = view.pipeline()
        numbers = _numbers(view, [name])

        def render() -> str:
            return rendering.render("pipeline_part.html", view=view, **_pipeline_values(view, name))

        return numbers, lambda: view.workspace.cached(("pipeline", name, numbers), 60.0, render)

    return part


PAGES = (ConsolePage("/", overview), ConsolePage("/pipeline", pipeline, of_pipeline=True))
STREAMS = {"/live/overview": live_overview, "/live/pipeline": live_pipeline}
