"""Settings with which the tests' own producers keep the order of what they send."""

from __future__ import annotations

from typing import Any

# One request at a time: no batch overtakes one that is retried, which may happen to the first one
# on a new topic. Idempotence does not prevent it there: from a producer that is new to a partition,
# a broker accepts any sequence number.
IN_ORDER: dict[str, Any] = {"max.in.flight.requests.per.connection": 1}
