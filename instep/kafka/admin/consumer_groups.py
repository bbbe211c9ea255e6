"""Consumer groups: their members, what each reads, and its lag.

Four cases are distinguished: no lag, an unknown lag, a partition without a commit, and offsets
ahead without a record (transaction markers and aborted records).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError

from instep import errors, settings
from instep.document.showing import counted
from instep.kafka import admin_extras, backlog, connection, faults, groups, offsets, topics
from instep.kafka.offsets import TopicPartitionPair

NEVER_COMMITTED = "never committed: counted from its first record"
MARKERS_ONLY = "transaction markers only"
NO_LEADER = "no leader"
NO_TOPIC = "the topic or partition does not exist"
EXPIRED = "records below {first} have expired"
BEYOND = "beyond the end of the log"
DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Listing:
    """One group in a list."""

    group: str
    state: str
    protocol: str


@dataclass(frozen=True, slots=True)
class Member:
    """One member, and what it was assigned."""

    id: str
    client_id: str
    host: str
    instance_id: str | None
    assigned: tuple[TopicPartitionPair, ...]

    def __str__(self) -> str:
        return f"{self.client_id} at {self.host}"


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """The group's position in one partition. What is unknown is None."""

    topic: str
    partition: int
    current: int | None
    end: int | None
    lag_records: int | None
    lag_seconds: float | None
    note: str
    member: Member | None


@dataclass(frozen=True, slots=True)
class Group:
    """A group: its state, its members, and its positions."""

    group: str
    state: str
    protocol: str
    assignor: str
    coordinator: str
    members: tuple[Member, ...]
    positions: tuple[PartitionPosition, ...]


def listings(cluster: connection.Cluster) -> tuple[list[Listing], list[errors.InstepError]]:
    """Return every group that we may see, and the errors of brokers that did not answer."""
    operation, since = cluster.operation("list the groups", right="DESCRIBE"), time.monotonic()

    def ask() -> Any:
        return cluster.wait(
            cluster.admin.list_consumer_groups(request_timeout=cluster.timeout_s), operation
        )

    result = cluster.retry(ask)
    failures = [cluster.translate(failure, operation, since) for failure in result.errors or ()]
    if failures and not result.valid:
        raise failures[0]
    listed = [
        Listing(group.group_id, _kafka_spelling(group.state), _kafka_spelling(group.type).lower())
        for group in result.valid
    ]
    return sorted(listed, key=lambda group: group.group), failures


def members(cluster: connection.Cluster, group: str) -> tuple[Member, ...]:
    """Return the group's members; none if the group does not exist."""
    return described(cluster, [group])[group].members


def describe(cluster: connection.Cluster, group: str) -> Group:
    """Return the group with its lag; raise an error with similar names if it does not exist."""
    return describe_each(cluster, [group])[0]


def describe_each(cluster: connection.Cluster, names: Sequence[str]) -> list[Group]:
    """Return several groups with their lag; common facts are read once."""
    descriptions, committed = described(cluster, names), groups.positions_of_each(cluster, names)
    for name in names:
        if descriptions[name].state == DEAD and not committed[name]:
            raise missing(cluster, name)
    assigned = {
        name: {pair: member for member in descriptions[name].members for pair in member.assigned}
        for name in names
    }
    logs = _read_logs(
        cluster,
        {pair for name in names for pair in (*committed[name], *assigned[name])},
    )
    return [
        dataclasses.replace(
            descriptions[name],
            positions=tuple(_positions(cluster, logs, committed[name], assigned[name])),
        )
        for name in names
    ]


def lags(cluster: connection.Cluster, names: Sequence[str]) -> dict[str, int | None]:
    """Return the lag of each group: the offsets behind its positions; None if it is unknown.

    Unlike `describe_each` it reads no records, so transaction markers count too.
    """
    committed = groups.positions_of_each(cluster, names)
    known = topics.known_layouts(
        cluster, {topic for pairs in committed.values() for topic, _ in pairs}
    )
    led = [(topic, part) for topic, found in known.items() for part in found.with_leader]
    wanted = {pair for pairs in committed.values() for pair in pairs}
    spans = offsets.spans(cluster, [pair for pair in led if pair in wanted])
    return {name: _offsets_behind(pairs, spans) for name, pairs in committed.items()}


