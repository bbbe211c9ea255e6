"""One Spark session, as users start it, for the tests of the sink's doors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.spark_sessions import user_session


@pytest.fixture(scope="package")
def spark() -> Iterator[Any]:
    with user_session() as started:
        yield started
