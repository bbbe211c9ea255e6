"""What became of one record in the pipeline that follows its topic. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

PARKED, DEAD = "parked", "dead"
PROCESSED = "processed"  # the ledger has passed it, and no history tells more
UNREAD = "unread"  # the pipeline began behind it
NOT_APPLIED = (PARKED, DEAD, UNREAD)


class Outcome(msgspec.Struct, frozen=True):
    """What a pipeline did with a record.

    `verdict` is applied, stale, repeated, ignored, parked, dead, or what an operator decided
    (released, replayed, skipped, dropped). It is "processed" if the pipeline keeps no history: then
    the record is in none of the quarantines, and whether it changed the row is not known. It is
    "unread" if the pipeline began behind the record (`start = "latest"`, or a rewind). Parked and
    dead records have a reason.
    """

    verdict: str
    document: str | None = None
    reason: str | None = None
    detail: str | None = None
    committed_at: datetime | None = None