def _offsets_behind(
    positions: Mapping[TopicPartitionPair, int], spans: Mapping[TopicPartitionPair, offsets.Span]
) -> int | None:
    if not positions or any(pair not in spans for pair in positions):
        return None
    return sum(
        max(0, spans[pair].end - max(current, spans[pair].first))
        for pair, current in positions.items()
    )


def exists(cluster: connection.Cluster, group: str) -> bool:
    return described(cluster, [group])[group].state != DEAD


def missing(cluster: connection.Cluster, group: str, alternative: str = "") -> errors.SettingsError:
    """Return the error for a group that does not exist, with similar names and a remedy."""
    existing = [listing.group for listing in listings(cluster)[0]]
    similar = settings.nearest(group, existing, count=3)
    where = ", ".join(faults.addresses(cluster.bootstrap))
    return errors.SettingsError(
        f"group {group!r} does not exist at {where}{similar}",
        f"list the groups: instep groups list{alternative}",
    )


def delete(cluster: connection.Cluster, group: str) -> str:
    """Delete a group that has no members, with its offsets."""
    operation = cluster.operation(f"delete group {group!r}", group=group, right="DELETE")

    def attempt() -> None:
        cluster.wait(
            cluster.admin.delete_consumer_groups([group], request_timeout=cluster.timeout_s)[group],
            operation,
        )

    try:
        cluster.retry(attempt)
    except errors.InstepError as failure:
        match faults.code(failure):
            case KafkaError.GROUP_ID_NOT_FOUND:
                raise missing(cluster, group) from failure.__cause__
            case KafkaError.NON_EMPTY_GROUP:
                raise occupied(group, members(cluster, group)) from failure.__cause__
        raise
    return "deleted"


def occupied(group: str, present: Collection[Member]) -> errors.SettingsError:
    """Return the error for a change of a group that has members."""
    named = "; ".join(f"{member} ({member.id})" for member in present) or "they have just joined"
    return errors.SettingsError(
        f"group {group!r} has {counted(len(present), 'member')}: {named}",
        "stop them first; nothing was changed",
    )


def described(cluster: connection.Cluster, names: Sequence[str]) -> dict[str, Group]:
    """Return each group without its positions; a group that does not exist is dead."""

    def ask() -> dict[str, Group]:
        answers = cluster.admin.describe_consumer_groups(
            list(names), request_timeout=cluster.timeout_s
        )
        return {name: _description(cluster, name, answer) for name, answer in answers.items()}

    return cluster.retry(ask)


def _description(
    cluster: connection.Cluster, group: str, answer: concurrent.futures.Future[Any]
) -> Group:
    try:
        description = cluster.wait(
            answer, cluster.operation(f"describe group {group!r}", group=group, right="DESCRIBE")
        )
    except errors.InstepError as failure:
        if faults.code(failure) == KafkaError.GROUP_ID_NOT_FOUND:
            return Group(group, DEAD, "", "", "", (), ())
        raise
    node = description.coordinator
    coordinator = "unknown"
    if node is not None:
        coordinator = f"{node.id} ({node.host}:{node.port})"
    group_members = tuple(
        sorted(
            (_member(member) for member in description.members),
            key=lambda member: (member.client_id, member.id),
        )
    )
    return Group(
        group,
        _kafka_spelling(description.state),
        _kafka_spelling(description.type).lower(),
        description.partition_assignor,
        coordinator,
        group_members,
        (),
    )


def _member(description: Any) -> Member:
    assigned = sorted(
        (topic_partition.topic, topic_partition.partition)
        for topic_partition in description.assignment.topic_partitions
    )
    return Member(
        description.member_id,
        description.client_id,
        description.host.lstrip("/"),
        description.group_instance_id,
        tuple(assigned),
    )


def _kafka_spelling(value: Any) -> str:
    """Return a state or a type of the client in Kafka's spelling."""
    named = "".join(part.capitalize() for part in value.name.split("_"))
    return named.replace("Rebalancing", "Rebalance")


