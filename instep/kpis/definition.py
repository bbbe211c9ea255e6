"""A KPI as its jobs see it: what it reads, what it counts, and the table that it writes.

To everything that knows pipelines, a KPI is one whose documents are the KPI rows: the table is
created, inspected and written like any target table, and the ledger and the heartbeat are those of
a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec

from instep import settings
from instep.document import kinds, mapping
from instep.document.identity import Identity
from instep.document.mapping import TargetColumn
from instep.kpis.counting import LAST_MINUTE_MS, KpiKey, KpiRules

KEY = {"minute_ms": "bigint", "kind": "varchar(16)", "name": "varchar(200)"}
COLUMNS = {"minute": "timestamp", "count": "bigint", "p50_ms": "bigint", "p95_ms": "bigint"}
SEPARATOR = "\x1f"  # between the parts of a row's key, as text
VERSION = "version"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class KpiDefinition(msgspec.Struct, frozen=True):
    """A KPI with everything that its tasks and its transaction need."""

    name: str
    table: settings.Pipeline  # the KPI rows as the documents of a pipeline
    event: mapping.Mapping  # how records are decoded
    rules: KpiRules
    text: str  # what the rows are counted with, to recognise that the settings were changed


def define(declared: settings.Settings, name: str) -> KpiDefinition:
    """Return the KPI with that name."""
    kpi = settings.kpi(declared, name)
    event, topic, target, separator = kpi.event, kpi.topic, kpi.target, SEPARATOR
    if kpi.pipeline is not None:
        pipeline = settings.pipeline(declared, kpi.pipeline)
        event, topic, separator = pipeline.event, pipeline.topic, pipeline.key_separator
        target = target or pipeline.target
    assert event is not None
    assert topic is not None
    assert target is not None
    rules = KpiRules(
        tuple((one, *statuses) for one, statuses in sorted(kpi.durations.items())),  # type: ignore[misc]
        kpi.watermark_s * 1_000,
    )
    facts = {"topic": topic, "event": event, "separator": separator, "rules": rules}
    return KpiDefinition(
        name,
        _table(kpi, topic, target),
        _event_mapping(event, topic, target, separator),
        rules,
        msgspec.json.encode(facts, order="deterministic").decode(),
    )


def tables(declared: settings.Settings) -> dict[str, settings.Pipeline]:
    """Return the KPIs as the pipelines that write their rows."""
    return {name: define(declared, name).table for name in declared.kpis}


def _table(kpi: settings.Kpi, topic: str, target: str) -> settings.Pipeline:
    return settings.Pipeline(
        topic=topic,
        start=kpi.start,
        target=target,
        table=kpi.table,
        key=[*KEY],
        key_type=[*KEY.values()],
        key_separator=SEPARATOR,
        retry_parked_s=0,
        history=False,
        engine="micro-batch",
        batch_rows_max=kpi.batch_rows_max,
        event=settings.EventMapping(document=[*KEY]),
        columns={
            name: settings.ColumnMapping(field=name, type=kind) for name, kind in COLUMNS.items()
        },
    )


def _event_mapping(
    event: settings.EventMapping, topic: str, target: str, separator: str
) -> mapping.Mapping:
    """Return the mapping of a record to id, status, time and version, which is kept as text."""
    names = [f"part_{number}" for number in range(len(event.documents))]
    version = settings.ColumnMapping(field=event.order, convert="text")
    pipeline = settings.Pipeline(
        topic=topic,
        target=target,
        table="",
        key=names,
        key_separator=separator,
        event=settings.EventMapping(document=event.document, status=event.status, at=event.at),
        columns={VERSION: version} if event.order is not None else {},
    )
    text = {name: TargetColumn(name, kinds.Text()) for name in (*names, VERSION)}
    return mapping.compile_mapping(pipeline, text)


def row_id(of: mapping.Mapping) -> Callable[[KpiKey], str]:
    """Return the function from a row's key to the id of the document that it is to the table."""
    identity = Identity(of)
    return lambda key: identity.joined([key.minute_ms, key.kind.value, key.name])


def minute(key: KpiKey) -> datetime:
    """Return the minute of a row as a time."""
    return EPOCH + timedelta(milliseconds=key.minute_ms)


def is_countable(status: str, at_ms: int) -> bool:
    """Return whether a KPI row can have this status and the minute of this time."""
    fits = 0 < len(status) <= settings.KPI_NAME_CHARACTERS_MAX and SEPARATOR not in status
    return fits and 0 <= at_ms <= LAST_MINUTE_MS
