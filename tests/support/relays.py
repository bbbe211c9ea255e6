"""Relays for tests: declared with a topic of their own, run within this process or in another."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from instep import settings
from instep.kafka import position_topic, topics
from instep.kafka.connection import Cluster
from instep.relay import relay as relays
from instep.relay.session import RelayProgress

ROOT = Path(__file__).parents[2]


def declare(url: str, cluster: Cluster, **changes: Any) -> tuple[str, settings.Relay]:
    """Create a topic, and return the name and the settings of a relay to it."""
    topic = f"relay-{uuid.uuid4().hex[:8]}"
    topics.create(cluster, topic, 3)
    position_topic.create(cluster, position_topic.of_relay(topic).topic)
    return topic, msgspec.convert({"source": url, "topic": topic, **changes}, settings.Relay)


def run_once(
    name: str,
    relay: settings.Relay,
    cluster: Cluster,
    *,
    once: bool = True,
    stop: threading.Event | None = None,
) -> tuple[RelayProgress, list[str]]:
    """Publish what the outbox has; return the progress and the messages."""
    said: list[str] = []
    progress = RelayProgress()
    relays.run(
        name,
        relay,
        cluster,
        once=once,
        stop=stop or threading.Event(),
        say=said.append,
        progress=progress,
    )
    return progress, said


def write_settings(folder: Path, name: str, relay: settings.Relay, bootstrap: str) -> Path:
    """Write a settings file with one relay."""
    declared = {
        key: value
        for key, value in msgspec.to_builtins(relay).items()
        if value is not None and key != "columns"
    }
    file = folder / "instep.toml"
    text = tomli_w.dumps({"kafka": {"bootstrap": bootstrap}, "relays": {name: declared}})
    if not file.exists() or file.read_text(encoding="utf-8") != text:  # others may be reading it
        file.write_text(text, encoding="utf-8")
    return file


class RelayProcess:
    """`instep relay run` in its own process, or another module that runs the command."""

    def __init__(
        self,
        folder: Path,
        name: str,
        relay: settings.Relay,
        bootstrap: str,
        *,
        module: str = "instep",
    ) -> None:
        file = write_settings(folder, name, relay, bootstrap)
        self.log = folder / f"log-{uuid.uuid4().hex[:6]}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "relay", "run", name, "--config", str(file)],
                cwd=ROOT,
                stderr=log,
            )

    def said(self, text: str) -> bool:
        return text in self.log.read_text(encoding="utf-8")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)