@dataclass(frozen=True, slots=True)
class _LogState:
    """The partitions of some topics: those that exist, and the spans of those that answer."""

    existing: Collection[TopicPartitionPair]
    spans: Mapping[TopicPartitionPair, offsets.Span]
    blocking: Mapping[TopicPartitionPair, admin_extras.OpenTransaction]


def _read_logs(cluster: connection.Cluster, pairs: Collection[TopicPartitionPair]) -> _LogState:
    """Read the state of all partitions of these topics, also of those without a commit."""
    if not pairs:
        return _LogState((), {}, {})
    layouts = topics.known_layouts(cluster, {topic for topic, _ in pairs})
    existing: list[TopicPartitionPair] = []
    with_leader: list[TopicPartitionPair] = []
    for topic in sorted(layouts):
        existing += [(topic, part.partition) for part in layouts[topic].partitions]
        with_leader += [(topic, partition) for partition in layouts[topic].with_leader]
    spans = offsets.spans(cluster, with_leader)
    held_back = [pair for pair, span in spans.items() if span.committed_end < span.end]
    return _LogState(set(existing), spans, backlog.blocking_transactions(cluster, held_back))


def _positions(
    cluster: connection.Cluster,
    logs: _LogState,
    committed: Mapping[TopicPartitionPair, int],
    assigned: Mapping[TopicPartitionPair, Member],
) -> list[PartitionPosition]:
    """Return the group's position in every partition of its topics, with the lag."""
    topics = {topic for topic, _ in (*committed, *assigned)}
    pairs = {*committed, *assigned, *(pair for pair in logs.existing if pair[0] in topics)}
    # The age of the lag is that of the next record, so only partitions with unread records are
    # read. A partition without a commit counts from its first record.
    unread: dict[TopicPartitionPair, int] = {}
    for pair, span in logs.spans.items():
        start = committed.get(pair, span.first)
        if pair[0] in topics and start < span.committed_end:
            unread[pair] = start
    next_records = _next_records(cluster, unread)
    now_ms = time.time() * 1000
    positions = []
    for pair in sorted(pairs):
        current, member = committed.get(pair), assigned.get(pair)
        log_span = logs.spans.get(pair)
        if log_span is None:
            note = NO_LEADER if pair in logs.existing else NO_TOPIC
            positions.append(PartitionPosition(*pair, current, None, None, None, note, member))
            continue
        lag, age_s, note = _lag(log_span, current, next_records.get(pair), now_ms)
        if lag and log_span.committed_end < log_span.end:
            blocked = f"behind {backlog.describe(pair[1], logs.blocking.get(pair))}"
            note = f"{note}; {blocked}" if note else blocked
        positions.append(PartitionPosition(*pair, current, log_span.end, lag, age_s, note, member))
    return positions


def _lag(
    span: offsets.Span, current: int | None, record: offsets.LogRecord | None, now_ms: float
) -> tuple[int | None, float | None, str]:
    """Return the lag in records and in seconds, and a remark."""
    if current is None:
        return *_lag(span, span.first, record, now_ms)[:2], NEVER_COMMITTED
    if current > span.end:
        return None, None, BEYOND
    if current == span.end:
        return 0, 0.0, ""
    if record is not None or current < span.first:
        age_s = None
        if record is not None and record.timestamp_ms >= 0:
            age_s = max(0.0, (now_ms - record.timestamp_ms) / 1000)
        note = EXPIRED.format(first=span.first) if current < span.first else ""
        return span.end - current, age_s, note
    # From here on there is no committed record after the position.
    if span.committed_end < span.end:
        return span.end - max(current, span.committed_end), None, ""
    return 0, 0.0, MARKERS_ONLY


def _next_records(
    cluster: connection.Cluster, positions: Mapping[TopicPartitionPair, int]
) -> dict[TopicPartitionPair, offsets.LogRecord | None]:
    records: dict[TopicPartitionPair, offsets.LogRecord | None] = {}
    for topic in sorted({pair[0] for pair in positions}):
        topic_positions = {
            partition: offset for (name, partition), offset in positions.items() if name == topic
        }
        records |= {
            (topic, partition): record
            for partition, record in offsets.first_records(cluster, topic, topic_positions).items()
        }
    return records
