"""Test the example that plots KPIs: with one command, from events to a picture."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from instep.local.broker import LocalCluster
from tests.support.databases import run_sql

PROGRAM = Path(__file__).parents[1] / "examples" / "kpi_dashboard" / "run.py"


@pytest.mark.long  # the guide about KPIs runs the same calls in every test run
def test_an_hour_of_events_becomes_a_plot(broker: LocalCluster, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, str(PROGRAM), "--bootstrap", broker.bootstrap),
            *("--topic", f"kpis-{uuid.uuid4().hex[:8]}", "--folder", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "4,500 counted" in done.stdout
    statuses = "SELECT sum(count) FROM print_kpis WHERE kind = 'status'"
    assert run_sql(f"sqlite:///{tmp_path}/kpis.db", statuses) == [(4_500,)]
    drawn = ET.parse(tmp_path / "kpis.svg")
    assert {"QUEUED", "PRINTED", "p95"} <= {text.text for text in drawn.iter() if text.text}
