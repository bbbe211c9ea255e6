"""How much of a log is not applied yet, counted to its very end, and which open transaction holds readers back.

A reader of committed records stops at the last stable offset: before the first record of a transaction that is still open. What
lies behind it was acknowledged to its publishers, including records of publishers that use no transactions at all. So lag is
counted to the end of the log, and what waits behind an open transaction is counted apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from instep.document.showing import counted
from instep.kafka import connection, offsets
from instep.kafka.admin import admin_extras
from instep.kafka.admin.admin_extras import OpenTransaction
from instep.kafka.offsets import Spot


@dataclass(frozen=True, slots=True)
class PartitionBacklog:
    """One partition from a position on. What is not known is None, which is not 0."""

    partition: int
    position: int
    end: int
    committed_end: int
    next_record: offsets.LogRecord | None  # the next committed record

    @property
    def held_back(self) -> int:
        """Offsets behind the first record of an open transaction, from the position on."""
        return (
            self.end - max(self.position, self.committed_end)
            if self.committed_end < self.end
            else 0
        )

    @property
    def records(self) -> int:
        """Offsets that are not applied. Transaction markers alone count for nothing."""
        if self.next_record is not None:
            return self.end - self.position
        return self.held_back

    def age_s(self, now: datetime) -> float | None:
        """How old the next committed record is; 0 when nothing waits, None when it has no timestamp or cannot be read yet."""
        if not self.records:
            return 0.0
        if self.next_record is None or self.next_record.timestamp_ms < 0:
            return None
        return max(0.0, now.timestamp() - self.next_record.timestamp_ms / 1000)


def read(
    cluster: connection.Cluster, topic: str, positions: Mapping[int, int]
) -> dict[int, PartitionBacklog]:
    """What waits in each of these partitions from its position on."""
    # the ends come first, so that a transaction that ends in between is not taken for an open one
    ends = offsets.latest(cluster, topic, positions, committed=False)
    committed = offsets.latest(cluster, topic, positions)
    behind = {partition: at for partition, at in positions.items() if at < committed[partition]}
    records = offsets.first_records(cluster, topic, behind) if behind else {}
    return {
        partition: PartitionBacklog(
            partition,
            at,
            max(ends[partition], committed[partition]),
            committed[partition],
            records.get(partition),
        )
        for partition, at in positions.items()
    }


def still_held(before: Mapping[int, int], committed: Mapping[int, int]) -> dict[int, int]:
    """Partitions whose committed end has not reached an end that was seen before, and that end."""
    return {
        partition: end for partition, end in before.items() if committed.get(partition, end) < end
    }


def open_transactions(
    cluster: connection.Cluster, topic: str, partitions: Collection[int]
) -> list[OpenTransaction]:
    """The open transactions in these partitions; none also where the cluster does not say."""
    if not partitions:
        return []
    with admin_extras.opened(cluster) as asked:
        return (asked.open_transactions(topic, sorted(partitions)) if asked else None) or []


def holders_of_each(
    cluster: connection.Cluster, spots: Collection[Spot]
) -> dict[Spot, OpenTransaction]:
    """The open transaction that readers of each of these partitions stop at, where the cluster says."""
    found: dict[Spot, OpenTransaction] = {}
    if spots:
        with admin_extras.opened(cluster) as asked:
            for topic in sorted({spot[0] for spot in spots}) if asked else ():
                opened = (
                    asked.open_transactions(topic, [part for name, part in spots if name == topic])
                    if asked
                    else None
                )
                found |= {
                    (topic, partition): one for partition, one in holders(opened or ()).items()
                }
    return found


def holders(found: Collection[OpenTransaction]) -> dict[int, OpenTransaction]:
    """By partition, the open transaction that begins first: the one that readers stop at."""
    first: dict[int, OpenTransaction] = {}
    for one in sorted(found, key=lambda one: (one.partition, one.start_offset)):
        first.setdefault(one.partition, one)
    return first


def explained(held: Mapping[int, int], found: Collection[OpenTransaction]) -> list[str]:
    """A sentence for each partition with offsets that are held back: how many, by whom and since when."""
    by = holders(found)
    return [
        f"{counted(count, 'record')} behind {named(partition, by.get(partition))}"
        for partition, count in sorted(held.items())
    ]


def named(partition: int, one: OpenTransaction | None) -> str:
    """An open transaction in words, as far as it is known."""
    if one is None:
        return f"an open transaction, partition {partition}"
    since = f" since {one.since:%Y-%m-%dT%H:%M:%SZ}" if one.since else ""
    by = f", transactional id {one.transactional_id!r}" if one.transactional_id else ""
    return f"an open transaction{since}, producer id {one.producer}{by}, partition {partition}"


def age_s(one: OpenTransaction, now: datetime | None = None) -> float | None:
    """For how long a transaction has been open, by our clock."""
    return max(0.0, ((now or datetime.now(UTC)) - one.since).total_seconds()) if one.since else None
