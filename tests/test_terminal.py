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
from tests.cli.test_cli import SETTINGS, instep
from tests.support.producing import IN_ORDER

# colour and title, line breaks, a carriage return, C1 controls, directions, separators, private
# use, a zero width
EVIL = (
    "\x1b[2J\x1b[31mred\x1b]0;owned\x07\r\ncontracts: ready\t\x08\x7f\x80\x9b31m"
    "\u202egnp.exe\u2066\u2028\u2029\ue000\u200b\U000e0041"
)
MORE = '\n[pipelines.contracts.transitions]\nCREATED = ["QUEUED"]\nQUEUED = ["PRINTED"]\n'


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, broker: LocalCluster) -> Path:
    """Make a folder in which a pipeline has read hostile ids, statuses and values."""
    folder, topic = tmp_path_factory.mktemp("terminal"), f"cli-{uuid.uuid4().hex[:8]}"
    text = SETTINGS.format(bootstrap=broker.bootstrap, topic=topic).replace(
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
        event(EVIL, 0, "CREATED", updated_at=EVIL),
        event(EVIL, 1, "CREATED", note=EVIL),
        event(EVIL, 2, "QUEUED", note=EVIL + EVIL),
        event(EVIL, 3, EVIL),
        event(EVIL, 4, "PRINTED", note=EVIL),
        event("other", 1, "CREATED", note=EVIL),
        (EVIL.encode(), b'{"doc_id": "' + EVIL.encode()),
        (EVIL.encode() + b"\xff", EVIL.encode() + b"\xff"),
        event(EVIL * 9, 1, "CREATED"),
        (b"x", {"doc_id": {EVIL: EVIL}, "status": EVIL, "version": 1}),
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
        (("dead", "drop", "--all", "--why", EVIL), 0),
        (("parked", "list"), 0),
        (("parked", "show", EVIL), 0),
        (("parked", "release", EVIL), 1),
        (("show", EVIL), 0),
        (("show", "other"), 0),
        (("status",), 0),
    ],
    ids=lambda value: " ".join(value).replace(EVIL, "EVIL") if isinstance(value, tuple) else "",
)
def test_nothing_reaches_the_terminal_but_text(
    place: Path, arguments: tuple[str, ...], status: int
) -> None:
    assert run(place, *arguments, status=status).stdout


@pytest.mark.parametrize(
    "arguments",
    [("dead", "list", "--each"), ("parked", "show", EVIL), ("show", EVIL)],
    ids=["dead", "parked", "show"],
)
def test_json_is_as_harmless_and_loses_nothing(place: Path, arguments: tuple[str, ...]) -> None:
    found = json.loads(run(place, *arguments, "--json").stdout)
    assert EVIL in _texts(found)


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
        ("show", f"nobody {EVIL}"),
        ("parked", "show", f"nobody {EVIL}"),
        ("dead", "show", EVIL),
        ("show", "\udcff"),
        ("parked", "skip", EVIL, "--why", "\udcff"),
    ],
    ids=["show", "parked", "dead", "an id that is no UTF-8", "a text that is none"],
)
def test_what_cannot_be_is_named_harmlessly(place: Path, arguments: tuple[str, ...]) -> None:
    run(place, *arguments, status=2)


def test_each_dead_letter_and_each_decision_can_be_looked_at(place: Path) -> None:
    letters = json.loads(run(place, "dead", "list", "--each", "--json").stdout)
    assert len(letters) == 5
    for letter in letters:
        where = f"{letter['place']['partition']}:{letter['place']['offset']}"
        assert re.search(r"\\x1b|\\u202e|\\\\x1b", run(place, "dead", "show", where).stdout)
    run(place, "parked", "skip", EVIL, "--why", EVIL, "--execute")
    run(place, "parked", "show", EVIL)
    assert "skipped" in run(place, "show", EVIL).stdout
    assert "\\x1b" in run(place, "dead", "drop", "--all", "--why", EVIL, "--execute").stdout
    run(place, "show", EVIL)
