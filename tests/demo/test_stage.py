"""Test how the demo is shown: bars on a terminal, lines elsewhere, and a page."""

from __future__ import annotations

import contextlib
import io
import re
from datetime import UTC, datetime

import pytest
from rich.console import Console

from instep.demo import report, stage
from instep.demo.stage import DemoTerminal, ProgressSample
from instep.demo.story import DemoResult, Freshness, Naive, Outage, StoryEvent
from instep.terminal import BAR_DONE, Tone

SAMPLE = ProgressSample(
    31.4, 9_000, 105, 2_700.0, 36_073, 18_036, {0: 4509, 1: 4509, 2: 4509, 3: 4509}
)
HOSTILE = "<script>alert(1)</script>\x1b[2J[red]"
RESULT = DemoResult(
    documents=9_000,
    events=36_065,
    applied=36_000,
    dead_letters=8,
    restarts=2,
    apply_s=3.5,
    outage_s=6.8,
    events_per_s=7_700,
    freshness_ms=Freshness(279.0, 982.0),
    polling_s=2_700.0,
    polling_sampled=190,
    differences=0,
    naive=Naive(26, 25, 0, 1),
    faults=[Outage("kill -9 of the broker", {0: 10, 1: 20}, {0: 15, 1: 20}, 4.2)],
    document=HOSTILE,
    life=[
        StoryEvent("0:12", HOSTILE, 3, datetime(2026, 11, 1, 8, tzinfo=UTC), "stale", 12.5),
        StoryEvent("0:13", "X", None, None, "dead", None),
    ],
    dead_letter="0:9",
    target="sqlite:////demo/contracts.db",
    seconds=58.0,
)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_polling_bar_is_behind_the_event_bar(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, record=True, markup=False)
    console.print(stage.render(SAMPLE, width))
    polling, events, ledger = (line.rstrip() for line in console.export_text().splitlines())
    assert max(map(len, (polling, events, ledger))) <= width
    assert polling.endswith("105 of 9,000 documents, 44:28 left")
    assert events.endswith("18,036 of 36,073 records applied")
    assert polling.count(BAR_DONE) == 1
    assert events.count(BAR_DONE) >= 12
    assert ledger == "0:31     ledger 0:4509 1:4509 2:4509 3:4509"


def test_output_without_a_terminal_is_plain_lines() -> None:
    stream = io.StringIO()
    with DemoTerminal(stream) as shown:
        shown.say("kill -9 of the pipeline\x1b[2J", Tone.BAD)
        shown.show(SAMPLE)
    assert stream.getvalue() == "kill -9 of the pipeline\\x1b[2J\n"


def test_the_terminal_keeps_the_lines_and_its_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Tty()
    with contextlib.suppress(SystemExit), DemoTerminal(stream) as shown:
        shown.show(SAMPLE)
        shown.say("kill -9 of [bold]the pipeline", Tone.BAD)
        raise SystemExit(130)
    assert "\x1b[31mkill -9 of [bold]the pipeline" in stream.getvalue()
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


def test_the_page_is_complete_and_harmless() -> None:
    page = report.render(RESULT, [SAMPLE] * 400, ["instep --config 'a b/instep.toml' show <x>"])
    assert "<script" not in page
    assert "\x1b" not in page
    assert re.findall(r'src="(.{0,26})', page) == ["data:image/svg+xml;base64,"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J[red]" in page
    assert 'class="verdict right">0<' in page
    assert 'class="verdict wrong">26<' in page
    assert "25 with an older status, 1 unknown document" in page
    assert "0:10 1:20" in page
    assert "45 minutes (extrapolated)" in page
    assert "show &lt;x&gt;" in page


def test_a_page_may_lack_samples_and_commands() -> None:
    page = report.render(RESULT, [], [])
    assert "Try it" not in page
    assert "<img" not in page
