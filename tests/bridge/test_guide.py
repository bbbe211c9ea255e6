"""Test the guide: its example runs, and its codes are those of the code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from instep import settings
from instep.bridge.failures import REMEDIES, FailureCode
from instep.kafka import connection, reading
from instep.local.broker import LocalCluster
from tests.support.query_service import QueryService, Reply

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "poll-a-query-service.md"


def block(language: str) -> str:
    """Return the first block in this language."""
    text = GUIDE.read_text(encoding="utf-8")
    found = re.search(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_publishes_what_the_guide_says(tmp_path: Path, broker: LocalCluster) -> None:
    answer = re.search(
        r'^The answer `(\{"print".*?\})` for', GUIDE.read_text(encoding="utf-8"), re.M
    )
    assert answer is not None
    topic = "guide-of-poll"
    with QueryService() as service:
        service.replies["/api/documents/C-1"] = lambda _: Reply(200, answer[1].encode())
        text = block("toml").replace("https://print.example", service.url)
        (tmp_path / "instep.toml").write_text(text, encoding="utf-8")
        (tmp_path / "open-documents.txt").write_text("C-1\n", encoding="utf-8")
        *commands, last = re.findall(r"^\$ instep (.*)$", block("console"), re.MULTILINE)
        assert last == "poll"
        for command in commands:
            done = subprocess.run(
                [sys.executable, "-m", "instep", *command.replace("print-status", topic).split()],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "PRINT_TOKEN": "hush",
                    "NO_PROXY": "*",
                    "INSTEP__KAFKA__BOOTSTRAP": broker.bootstrap,
                    "INSTEP__BRIDGES__PRINT__TOPIC": topic,
                },
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
    with connection.Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        ranges = dict.fromkeys(range(4), (0, 100))
        (record,) = reading.read(cluster, topic, ranges)
    assert record.key == b"C-1"
    assert json.loads(record.value or b"") == json.loads(block("json"))


def test_the_guide_lists_every_code_and_every_code_has_a_remedy() -> None:
    listed = re.findall(r"^\| `([A-Z_]+)` \|", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [code.value for code in FailureCode]
    assert REMEDIES.keys() == set(FailureCode)
