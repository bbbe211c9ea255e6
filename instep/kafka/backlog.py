"""How much of a log is not applied yet, and which open transactions hold readers back.

A reader of committed records stops at the last stable offset: before the first record of a
transaction that is still open. The records behind it were acknowledged to their publishers,
including publishers without transactions. So lag is counted to the end of the log, and records
behind an open transaction are counted separately.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from instep.document.showing import counted
from instep.kafka import admin_extras, connection, offsets
from instep.kafka.admin_extras import OpenTransaction
from instep.kafka.offsets import TopicPartitionPair


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
    # The ends are read first. In the other order, a transaction that is committed in between
    # would look open: its records would lie between the committed end and the end.
    ends = offsets.latest(cluster, topic, positions, committed=False)
    committed = offsets.latest(cluster, topic, positions)
    unread = {
        partition: position
        for partition, position in positions.items()
        if position < committed[partition]
    }
    records = offsets.first_records(cluster, topic, unread) if unread else {}
    return {
        partition: PartitionBacklog(
            partition,
            position,
            max(ends[partition], committed[partition]),
            committed[partition],
            records.get(partition),
        )
        for partition, position in positions.items()
    }


def still_held_back(
    earlier_ends: Mapping[int, int], committed: Mapping[int, int]
) -> dict[int, int]:
    """Return the partitions, with their earlier end, whose committed end is still before it."""
    return {
        partition: end
        for partition, end in earlier_ends.items()
        if committed.get(partition, end) < end
    }


def open_transactions(
    cluster: connection.Cluster, topic: str, partitions: Collection[int]
) -> list[OpenTransaction]:
    """Return the open transactions in these partitions; none if the cluster does not tell."""
    if not partitions:
        return []
    with admin_extras.connect(cluster) as extras:
        if extras is None:
            return []
        return extras.open_transactions(topic, sorted(partitions)) or []


def blocking_transactions(
    cluster: connection.Cluster, pairs: Collection[TopicPartitionPair]
) -> dict[TopicPartitionPair, OpenTransaction]:
    """Return the open transaction at which readers of each partition stop, if known."""
    blocking: dict[TopicPartitionPair, OpenTransaction] = {}
    if not pairs:
        return blocking
    with admin_extras.connect(cluster) as extras:
        if extras is None:
            return blocking
        for topic in sorted({topic for topic, _ in pairs}):
            partitions = [partition for name, partition in pairs if name == topic]
            transactions = extras.open_transactions(topic, partitions) or ()
            for partition, transaction in first_by_partition(transactions).items():
                blocking[topic, partition] = transaction
    return blocking


def first_by_partition(transactions: Collection[OpenTransaction]) -> dict[int, OpenTransaction]:
    """Return, by partition, the first open transaction, at which readers stop."""
    first: dict[int, OpenTransaction] = {}
    for transaction in sorted(transactions, key=operator.attrgetter("start_offset")):
        first.setdefault(transaction.partition, transaction)
    return first


def describe_held_back(
    held_back: Mapping[int, int], transactions: Collection[OpenTransaction]
) -> list[str]:
    """Describe the open transactions that hold records back: how many, by whom, since when."""
    blocking = first_by_partition(transactions)
    return [
        f"{counted(count, 'record')} behind {describe(partition, blocking.get(partition))}"
        for partition, count in sorted(held_back.items())
    ]


def describe(partition: int, transaction: OpenTransaction | None) -> str:
    """Describe an open transaction, as far as it is known."""
    if transaction is None:
        return f"an open transaction, partition {partition}"
    since = ""
    if transaction.since:
        since = f" since {transaction.since:%Y-%m-%dT%H:%M:%SZ}"
    producer = f"producer id {transaction.producer}"
    if transaction.transactional_id:
        producer += f", transactional id {transaction.transactional_id!r}"
    return f"an open transaction{since}, {producer}, partition {partition}"


def age_s(transaction: OpenTransaction, now: datetime | None = None) -> float | None:
    """Return for how long a transaction has been open, by our clock."""
    if transaction.since is None:
        return None
    return max(0.0, ((now or datetime.now(UTC)) - transaction.since).total_seconds())
