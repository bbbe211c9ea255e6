"""A query service, and bridges that poll it and publish to memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from instep import settings
from instep.bridge import poller as polling
from instep.bridge.progress import PollSummary
from instep.emit import MemoryPublisher
from tests.support.query_service import QueryService
from tests.support.waiting import wait_until

Events = list[tuple[str, dict[str, Any] | None]]


class BridgeUnderTest:
    """A bridge with its own folder; every run has a new poller, and the records are kept."""

    def __init__(self, folder: Path, service: QueryService) -> None:
        self.folder, self.service = folder, service
        self.memory = MemoryPublisher()
        self.ids: list[str] = []
        self.changes: dict[str, Any] = {}

    def declared(self) -> settings.Settings:
        """Write the ids, and return the settings."""
        ids = self.folder / "ids.txt"
        ids.write_text("\n".join(self.ids), encoding="utf-8")
        bridge = {
            "topic": "print-status",
            "url": f"{self.service.url}/documents/{{document}}",
            "status": "status",
            "version": "version",
            "ids_file": str(ids),
            "rate_per_s": 1000.0,
            "state": str(self.folder / "state.db"),
            **self.changes,
        }
        tree = {"bridges": {"print": {key: one for key, one in bridge.items() if one is not None}}}
        return msgspec.convert(tree, settings.Settings)

    def poller(self, *, once: bool = True, **options: Any) -> polling.BridgePoller:
        """Return a poller that publishes to memory."""
        self.memory = MemoryPublisher()
        return polling.BridgePoller(
            "print",
            self.declared(),
            "memory",
            once=once,
            connect=lambda *_, **__: self.memory,
            **options,
        )

    def once(self, **options: Any) -> PollSummary:
        """Poll every document once."""
        return self.poller(**options).run()

    @contextmanager
    def running(self, **options: Any) -> Iterator[polling.BridgePoller]:
        """Run a bridge in a thread, and stop it at the end."""
        poller = self.poller(once=False, **options)
        thread = threading.Thread(target=poller.run)
        thread.start()
        try:
            wait_until(lambda: hasattr(poller, "_publisher"), "the start", 10)
            yield poller
        finally:
            poller.stop()
            thread.join(10)
            assert not thread.is_alive()

    @property
    def events(self) -> Events:
        """Return what the last run published."""
        return [
            (one.key.decode(), None if one.value is None else json.loads(one.value))
            for one in self.memory.records
        ]


@pytest.fixture
def service() -> Iterator[QueryService]:
    with QueryService() as started:
        yield started


@pytest.fixture
def bridge(tmp_path: Path, service: QueryService) -> BridgeUnderTest:
    return BridgeUnderTest(tmp_path, service)


@pytest.fixture(autouse=True)
def no_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send validators with every request."""
    monkeypatch.setattr(polling, "COMPLETE_SHARE", 0.0)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the service directly, whatever proxy this machine uses."""
    monkeypatch.setenv("NO_PROXY", "*")
