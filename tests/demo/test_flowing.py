"""Test the demo that keeps events flowing beside the console."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from instep import settings
from instep.local.paths import python_environment
from instep.sinks import ledger_reader
from tests.support.waiting import wait_until


@pytest.mark.long
def test_events_flow_and_the_console_shows_them(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "instep", "demo", "--console", "--documents", "100"]
    environment = {**python_environment(), "DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": ""}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        start_url = demo.stdout.readline().strip()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with opener.open(start_url) as overview:
            assert "contracts" in overview.read().decode()
        declared = settings.load(tmp_path / "instep-demo" / "instep.toml")
        pipeline = declared.pipelines["contracts"]

        def applied() -> int:
            ledger = ledger_reader.ledger("contracts", pipeline)
            return sum(position.next_offset for position in ledger.values())

        before = applied()
        wait_until(lambda: applied() > before, "events to flow")
        demo.send_signal(signal.SIGINT)
        assert demo.wait(120) == 130
