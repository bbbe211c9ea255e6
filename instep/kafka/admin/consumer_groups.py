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

from instep import errors
from instep.document.showing import counted
from instep.kafka import backlog, connection, faults, groups, layout, offsets
from instep.kafka.admin import admin_extras
from instep.kafka.offsets import Spot

NEVER_COMMITTED = "never committed: counted from its first record"
MARKERS_ONLY = "transaction markers only"
NO_LEADER = "no leader"
NO_TOPIC = "no such topic or partition now"
EXPIRED = "records below {first} are gone"
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
    assigned: tuple[Spot, ...]

    def __str__(self) -> str:
        return f"{self.client_id} at {self.host}"


@dataclass(frozen=True, slots=True)
class Standing:
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
    standings: tuple[Standing, ...]


def listings(cluster: connection.Cluster) -> tuple[list[Listing], list[errors.InstepError]]:
    """Return every group that we may see, and the errors of brokers that did not answer."""
    operation, since = cluster.operation("list the groups", right="DESCRIBE"), time.monotonic()

    def ask() -> Any:
        return cluster.wait(
            cluster.admin.list_consumer_groups(request_timeout=cluster.timeout_s), operation
        )

    found = cluster.retry(ask)
    failures = [cluster.translate(failure, operation, since) for failure in found.errors or ()]
    if failures and not found.valid:
        raise failures[0]
    listed = [
        Listing(one.group_id, _words(one.state), _words(one.type).lower()) for one in found.valid
    ]
    return sorted(listed, key=lambda one: one.group), failures


def members(cluster: connection.Cluster, group: str) -> tuple[Member, ...]:
    """Return the group's members; none if the group does not exist."""
    return described(cluster, [group])[group].members


def describe(cluster: connection.Cluster, group: str) -> Group:
    """Return the group with its lag; raise an error with similar names if it does not exist."""
    return describe_each(cluster, [group])[0]


def describe_each(cluster: connection.Cluster, names: Sequence[str]) -> list[Group]:
    """Return several groups with their lag; common facts are read once."""
    found, committed = described(cluster, names), groups.positions_of_each(cluster, names)
    for name in names:
        if found[name].state == DEAD and not committed[name]:
            raise missing(cluster, name)
    assigned = {
        name: {spot: one for one in found[name].members for spot in one.assigned} for name in names
    }
    ground = _survey(
        cluster, {spot for name in names for spot in (*committed[name], *assigned[name])}
    )
    return [
        dataclasses.replace(
            found[name],
            standings=tuple(_standings(cluster, ground, committed[name], assigned[name])),
        )
        for name in names
    ]


def exists(cluster: connection.Cluster, group: str) -> bool:
    return described(cluster, [group])[group].state != DEAD


