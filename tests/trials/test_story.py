"""The demo, as a user runs it, on a database that is not the default one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from instep.trials import polling
from tests.sinks.conftest import run_sql


def test_the_demo_ends_with_no_differences_and_leaves_nothing(new_database: Callable[[str], str], tmp_path: Path) -> None:
    url = new_database("postgres")
    command = [sys.executable, "-m", "instep", "demo", "--json", "--documents", "3000", "--target", url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["differences"] == 0
    assert (found["documents"], found["restarts"], found["polling_sampled"]) == (3000, 1, 10)
    assert found["applied"] == 4 * 3000
    assert found["events"] == found["applied"] + 40
    assert found["dead_letters"] == 8
    assert found["polling_s"] >= 0.3 * 3000
    assert found["apply_s"] > 0
    assert set(found["freshness_ms"]) == {"p50", "p99"}
    assert "extrapolated" in done.stderr
    assert run_sql(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == []
    assert list(tmp_path.iterdir()) == []


def test_the_query_service_takes_its_time() -> None:
    with polling.QueryService({"d 1": "PRINTED"}, call_s=0.05) as service:
        found, seconds = polling.poll(service.port, ["d 1", "other/ü"])
    assert found == {"d 1": "PRINTED", "other/ü": None}
    assert seconds >= 0.1


def test_polling_over_several_connections_asks_for_every_document_once() -> None:
    documents = [f"doc-{number}" for number in range(7)]
    with polling.QueryService(dict.fromkeys(documents, "PRINTED"), call_s=0.01) as service:
        found, seconds = polling.poll_at_once(service.port, documents, 3)
    assert found == dict.fromkeys(documents, "PRINTED")
    assert seconds >= 0.03
