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
    from instep.api import PipelineProgress, init, load_settings, run
    from instep.document.event import StatusEvent
    from instep.emit.deliveries import Delivery, Receipt
    from instep.emit.memory import MemoryPublisher
    from instep.emit.publisher import Publisher
    from instep.settings import Security, Settings

__version__ = "0.1.0"

__all__ = [
    "Delivery",
    "MemoryPublisher",
    "PipelineProgress",
    "Publisher",
    "Receipt",
    "Security",
    "Settings",
    "StatusEvent",
    "errors",
    "init",
    "load_settings",
    "run",
]

_HOMES = {
    "Delivery": "instep.emit.deliveries",
    "MemoryPublisher": "instep.emit.memory",
    "PipelineProgress": "instep.api",
    "Publisher": "instep.emit.publisher",
    "Receipt": "instep.emit.deliveries",
    "Security": "instep.settings",
    "Settings": "instep.settings",
    "StatusEvent": "instep.document.event",
    "init": "instep.api",
    "load_settings": "instep.api",
    "run": "instep.api",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load a public name from its module."""
        if name not in _HOMES:
            raise AttributeError(f"module 'instep' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
