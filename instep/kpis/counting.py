"""What the events of a document add to the KPI rows: a pure function of the set of its events.

Everything else follows from that. Repeated events do not change a set, and a set has no order, so
it does not matter in which order or in which batches events arrive. When a document has another
event, what it added before is subtracted, and what it adds now is added.

The events of a document are divided where it had none for longer than the watermark: after such a
pause it is a new document. Each part stands alone, so events of a part that no event can reach any
more can be forgotten.

Whether an event is too late is decided by its record and those before it in the partition, never by
the time at which it is processed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum

import msgspec

from instep.kpis import histogram

MINUTE_MS = 60_000
LAST_MINUTE_MS = 253_402_300_799_999  # the end of the year 9999, which every database knows
NO_BUCKET = -1  # of what is counted, but has no duration


class KpiKind(StrEnum):
    """What a KPI row counts."""

    STATUS = "status"
    DURATION = "duration"
    TOO_LATE = "too_late"


class StatusChange(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """An event of a document. Without a version, its time and its status identify it."""

    at_ms: int
    status: str
    version: str | None = None


class ReadChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event as it was read: where it is in the log, and the record's own time."""

    offset: int
    timestamp_ms: int
    document: str
    change: StatusChange


class KpiRules(msgspec.Struct, frozen=True):
    """What is counted: the durations as name, first and last status, and the watermark."""

    durations: tuple[tuple[str, str, str], ...]
    watermark_ms: int


class KpiKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """What identifies a KPI row. `minute_ms` is the beginning of the minute."""

    minute_ms: int
    kind: KpiKind
    name: str


class KpiValues(msgspec.Struct, frozen=True):
    """The values of a KPI row."""

    count: int
    p50_ms: int | None = None
    p95_ms: int | None = None


Buckets = dict[int, int]  # counts by bucket, without those that are 0
Cells = dict[KpiKey, Buckets]
Additions = Counter[tuple[KpiKey, int]]  # by row and bucket; below 0: what is subtracted


class PartitionClock:
    """The time of a partition: the latest timestamp of the records up to an offset.

    A jump by more than the watermark waits in `ahead_ms` until the next record confirms it.
    Otherwise one record with a wrong timestamp would make all events after it too late. Whatever
    the batches are, the clock is the same: only the records up to an offset move it.
    """

    def __init__(self, now_ms: int | None = None, ahead_ms: int | None = None) -> None:
        self.now_ms, self._ahead_ms = now_ms, ahead_ms

    @property
    def times_ms(self) -> tuple[int | None, int | None]:
        """Return what a clock is made from."""
        return self.now_ms, self._ahead_ms

    def take(self, read: ReadChange, rules: KpiRules) -> KpiKey | None:
        """Take the partition's next event; return the row that counts it if it is too late."""
        if 0 <= read.timestamp_ms <= LAST_MINUTE_MS:  # otherwise no time of a record
            self._advance(read.timestamp_ms, rules.watermark_ms)
        if self.now_ms is None or read.change.at_ms >= self.now_ms - rules.watermark_ms:
            return None
        return KpiKey(minute_of(self.now_ms), KpiKind.TOO_LATE, read.change.status)

    def _advance(self, timestamp_ms: int, watermark_ms: int) -> None:
        """Advance to a record's time, or of two jumps to the nearer one."""
        ahead_ms, self._ahead_ms = self._ahead_ms, None
        if self.now_ms is None or timestamp_ms > self.now_ms + watermark_ms:
            if ahead_ms is None:
                self._ahead_ms = timestamp_ms
                return
            self.now_ms, timestamp_ms = sorted((ahead_ms, timestamp_ms))
            if timestamp_ms > self.now_ms + watermark_ms:
                self._ahead_ms = timestamp_ms
                return
        self.now_ms = max(self.now_ms, timestamp_ms)


def minute_of(at_ms: int) -> int:
    """Return the beginning of a time's minute."""
    return at_ms - at_ms % MINUTE_MS


def additions(changes: Iterable[StatusChange], rules: KpiRules) -> Additions:
    """Return what the events of one document add."""
    added: Additions = Counter()
    for part in _parts(changes, rules.watermark_ms):
        counted = list(_without_repeats(part))
        for change in counted:
            added[KpiKey(minute_of(change.at_ms), KpiKind.STATUS, change.status), NO_BUCKET] += 1
        for name, first, last in rules.durations:
            if found := _duration(counted, first, last):
                began_ms, ended_ms = found
                key = KpiKey(minute_of(ended_ms), KpiKind.DURATION, name)
                added[key, histogram.bucket(ended_ms - began_ms)] += 1
    return added


def remembered(
    changes: Collection[StatusChange], rules: KpiRules, now_ms: int | None
) -> list[StatusChange]:
    """Return the events that another event can still reach, in order.

    An event at the watermark, which is not too late, reaches back by the watermark. Before the
    partition has a time, no event is too late.
    """
    if now_ms is None:
        return sorted(changes, key=order)
    since_ms = now_ms - 2 * rules.watermark_ms
    kept: list[StatusChange] = []
    for part in _parts(changes, rules.watermark_ms):
        if part[-1].at_ms >= since_ms:
            kept += part
    return kept


def unsure(changes: Iterable[StatusChange], rules: KpiRules, known_from_ms: int) -> set[KpiKey]:
    """Return the rows of durations that earlier events, which are not known, could change."""
    found: set[KpiKey] = set()
    for part in _parts(changes, rules.watermark_ms):
        if part[0].at_ms <= known_from_ms + rules.watermark_ms:
            found |= {
                KpiKey(minute_of(change.at_ms), KpiKind.DURATION, name)
                for change in part
                for name, _, last in rules.durations
                if change.status == last
            }
    return found


def apply(cells: Cells, added: Additions) -> None:
    """Add to the rows, and subtract from them."""
    for (key, bucket), count in added.items():
        if not count:
            continue
        buckets = cells.setdefault(key, {})
        left = buckets.get(bucket, 0) + count
        if left:
            buckets[bucket] = left
        else:
            buckets.pop(bucket, None)


def values_of(key: KpiKey, buckets: Mapping[int, int]) -> KpiValues:
    """Return the values of a row."""
    count = sum(buckets.values())
    if key.kind is not KpiKind.DURATION:
        return KpiValues(count)
    return KpiValues(count, histogram.quantile(buckets, 50), histogram.quantile(buckets, 95))


def _parts(changes: Iterable[StatusChange], watermark_ms: int) -> Iterator[list[StatusChange]]:
    """Divide events where a document had none for longer than the watermark."""
    part: list[StatusChange] = []
    for change in sorted(set(changes), key=order):
        if part and change.at_ms - part[-1].at_ms > watermark_ms:
            yield part
            part = []
        part.append(change)
    if part:
        yield part


def order(change: StatusChange) -> tuple[int, str, str]:
    """Return what events are sorted by."""
    return change.at_ms, change.status, change.version or ""


def _without_repeats(part: Iterable[StatusChange]) -> Iterator[StatusChange]:
    """Yield the first event of each version."""
    seen: set[object] = set()
    for change in part:
        identity = change.version
        if identity is None or identity not in seen:
            seen.add(identity)
            yield change


def _duration(changes: list[StatusChange], first: str, last: str) -> tuple[int, int] | None:
    """Return when a duration began and ended; None if the document lacks one of the statuses."""
    began_ms = next((change.at_ms for change in changes if change.status == first), None)
    if began_ms is None:
        return None
    ends = (one.at_ms for one in changes if one.status == last and one.at_ms >= began_ms)
    ended_ms = next(ends, None)
    return None if ended_ms is None else (began_ms, ended_ms)
