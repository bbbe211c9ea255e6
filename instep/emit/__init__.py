"""The publisher SDK for source systems. Installs without Spark."""

from instep.document.event import StatusEvent
from instep.emit.async_publisher import AsyncPublisher
from instep.emit.deliveries import Delivery
from instep.emit.memory import MemoryPublisher
from instep.emit.publisher import Publisher

__all__ = ["AsyncPublisher", "Delivery", "MemoryPublisher", "Publisher", "StatusEvent"]
