"""Test that no message can control the terminal: no escapes, line breaks or directions."""

from __future__ import annotations

import json
import re
import subprocess
import unicodedata
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from instep import settings
from instep.kafka import connection, topics
from instep.local.broker import LocalCluster
from tests.support.cli import instep, settings_text
from tests.support.producing import IN_ORDER
from tests.support.terminals import HOSTILE

MORE = '\n[pipelines.contracts.transitions]\nCREATED = ["QUEUED"]\nQUEUED = ["PRINTED"]\n'


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, broker: LocalCluster) -> Path:
    """Make a folder in which a pipeline has read hostile ids, statuses and values."""
    folder, topic = tmp_path_factory.mktemp("terminal"), f"cli-{uuid.uuid4().hex[:8]}"
    text = settings_text(bootstrap=broker.bootstrap, topic=topic).replace(
        'print_status = "status"', 'print_status = "status"\nnote = "note"'
    )
    (folder / "instep.toml").write_text(text + MORE, encoding="utf-8")
    with connection.Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        topics.create(cluster, topic, 1, config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    assert instep(folder, "init").returncode == 0
    producer = Producer({"bootstrap.servers": broker.bootstrap, **IN_ORDER})
    for key, value in records():
        raw = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
        producer.produce(topic, key=key, value=raw, timestamp=10**15, partition=0)
    assert producer.flush(30) == 0
    done = run(folder, "run", "--once")
    assert "3 applied" in done.stderr
    return folder


def records() -> list[tuple[bytes, dict[str, object] | bytes]]:
    def event(
        document: str, version: int, status: str, **more: object
    ) -> tuple[bytes, dict[str, object]]:
        return document.encode(), {
            "doc_id": document,
            "status": status,
            "version": version,
            "updated_at": 1,
            **more,
        }

    return [
        event(HOSTILE, 0, "CREATED", updated_at=HOSTILE),
        event(HOSTILE, 1, "CREATED", note=HOSTILE),
        event(HOSTILE, 2, "QUEUED", note=HOSTILE + HOSTILE),
        event(HOSTILE, 3, HOSTILE),
        event(HOSTILE, 4, "PRINTED", note=HOSTILE),
        event("other", 1, "CREATED", note=HOSTILE),
        (HOSTILE.encode(), b'{"doc_id": "' + HOSTILE.encode()),
        (HOSTILE.encode() + b"\xff", HOSTILE.encode() + b"\xff"),
        event(HOSTILE * 9, 1, "CREATED"),
        (b"x", {"doc_id": {HOSTILE: HOSTILE}, "status": HOSTILE, "version": 1}),
    ]


def run(folder: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command. Check that it prints only printable characters."""
    done = instep(folder, *arguments)
    for text in (done.stdout, done.stderr):
        harmful = sorted(
            {
                f"{one!r} {unicodedata.category(one)}"
                for one in text
                if not one.isprintable() and one != "\n"
            }
        )
        assert harmful == [], text
        assert "\ncontracts: ready" not in text
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("dead", "list"), 0),
        (("dead", "list", "--each"), 0),
        (("dead", "replay", "--all"), 1),
        (("dead", "drop", "--all", "--why", HOSTILE), 0),
        (("parked", "list"), 0),
        (("parked", "show", HOSTILE), 0),
        (("parked", "release", HOSTILE), 1),
        (("show", HOSTILE), 0),
        (("show", "other"), 0),
        (("status",), 0),
    ],
    ids=lambda value: (
        " ".join(value).replace(HOSTILE, "HOSTILE") if isinstance(value, tuple) else ""
    ),
)
def test_only_text_reaches_the_terminal(
    place: Path, arguments: tuple[str, ...], status: int
) -> None:
    assert run(place, *arguments, status=status).stdout


@pytest.mark.parametrize(
    "arguments",
    [("dead", "list", "--each"), ("parked", "show", HOSTILE), ("show", HOSTILE)],
    ids=["dead", "parked", "show"],
)
def test_json_output_is_harmless_and_complete(place: Path, arguments: tuple[str, ...]) -> None:
    found = json.loads(run(place, *arguments, "--json").stdout)
    assert HOSTILE in _texts(found)


def _texts(value: Any) -> list[str]:
    """Return every text in a JSON value."""
    if isinstance(value, (list, dict)):
        return [
            text
            for part in (value.values() if isinstance(value, dict) else value)
            for text in _texts(part)
        ]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", f"nobody {HOSTILE}"),
        ("parked", "show", f"nobody {HOSTILE}"),
        ("dead", "show", HOSTILE),
        ("show", "\udcff"),
        ("parked", "skip", HOSTILE, "--why", "\udcff"),
    ],
    ids=["show", "parked", "dead", "an id that is no UTF-8", "a text that is none"],
)
def test_errors_show_hostile_text_harmlessly(place: Path, arguments: tuple[str, ...]) -> None:
    run(place, *arguments, status=2)


def test_each_dead_letter_and_each_decision_is_shown_harmlessly(place: Path) -> None:
    letters = json.loads(run(place, "dead", "list", "--each", "--json").stdout)["letters"]
    assert len(letters) == 5
    for letter in letters:
        where = f"{letter['place']['partition']}:{letter['place']['offset']}"
        assert re.search(r"\\x1b|\\u202e|\\\\x1b", run(place, "dead", "show", where).stdout)
    run(place, "parked", "skip", HOSTILE, "--why", HOSTILE, "--execute")
    run(place, "parked", "show", HOSTILE)
    assert "skipped" in run(place, "show", HOSTILE).stdout
    assert "\\x1b" in run(place, "dead", "drop", "--all", "--why", HOSTILE, "--execute").stdout
    run(place, "show", HOSTILE)
