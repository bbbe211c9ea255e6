"""Test the overview, the page of a pipeline, and what all pages have in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from instep import errors
from instep.console import charts, rendering
from instep.console.charts import ChartLine
from instep.console.pages import overview
from instep.console.sampling import PipelineSampler, StatusSample
from instep.console.server import ConsoleServer
from instep.operate.status import PipelineStatus, RunStatus
from tests.support.consoles import PIPELINE
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_the_start_url_opens_the_overview(page: Page, console: ConsoleServer) -> None:
    page.goto(console.start_url)
    assert page.url == console.address
    assert page.inner_text("h1") == "Overview"
    row = page.locator("tbody tr").filter(has_text=PIPELINE)
    row.get_by_text("dead letters").wait_for()
    assert "documents are parked" in row.inner_text()


def test_unknown_values_are_not_shown_as_zero(page: Page, console: ConsoleServer) -> None:
    """Show no freshness and no rate for a pipeline that has never run."""
    page.goto(console.address)
    row = page.locator("tbody tr").first
    row.get_by_text("never").wait_for()
    assert row.locator(".unknown").all_inner_texts().count("unknown") >= 3


def test_a_pipeline_has_a_page_that_survives_a_reload(page: Page, console: ConsoleServer) -> None:
    page.goto(console.address)
    page.get_by_role("link", name=PIPELINE).first.click()
    page.wait_for_url("**/pipeline?*")
    assert page.inner_text("h1") == f"Pipeline {PIPELINE}"
    url = page.url
    page.reload()
    assert page.url == url
    assert page.get_by_role("region", name="Partitions").locator("tbody tr").count() == 2
    page.go_back()
    assert page.inner_text("h1") == "Overview"


def test_times_are_local_with_utc_on_hover(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}pipeline?pipeline={PIPELINE}")
    time = page.locator("time").first
    utc, local = time.get_attribute("title"), time.inner_text()
    assert utc
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", utc)
    assert utc[14:19] == local[14:19]
    assert utc[11:13] != local[11:13]


def test_an_unknown_pipeline_has_a_clear_page(page: Page, console: ConsoleServer) -> None:
    answer = page.goto(f"{console.address}pipeline?pipeline=contract")
    assert answer
    assert answer.status == 400
    assert "there is no pipeline 'contract'" in page.inner_text("main")
    page.get_by_role("link", name="Overview").click()
    page.wait_for_url(console.address)
    assert page.inner_text("h1") == "Overview"


def test_an_unknown_page_has_a_clear_page(page: Page, console: ConsoleServer) -> None:
    answer = page.goto(f"{console.address}nowhere")
    assert answer
    assert answer.status == 404
    assert "there is no page /nowhere" in page.inner_text("main")


def test_a_stream_reports_the_state_as_it_changes(page: Page, console: ConsoleServer) -> None:
    page.goto(f"{console.address}pipeline?pipeline={PIPELINE}")
    before = page.locator("dt:text-is('Read') + dd").inner_text()
    page.wait_for_function(
        "before => [...document.querySelectorAll('dt')].find(t => t.textContent == 'Read')"
        ".nextElementSibling.textContent.trim() != before",
        arg=before.strip(),
    )


def test_a_page_without_a_cookie_is_refused(
    console: ConsoleServer, open_page: Callable[[str], Page]
) -> None:
    stranger = open_page(console.address)
    assert "Open the start URL" in stranger.inner_text("main")
    stranger.goto(f"{console.address}start?token=wrong")
    assert "token in this URL is wrong" in stranger.inner_text("main")
    stranger.goto(console.start_url)
    assert stranger.inner_text("h1") == "Overview"


@pytest.mark.parametrize(
    ("age_s", "values", "urgency", "words"),
    [
        (0, {}, overview.FINE, ""),
        (3600, {}, overview.ALARM, "this is an old state"),
        (0, {"run": RunStatus("dead", "")}, overview.ALARM, "presumed dead"),
        (
            0,
            {"run": RunStatus("stopped", "", code="TOPIC_GONE")},
            overview.ALARM,
            "stopped with TOPIC_GONE",
        ),
        (0, {"lag_seconds": 90.0}, overview.WARNING, "90.0 s behind"),
        (0, {"parked_documents": 1_000}, overview.WARNING, "1,000 documents are parked"),
        (0, {"notes": ["3 documents are overdue"]}, overview.WARNING, "3 documents are overdue"),
        (0, {"error": "no answer\nremedy"}, overview.ALARM, "no answer"),
    ],
)
def test_alarms_come_first(age_s: float, values: dict[str, Any], urgency: int, words: str) -> None:
    status = PipelineStatus("contracts", "t", "sqlite:///x", "exactly-once", **values)
    sample = StatusSample(datetime.now(UTC) - timedelta(seconds=age_s), status, 1)
    found, alarms = overview.alarms_of(sample)
    assert found == urgency
    assert words in "; ".join(alarms)


def test_servers_that_have_not_answered_yet_are_not_fine() -> None:
    assert overview.alarms_of(None) == (
        overview.WARNING,
        ["its servers have not answered yet"],
    )


def test_a_reading_that_fails_is_not_the_last_one() -> None:
    readings: list[int] = []

    def read() -> PipelineStatus:
        readings.append(1)
        raise RuntimeError("the value is 4711")

    sampler = PipelineSampler("contracts", read)
    sampler.start()
    found = sampler.watch(30)
    assert found is not None
    assert "RuntimeError" in (found.status.error or "")
    assert "4711" not in (found.status.error or "")
    wait_until(lambda: bool(sampler.watch()) and len(readings) > 1, "another reading")
    sampler.end()


def test_a_gap_in_a_chart_is_a_gap() -> None:
    line = ChartLine("lag", [(-30.0, 1.0), (-20.0, None), (-10.0, 3.0)])
    drawn = charts.chart("Lag", "records", [line], 60.0)
    assert drawn.count("<polyline") == 2
    apart = ChartLine("lag", [(-500.0, 1.0), (-440.0, 2.0), (-200.0, 3.0), (-190.0, 4.0)])
    assert charts.chart("Lag", "records", [apart], 600.0).count("<polyline") == 2
    assert "no values yet" in charts.chart("Lag", "records", [ChartLine("lag", [])], 60.0)


def test_the_charts_begin_with_what_the_runs_have_kept() -> None:
    """Ask for the past until it is known, and put it before the first sample."""
    answers: list[list[tuple[float, dict[str, float | None]]]] = []

    def read_past() -> list[tuple[float, dict[str, float | None]]]:
        if not answers:
            answers.append([])
            raise errors.DatabaseUnreachable("no answer")
        kept = {"lag": 7.0, "applied": 1.0, "p50": None, "p99": None}
        return [(90_000.0, kept), (600.0, kept), (0.0, kept)]

    status = PipelineStatus("contracts", "t", "sqlite:///x", "exactly-once", lag_records=1)
    sampler = PipelineSampler("contracts", lambda: status, read_past)
    for _ in range(3):
        sampler._take()
    assert [value for _, value in sampler.points("lag")] == [7.0, 1.0]


@pytest.mark.parametrize(
    ("state", "text"), [("running", "no events"), ("stopped", "unknown"), ("waiting", "unknown")]
)
def test_a_pipeline_without_events_has_no_freshness(state: str, text: str) -> None:
    macros = rendering.environment().get_template("macros.html").module
    assert text in macros.freshness_of(RunStatus(state, ""), None)  # type: ignore[attr-defined]


def test_times_in_sentences_are_times() -> None:
    shown = rendering.dated("stopped at 2026-11-19T21:00:00Z <b>, not 2026-99-99T99:99:99Z")
    assert shown.startswith('stopped at <time datetime="2026-11-19T21:00:00.000Z"')
    assert shown.endswith("&lt;b&gt;, not 2026-99-99T99:99:99Z")


def test_times_can_be_shown_in_utc(page: Page, console: ConsoleServer) -> None:
    """Reach UTC without a mouse, on all pages, also in parts that change."""
    page.goto(f"{console.address}pipeline?pipeline={PIPELINE}")
    time = page.locator("time").first
    local = time.inner_text()
    page.get_by_role("button", name="Show UTC").press("Enter")
    assert time.inner_text().endswith(" UTC")
    page.goto(f"{console.address}decisions")
    page.goto(f"{console.address}pipeline?pipeline={PIPELINE}")
    assert time.inner_text().endswith(" UTC")
    page.get_by_role("button", name="Show local times").click()
    assert time.inner_text() == local


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (rendering.number(None), "unknown"),
        (rendering.number(0), "0"),
        (rendering.number(1_234_567), "1,234,567"),
        (rendering.seconds(0.0123), "12 ms"),
        (rendering.seconds(90.0), "90.0 s"),
        (rendering.seconds(7_300.0), "2.0 h"),
        (rendering.freshness(1e6), "over 300 s"),
        (rendering.size(1_500_000), "1.5 MB"),
        (rendering.instant_ms(-1), "unknown"),
        (rendering.instant_ms(10**18), "1000000000000000000 ms"),
    ],
)
def test_numbers_are_shown_with_their_unit(shown: Any, text: str) -> None:
    assert text in str(shown)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ""),
        ("abcd", "abcd"),
        ("abcde", "abc…"),
        ("a\u202eb", "a\\u202eb"),
        ("abc\u202ed\u202e", "abc…"),
        ("ab\u202ed\u202e", "ab\\u202e…"),
    ],
)
def test_a_text_is_cut_between_its_characters(text: str | None, expected: str) -> None:
    """Never show half of an escaped character."""
    assert rendering.shortened(text, 4) == expected
