"""instep streams status changes from Kafka into your database table with PySpark.

Changes are applied in order per document and exactly once. The names below are the public API;
what a module of this package offers besides may change. They are loaded when first used, so that
a source system that only publishes needs neither Spark nor a database driver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from instep import errors

if TYPE_CHECKING:
    from instep import testing
    from instep.api import PipelineProgress, init, load_settings, run
    from instep.document.event import StatusEvent
    from instep.document.outcome import Outcome
    from instep.emit.async_publisher import AsyncPublisher
    from instep.emit.deliveries import Delivery, Receipt
    from instep.emit.memory import MemoryPublisher
    from instep.emit.metrics import PublisherMetrics
    from instep.emit.outbox import Outbox
    from instep.emit.publisher import Publisher
    from instep.operate.outcomes import OutcomeReader
    from instep.settings import OutboxColumns, Security, Settings
    from instep.spark_sink.definition import table
    from instep.spark_sink.foreach_batch import sink

__version__ = "0.1.0"

__all__ = [
    "AsyncPublisher",
    "Delivery",
    "MemoryPublisher",
    "Outbox",
    "OutboxColumns",
    "Outcome",
    "OutcomeReader",
    "PipelineProgress",
    "Publisher",
    "PublisherMetrics",
    "Receipt",
    "Security",
    "Settings",
    "StatusEvent",
    "errors",
    "init",
    "load_settings",
    "run",
    "sink",
    "table",
    "testing",
]

_HOMES = {
    "AsyncPublisher": "instep.emit.async_publisher",
    "Delivery": "instep.emit.deliveries",
    "MemoryPublisher": "instep.emit.memory",
    "Outbox": "instep.emit.outbox",
    "OutboxColumns": "instep.settings",
    "Outcome": "instep.document.outcome",
    "OutcomeReader": "instep.operate.outcomes",
    "PipelineProgress": "instep.api",
    "Publisher": "instep.emit.publisher",
    "PublisherMetrics": "instep.emit.metrics",
    "Receipt": "instep.emit.deliveries",
    "Security": "instep.settings",
    "Settings": "instep.settings",
    "StatusEvent": "instep.document.event",
    "init": "instep.api",
    "load_settings": "instep.api",
    "run": "instep.api",
    "sink": "instep.spark_sink.foreach_batch",
    "table": "instep.spark_sink.definition",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load a public name from its module."""
        if name == "testing":
            return importlib.import_module("instep.testing")
        if name not in _HOMES:
            raise AttributeError(f"module 'instep' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
