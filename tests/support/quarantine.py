"""Maintenance sessions on a test database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from instep.pipeline.apply.maintenance import MaintenanceSession
from tests.support.databases import declare


@contextmanager
def session(url: str, **changes: Any) -> Iterator[MaintenanceSession]:
    with MaintenanceSession("contracts", declare(url, **changes), "ann") as opened:
        yield opened
