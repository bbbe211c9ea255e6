"""The KPIs of a run: each is a pipeline that writes the KPI rows, with its own engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client.registry import Collector

from instep import errors, settings
from instep.kafka.connection import Cluster
from instep.kpis import definition, merge, metrics
from instep.kpis.definition import KpiDefinition
from instep.pipeline import progress_text
from instep.pipeline.engine import Engine
from instep.pipeline.pipelines import PipelineGroup
from instep.pipeline.runner import Runner
from instep.sinks import kpi_store
from instep.sinks.target import Target


class KpiRunner(Runner):
    """Keeps one KPI running."""

    def __init__(self, kpi: KpiDefinition, *arguments: Any, **options: Any) -> None:
        super().__init__(kpi.name, kpi.table, *arguments, **options)
        self._kpi, self._reader = kpi, merge.log_reader(kpi.name)

    def progress_text(self) -> str:
        """Return rate, lag, freshness and totals."""
        totals = self.progress.totals
        return (
            f"{progress_text.flow(self.progress, 'counted')}, {totals['applied']:,} counted,"
            f" {totals['repeated']:,} repeated, {totals['stale']:,} too late"
        )

    def totals_text(self) -> str:
        """Return the totals of the run."""
        totals = self.progress.totals
        return (
            f"{totals['records']:,} records: {totals['applied']:,} counted,"
            f" {totals['repeated']:,} repeated, {totals['stale']:,} too late,"
            f" {totals['ignored']:,} ignored, {totals['dead']:,} unreadable;"
            f" {self.restarts} restarts"
        )

    def warning(self) -> str | None:
        """Return the warning that most records are not events."""
        totals = self.progress.totals
        if totals["dead"] * 2 <= totals["records"]:
            return None
        return (
            f"WARNING: {self.name}: {totals['dead']:,} of {totals['records']:,} records are"
            " unreadable; see what they are: instep peek"
        )

    def _inspected(self) -> Target:
        """Return the target; raise if the rows were counted with other settings."""
        target = super()._inspected()
        merge.refuse_changed(self._kpi, kpi_store.check(self.pipeline.target, self.name))
        return target


class KpiGroup(PipelineGroup):
    """The KPIs of a run."""

    kind = "kpi"

    def __init__(self, declared: settings.Settings, names: Sequence[str]) -> None:
        self._definitions = {name: definition.define(declared, name) for name in names}
        super().__init__({name: one.table for name, one in self._definitions.items()})

    def check(self, cluster: Cluster) -> list[errors.Unreachable]:
        """Inspect topics and tables; return the servers that cannot be reached."""
        unreachable = super().check(cluster)
        if not unreachable:
            for name, one in self._definitions.items():
                kpi_store.check(one.table.target, name)
        return unreachable

    def collector(self) -> Collector:
        """Return the metrics of the KPIs."""
        return metrics.KpiMetrics(self._runners)

    def _engine(self, _name: str) -> Engine:
        from pyspark.sql import SparkSession

        from instep.kpis.engine import KpiEngine

        opened = self._context.opened
        return KpiEngine(
            SparkSession.builder.getOrCreate(),  # on the active context
            self._context.cluster,
            opened.folder.path,
            self._definitions,
        )

    def _runner(self, name: str) -> Runner:
        context = self._context
        return KpiRunner(
            self._definitions[name],
            context.cluster,
            self._engine(name),
            once=context.once,
            is_lost=context.opened.is_lost,
        )
