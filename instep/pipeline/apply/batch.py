"""Values of the write path: who writes, the parts of a batch, what became of it, and the probe."""

from __future__ import annotations

import bisect
import importlib
import itertools
import os
from collections.abc import Callable, Sequence

import msgspec

from instep.document import results
from instep.document.decoding import DeadLetter, Decoder, Event, Record
from instep.document.guard import Verdict
from instep.document.reasons import Refusal
from instep.sinks.target import Position

TOTALS = ("records", *(verdict.value for verdict in Verdict), "dead")  # what the ledger sums up
# Clocks differ and dates may be absurd. Beyond a day the number says nothing.
FRESHNESS_US_MAX = 24 * 3600 * 1_000_000


class Writer(msgspec.Struct, frozen=True):
    """Who writes: the epoch that this run took, and the topic it reads.

    `already_applied` holds the offset ranges of each partition that were applied before the ledger
    was moved back.
    """

    epoch: int
    cluster_id: str
    topic_id: str
    already_applied: dict[int, list[tuple[int, int]]] = {}

    def already_applied_among(
        self, partition: int, records: Sequence[Record], slots: int = 1
    ) -> set[int]:
        """Return the offsets of those records that were applied before the ledger was moved."""
        ranges = self.already_applied.get(partition)
        if not ranges:
            return set()
        offsets = (record.offset for record in records)
        return {
            offset
            for offset in offsets
            if any(start <= offset // slots < end for start, end in ranges)
        }


class BatchOutcome(msgspec.Struct, frozen=True):
    """What one transaction did, or several together."""

    partition: int
    records: int
    verdicts: dict[Verdict, int]
    dead: int
    freshness_us: list[int]

    @property
    def totals(self) -> dict[str, int]:
        """Return the counts that the ledger sums up."""
        counts = (self.records, *(self.verdicts[verdict] for verdict in Verdict), self.dead)
        return dict(zip(TOTALS, counts, strict=True))


def merged(outcomes: Sequence[BatchOutcome]) -> BatchOutcome:
    """Return the outcome of several transactions as one."""
    if len(outcomes) == 1:
        return outcomes[0]
    return BatchOutcome(
        outcomes[0].partition,
        sum(one.records for one in outcomes),
        {verdict: sum(one.verdicts[verdict] for one in outcomes) for verdict in Verdict},
        sum(one.dead for one in outcomes),
        [age for one in outcomes for age in one.freshness_us],
    )


def bounded(ages_us: list[int]) -> list[int]:
    """Return the ages in ascending order, each at least 0 and at most FRESHNESS_US_MAX."""
    ages_us.sort()
    low = bisect.bisect_left(ages_us, 0)
    high = bisect.bisect_right(ages_us, FRESHNESS_US_MAX)
    return [*[0] * low, *ages_us[low:high], *[FRESHNESS_US_MAX] * (len(ages_us) - high)]


class BatchPart:
    """Records of a batch that are applied in a separate transaction."""

    def __init__(
        self, records: Sequence[Record], *, isolate_failures: bool = False, slots: int = 1
    ) -> None:
        """Take records, or results of records, which have `slots` numbers for each offset."""
        self.records, self._slots = records, slots
        self.isolate_failures = isolate_failures
        # Of a part with one record: why it is refused, if only the commit shows that it is.
        self.refusal: Refusal | None = None
        # Something as new was stored of a document: the upsert would not write all rows.
        self.stage_first = False
        # With at-most-once: the ledger before it was advanced for these records.
        self.claimed: Position | None = None
        # With at-most-once: it is unknown whether the rows were committed, so they are not
        # written again.
        self.lost = False

    def decode(self, decoder: Decoder) -> tuple[list[Event], list[DeadLetter]]:
        """Decode the records; a refusal that is known already is attached to the events."""
        events, dead = results.decode(decoder, self.records)
        return self.with_refusal(events), dead

    def with_refusal(self, events: list[Event]) -> list[Event]:
        """Return the events with the refusal of this part, if one is known."""
        if self.refusal is None:
            return events
        return [
            msgspec.structs.replace(event, refusal=event.refusal or self.refusal)
            for event in events
        ]

    def split(self, size: int) -> list[BatchPart]:
        """Return the records in parts of at most this size.

        A part for which the ledger was advanced already stays whole.
        """
        if self.claimed is not None or len(self.records) <= size:
            return [self]
        starts = [0]
        for start in range(size, len(self.records), size):
            whole = self._record_start(start)
            if starts[-1] < whole < len(self.records):
                starts.append(whole)
        if len(starts) == 1:
            return [self]
        return [
            BatchPart(
                self.records[start:end], isolate_failures=self.isolate_failures, slots=self._slots
            )
            for start, end in itertools.pairwise([*starts, len(self.records)])
        ]

    def _record_start(self, index: int) -> int:
        """Return the first index from here on at which a record begins.

        The ledger counts records, so the results of a record are applied together.
        """
        records, slots = self.records, self._slots
        while (
            slots > 1
            and index < len(records)
            and records[index].offset // slots == records[index - 1].offset // slots
        ):
            index += 1
        return index

    def halves(self) -> list[BatchPart]:
        """Return the records in two parts, or this part if it cannot be split."""
        return self.split(max(1, len(self.records) // 2))


class ProbeEvent(msgspec.Struct, frozen=True):
    """A step that begins, and the offsets it is about.

    Steps 1 to 8 are those of the transaction, 9 is the end, and 0 a task that has no records yet.
    """

    pipeline: str
    step: int
    partition: int = -1
    first: int = -1
    last: int = -1


Probe = Callable[[ProbeEvent], None]


def no_probe(_event: ProbeEvent) -> None:
    """Ignore the step. Tests and benchmarks pass their own probe."""


def find_probe() -> Probe:
    """Return the function, named by INSTEP_PROBE as module:function, that observes transactions.

    Tests and experiments use it to act between two steps.
    """
    name = os.environ.get("INSTEP_PROBE")
    if not name:
        return no_probe
    module, _, function = name.partition(":")
    probe: Probe = getattr(importlib.import_module(module), function)
    return probe
