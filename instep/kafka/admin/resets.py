"""Move consumer groups to another place in the log: with a plan, and only without members.

New offsets stay within the log. The end is that of the log, as in Kafka's own tool: records of
open transactions are skipped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError

from instep import errors
from instep.kafka import connection, faults, groups, offsets, places, topics
from instep.kafka.admin import consumer_groups
from instep.kafka.offsets import Spot

COLUMNS = "topic,partition,offset or group,topic,partition,offset"
NEW_GROUP = "; or create it, with --new-group"


@dataclass(frozen=True, slots=True)
class To:
    """To a place."""

    place: places.Place


@dataclass(frozen=True, slots=True)
class Shift:
    """By a number of offsets forward or back."""

    by: int


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """To the current position, or to the end if there is none; for a plan to export."""


@dataclass(frozen=True, slots=True)
class ToOffsets:
    """To an offset of each partition, from a file."""

    offsets: Mapping[Spot, int]


How = To | Shift | ToCurrent | ToOffsets


@dataclass(frozen=True, slots=True)
class GroupMove:
    """The move of one partition. `asked` is the requested offset if the log does not have it."""

    topic: str
    partition: int
    current: int | None
    new: int
    asked: int | None = None

    @property
    def delta(self) -> int | None:
        """Return by how many offsets the group moves."""
        return None if self.current is None else self.new - self.current


@dataclass(frozen=True, slots=True)
class Moved:
    """The outcome of a move: the group's position now, and the error if it was refused."""

    move: GroupMove
    now: int | None
    error: errors.InstepError | None = None


def plan(
    cluster: connection.Cluster,
    group: str,
    spots: Collection[Spot],
    how: How,
    *,
    new_group: bool = False,
) -> list[GroupMove]:
    """Return the moves of the partitions; with `new_group` the group may not exist yet."""
    if not new_group and not consumer_groups.exists(cluster, group):
        raise consumer_groups.missing(cluster, group, NEW_GROUP)
    there = groups.all_positions(cluster, group)
    known = topics.placed(cluster, {topic for topic, _ in spots}).topics
    for topic, partition in spots:
        known[topic].refuse_strange([partition])
        if partition not in known[topic].led:
            raise errors.BrokerUnreachable(
                f"topic {topic!r} has no leader for partition {partition}",
                "start the broker that has it, or omit the partition: --topic T:0,1",
            )
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(set(spots)):
        by_topic.setdefault(topic, []).append(partition)
    return [
        move
        for topic, partitions in by_topic.items()
        for move in _moves(cluster, topic, partitions, how, there)
    ]


def execute(cluster: connection.Cluster, group: str, moves: Collection[GroupMove]) -> list[Moved]:
    """Commit the new offsets and read them back; refused while the group has members."""
    if members := consumer_groups.members(cluster, group):
        raise consumer_groups.occupied(group, members)
    if not moves:
        return []
    refused = groups.commit(
        cluster, group, {(move.topic, move.partition): move.new for move in moves}
    )
    if any(faults.code(failure) == KafkaError.UNKNOWN_MEMBER_ID for failure in refused.values()):
        raise consumer_groups.occupied(group, consumer_groups.members(cluster, group))
    now = groups.all_positions(cluster, group)
    found = [
        (move, now.get((move.topic, move.partition)), refused.get((move.topic, move.partition)))
        for move in moves
    ]
    # if one partition is refused, the client reports all; the positions show which one it was
    return [Moved(move, at, error if at != move.new else None) for move, at, error in found]


def chosen(
    cluster: connection.Cluster, group: str, named: Iterable[str], *, all_topics: bool = False
) -> list[Spot]:
    """Return the partitions of TOPIC and TOPIC:0,1 texts, or all with offsets of the group."""
    if all_topics:
        found = sorted(groups.all_positions(cluster, group))
        if not found and consumer_groups.exists(cluster, group):
            raise errors.SettingsError(
                f"group {group!r} has no offsets in any topic", "name topics with --topic"
            )
        if not found:
            raise consumer_groups.missing(cluster, group)
        return found
    parts = [(text, *text.partition(":")) for text in named]
    known = topics.placed(cluster, [topic for _, topic, _, _ in parts]).topics
    spots: list[Spot] = []
    for text, topic, colon, listed in parts:
        partitions = (
            _numbers(text, listed)
            if colon
            else [part.partition for part in known[topic].partitions]
        )
        spots += [(topic, partition) for partition in partitions]
    return spots


def parse_csv(text: str, group: str, name: str) -> dict[Spot, int]:
    """Parse a file of Kafka's own tool: one line per partition, no header, group optional."""
    found: dict[Spot, int] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row or row == [""]:
            continue
        where = f"{name}, line {number}"
        if len(row) not in (3, 4):
            raise errors.SettingsError(
                f"{where} has {len(row)} fields: {','.join(row)!r}", f"a line is {COLUMNS}"
            )
        *of_group, topic, partition, offset = (field.strip() for field in row)
        if of_group and of_group[0] != group:
            raise errors.SettingsError(
                f"{where} is about group {of_group[0]!r}, not {group!r}",
                "reset one group at a time",
            )
        if not (topic and _is_number(partition) and _is_number(offset)):
            raise errors.SettingsError(
                f"{where} names no topic, partition and offset: {','.join(row)!r}",
                f"a line is {COLUMNS}",
            )
        spot = (topic, int(partition))
        if spot in found:
            raise errors.SettingsError(
                f"{where} names {topic} {partition} again", "keep one line of each partition"
            )
        found[spot] = int(offset)
    if not found:
        raise errors.SettingsError(f"{name} is empty: it names no offset", f"a line is {COLUMNS}")
    return found


def to_csv(moves: Iterable[GroupMove]) -> str:
    """Return the plan in the format of Kafka's own tool."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        (move.topic, move.partition, move.new) for move in moves
    )
    return text.getvalue()


def _moves(
    cluster: connection.Cluster,
    topic: str,
    partitions: Collection[int],
    how: How,
    there: Mapping[Spot, int],
) -> list[GroupMove]:
    current = {partition: there.get((topic, partition)) for partition in partitions}
    if isinstance(how, To):
        found = places.resolve(cluster, topic, partitions, how.place, committed=False)
        return [GroupMove(topic, p, current[p], found[p], found.clamped.get(p)) for p in partitions]
    first = offsets.earliest(cluster, topic, partitions)
    end = offsets.latest(cluster, topic, partitions, committed=False)
    moves = []
    for partition in partitions:
        asked = _asked(topic, partition, how, current[partition], end[partition])
        new = min(max(asked, first[partition]), end[partition])
        moves.append(
            GroupMove(topic, partition, current[partition], new, asked if asked != new else None)
        )
    return moves


def _asked(
    topic: str, partition: int, how: Shift | ToCurrent | ToOffsets, current: int | None, end: int
) -> int:
    match how:
        case ToOffsets(by_spot):
            return by_spot[topic, partition]
        case ToCurrent():
            return end if current is None else current
        case Shift(by):
            if current is None:
                raise errors.SettingsError(
                    f"the group has no offset in {topic} {partition} to count from",
                    "use --to-offset, or omit the partition: --topic T:0,1",
                )
            return current + by


def _numbers(text: str, listed: str) -> list[int]:
    parts = [part.strip() for part in listed.split(",")]
    if not all(_is_number(part) for part in parts):
        raise errors.SettingsError(f"{text!r} names no partitions", "write TOPIC or TOPIC:0,1,2")
    return [int(part) for part in parts]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= places.OFFSET_MAX
