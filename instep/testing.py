"""Publishers for tests of source systems: no broker, the same interface and checks.

`MemoryPublisher` stands in for `Publisher`, and `AsyncMemoryPublisher` for `AsyncPublisher`.
"""

from __future__ import annotations

from instep.emit.memory import AsyncMemoryPublisher, MemoryPublisher, MemoryRecord

__all__ = ["AsyncMemoryPublisher", "MemoryPublisher", "MemoryRecord"]
