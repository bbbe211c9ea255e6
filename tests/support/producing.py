"""How the tests' own producers send what must lie in the log in the order in which it was sent."""

from __future__ import annotations

from typing import Any

# One request at a time: no batch overtakes one that is tried again, as the first on a topic just made may have to be.
# Idempotence does not prevent that there: from a producer that is new to a partition a broker takes any sequence number.
IN_ORDER: dict[str, Any] = {"max.in.flight.requests.per.connection": 1}
