"""KPIs that run in the session of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from instep.kafka.connection import Cluster
from tests.support.kpis import KpiRuns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def kpi_runs(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Iterator[KpiRuns]:
    """Return what starts KPIs. Stop them at the end."""
    started = KpiRuns(spark, cluster, tmp_path)
    yield started
    started.stop()
