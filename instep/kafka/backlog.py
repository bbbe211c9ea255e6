"""How much of a log is not applied yet, and which open transactions hold readers back.

A reader of committed records stops at the last stable offset: before the first record of a
transaction that is still open. The records behind it were acknowledged to their publishers,
including publishers without transactions. So lag is counted to the end of the log, and records
behind an open transaction are counted separately.
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
    """One partition from a position on. What is unknown is None."""

    partition: int
    position: int
    end: int
    committed_end: int
    next_record: offsets.LogRecord | None  # the next committed record

    @property
    def held_back(self) -> int:
        """Return the offsets behind the first record of an open transaction."""
        if self.committed_end >= self.end:
            return 0
        return self.end - max(self.position, self.committed_end)

    @property
    def records(self) -> int:
        """Return the offsets that are not applied; 0 if they are only transaction markers."""
        if self.next_record is not None:
            return self.end - self.position
        return self.held_back

    def age_s(self, now: datetime) -> float | None:
        """Return the age of the next committed record; 0 if nothing waits, None if unknown."""
        if not self.records:
            return 0.0
        if self.next_record is None or self.next_record.timestamp_ms < 0:
            return None
        return max(0.0, now.timestamp() - self.next_record.timestamp_ms / 1000)


def read(
    cluster: connection.Cluster, topic: str, positions: Mapping[int, int]
) -> dict[int, PartitionBacklog]:
    """Return what waits in each of these partitions from its position on."""
    # the ends first, so that a transaction that ends meanwhile does not count as open
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
    """Return the partitions, with their earlier end, whose committed end is still before it."""
    return {
        partition: end for partition, end in before.items() if committed.get(partition, end) < end
    }


def open_transactions(
    cluster: connection.Cluster, topic: str, partitions: Collection[int]
) -> list[OpenTransaction]:
    """Return the open transactions in these partitions; none if the cluster does not tell."""
    if not partitions:
        return []
    with admin_extras.opened(cluster) as admin:
        return (admin.open_transactions(topic, sorted(partitions)) if admin else None) or []


def holders_of_each(
    cluster: connection.Cluster, spots: Collection[Spot]
) -> dict[Spot, OpenTransaction]:
    """Return the open transaction at which readers of each partition stop, if known."""
    found: dict[Spot, OpenTransaction] = {}
    if not spots:
        return found
    with admin_extras.opened(cluster) as admin:
        if admin is None:
            return found
        for topic in sorted({spot[0] for spot in spots}):
            partitions = [part for name, part in spots if name == topic]
            opened = admin.open_transactions(topic, partitions)
            found |= {(topic, part): one for part, one in holders(opened or ()).items()}
    return found


def holders(found: Collection[OpenTransaction]) -> dict[int, OpenTransaction]:
    """Return, by partition, the first open transaction, at which readers stop."""
    first: dict[int, OpenTransaction] = {}
    for one in sorted(found, key=lambda one: (one.partition, one.start_offset)):
        first.setdefault(one.partition, one)
    return first


def explained(held: Mapping[int, int], found: Collection[OpenTransaction]) -> list[str]:
    """Describe the open transactions that hold records back: how many, by whom, since when."""
    by = holders(found)
    return [
        f"{counted(count, 'record')} behind {named(partition, by.get(partition))}"
        for partition, count in sorted(held.items())
    ]


def named(partition: int, one: OpenTransaction | None) -> str:
    """Describe an open transaction, as far as it is known."""
    if one is None:
        return f"an open transaction, partition {partition}"
    since = f" since {one.since:%Y-%m-%dT%H:%M:%SZ}" if one.since else ""
    by = f", transactional id {one.transactional_id!r}" if one.transactional_id else ""
    return f"an open transaction{since}, producer id {one.producer}{by}, partition {partition}"


def age_s(one: OpenTransaction, now: datetime | None = None) -> float | None:
    """Return for how long a transaction has been open, by our clock."""
    if one.since is None:
        return None
    return max(0.0, ((now or datetime.now(UTC)) - one.since).total_seconds())