def missing(cluster: connection.Cluster, group: str, or_else: str = "") -> errors.SettingsError:
    """Return the error for a group that does not exist, with similar names and a remedy."""
    near = faults.similar_names(group, [one.group for one in listings(cluster)[0]])
    where = ", ".join(faults.addresses(cluster.bootstrap))
    return errors.SettingsError(
        f"group {group!r} does not exist at {where}{near}",
        f"see which there are: instep groups list{or_else}",
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
    return "is deleted"


def occupied(group: str, there: Collection[Member]) -> errors.SettingsError:
    """Return the error for a change of a group that has members."""
    named = "; ".join(f"{member} ({member.id})" for member in there) or "they have just come"
    return errors.SettingsError(
        f"group {group!r} has {counted(len(there), 'member')}: {named}",
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
        found = cluster.wait(
            answer, cluster.operation(f"describe group {group!r}", group=group, right="DESCRIBE")
        )
    except errors.InstepError as failure:
        if faults.code(failure) == KafkaError.GROUP_ID_NOT_FOUND:
            return Group(group, DEAD, "", "", "", (), ())
        raise
    node = found.coordinator
    coordinator = f"{node.id} ({node.host}:{node.port})" if node is not None else "unknown"
    there = tuple(
        sorted((_member(one) for one in found.members), key=lambda one: (one.client_id, one.id))
    )
    return Group(
        group,
        _words(found.state),
        _words(found.type).lower(),
        found.partition_assignor,
        coordinator,
        there,
        (),
    )


def _member(one: Any) -> Member:
    assigned = sorted((place.topic, place.partition) for place in one.assignment.topic_partitions)
    return Member(
        one.member_id, one.client_id, one.host.lstrip("/"), one.group_instance_id, tuple(assigned)
    )


def _words(value: Any) -> str:
    """Return a state or a type of the client in Kafka's spelling."""
    named = "".join(part.capitalize() for part in value.name.split("_"))
    return named.replace("Rebalancing", "Rebalance")


@dataclass(frozen=True, slots=True)
class _Ground:
    """Existing partitions, and the spans of those that answer."""

    there: Collection[Spot]
    spans: Mapping[Spot, offsets.Span]
    holders: Mapping[Spot, admin_extras.OpenTransaction]


def _survey(cluster: connection.Cluster, spots: Collection[Spot]) -> _Ground:
    known = layout.read(cluster).topics if spots else {}
    # all partitions of the group's topics, also those without a commit
    there = {
        (topic, part.partition)
        for topic in {spot[0] for spot in spots} & set(known)
        for part in known[topic].partitions
    }
    spans = offsets.spans(
        cluster, [spot for spot in sorted(there) if spot[1] in known[spot[0]].led]
    )
    held = [spot for spot, span in spans.items() if span.committed_end < span.end]
    return _Ground(there, spans, backlog.holders_of_each(cluster, held))


def _standings(
    cluster: connection.Cluster,
    ground: _Ground,
    committed: Mapping[Spot, int],
    assigned: Mapping[Spot, Member],
) -> list[Standing]:
    topics, spans, there = {spot[0] for spot in (*committed, *assigned)}, ground.spans, ground.there
    spots = sorted({*committed, *assigned, *(spot for spot in there if spot[0] in topics)})
    begun = {
        spot: committed.get(spot, span.first) for spot, span in spans.items() if spot[0] in topics
    }
    waiting = _next_records(cluster, {s: o for s, o in begun.items() if o < spans[s].committed_end})
    now_ms = time.time() * 1000
    found = []
    for spot in spots:
        span, current = spans.get(spot), committed.get(spot)
        lag: int | None = None
        seconds: float | None = None
        note = NO_LEADER if spot in there else NO_TOPIC
        if span is not None:
            lag, seconds, note = _lag(span, current, waiting.get(spot), now_ms)
        if span is not None and span.committed_end < span.end and lag:
            note = "; ".join(
                filter(None, (note, f"behind {backlog.named(spot[1], ground.holders.get(spot))}"))
            )
        end = span.end if span else None
        found.append(Standing(*spot, current, end, lag, seconds, note, assigned.get(spot)))
    return found


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
        age = (
            max(0.0, (now_ms - record.timestamp_ms) / 1000)
            if record and record.timestamp_ms >= 0
            else None
        )
        return (
            span.end - current,
            age,
            EXPIRED.format(first=span.first) if current < span.first else "",
        )
    if span.committed_end < span.end:
        return span.end - max(current, span.committed_end), None, ""
    return 0, 0.0, MARKERS_ONLY


def _next_records(
    cluster: connection.Cluster, positions: Mapping[Spot, int]
) -> dict[Spot, offsets.LogRecord | None]:
    found: dict[Spot, offsets.LogRecord | None] = {}
    for topic in sorted({spot[0] for spot in positions}):
        of_topic = {part: offset for (name, part), offset in positions.items() if name == topic}
        found |= {
            (topic, part): one
            for part, one in offsets.first_records(cluster, topic, of_topic).items()
        }
    return found
