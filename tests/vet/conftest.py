"""A PostgreSQL with its own defaults: vet would report that the shared one does not sync."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from instep.local.postgres import Postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server
