"""Check that the log is still the one that was read before. If not, raise a named stop.

Three things are compared with the positions of a pipeline's ledger, or of a stream:

- the ids of cluster and topic: a topic that was deleted and created again has another id;
- the offsets: the log must hold what comes next;
- the digest of the last record that was read: a log that lost its newest records has others there.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from instep import errors
from instep.document.decoding import Record
from instep.kafka import offsets, topics
from instep.kafka.connection import Cluster
from instep.kafka.topics import Topic
from instep.pipeline.apply import transaction

PLAN_FIRST = "(shows the plan; --execute applies it)"


class LogPosition(Protocol):
    """How far a partition was read, and of which topic it is."""

    @property
    def next_offset(self) -> int:
        """The offset that comes next."""

    @property
    def last_digest(self) -> str | None:
        """The digest of the last record that was read."""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""

    @property
    def topic_id(self) -> str:
        """The id of the topic."""


Ledger = Mapping[int, LogPosition]


class LogReader(msgspec.Struct, frozen=True):
    """What reads a log, in the words of its errors."""

    job: str  # e.g. pipeline 'contracts'
    position: str  # where it keeps its position: the ledger
    done: str  # what it does with records: applied
    move: str  # the command that moves its position
    accept: str  # the options of that command that accept another topic
    decide: str = ""  # an option that the command needs to skip records

    def move_to(self, place: str, *options: str) -> str:
        """Return the command that moves it to a place, as text for a remedy."""
        return " ".join(filter(None, [self.move, "--to", place, *options, PLAN_FIRST]))


def pipeline(name: str) -> LogReader:
    """Return a pipeline as the reader of its topic."""
    return LogReader(
        f"pipeline {name!r}",
        "the ledger",
        "applied",
        f"instep rewind {shlex.quote(name)}",
        "--accept-new-topic",
        "--why TEXT",
    )


def describe(cluster: Cluster, reader: LogReader, topic: str, ledger: Ledger) -> Topic:
    """Return the topic. Raise TopicGone if there are positions in it, but no such topic."""
    try:
        return topics.describe(cluster, topic)
    except errors.TopicMissing as error:
        if not ledger:
            raise
        raise gone(reader, topic, ledger) from error


def gone(reader: LogReader, topic: str, partitions: Collection[int]) -> errors.TopicGone:
    """Return the error for a topic that was deleted."""
    count = len(partitions) or "N"
    create = f"instep topics create {shlex.quote(topic)} --partitions {count} --execute"
    return errors.TopicGone(
        f"topic {topic!r} of {reader.job} no longer exists in the cluster,"
        f" but {reader.position} has a position in it",
        f"create it ({create}) and have the source publish to it, then: {_accept_new(reader)}",
    )


def replaced(reader: LogReader, topic: str) -> errors.TopicReplaced:
    """Return the error for a topic with another id than the one that was read."""
    return errors.TopicReplaced(
        f"topic {topic!r} of {reader.job} was deleted and created again,"
        " or this is another cluster",
        f"check kafka.bootstrap; to follow the new topic: {_accept_new(reader)}",
    )


def refuse_replaced(reader: LogReader, topic: Topic, ledger: Ledger) -> None:
    """Raise if the topic is another one of the same name: the offsets mean nothing there."""
    if set(ledger) - set(topic.partitions) or any(
        is_other(topic, position) for position in ledger.values()
    ):
        raise replaced(reader, topic.name)


def is_other(topic: Topic, position: LogPosition) -> bool:
    """Return whether a position belongs to another topic or cluster."""
    return position.cluster_id != topic.cluster_id or position.topic_id != topic.id


def refuse_expired(cluster: Cluster, reader: LogReader, topic: Topic, ledger: Ledger) -> None:
    """Raise if the log no longer holds what comes next."""
    first = offsets.earliest(cluster, topic.name, list(ledger))
    expired = {
        p: (ledger[p].next_offset, first[p] - 1)
        for p in sorted(ledger)
        if ledger[p].next_offset < first[p]
    }
    if expired:
        ranges = ", ".join(
            f"partition {partition}: {start} to {stop}"
            for partition, (start, stop) in expired.items()
        )
        options = " ".join(f"--partition {partition}" for partition in expired)
        raise errors.OffsetsExpired(
            f"records of topic {topic.name!r} that {reader.job} has not {reader.done}"
            f" are no longer in the log ({ranges})",
            f"to continue without them: {reader.move_to('start', options, reader.decide)}",
        )


def refuse_diverged(cluster: Cluster, reader: LogReader, topic: Topic, ledger: Ledger) -> None:
    """Raise if the log is not the one that was applied."""
    partitions = diverged(cluster, topic, ledger)
    if partitions:
        raise errors.LogDiverged(
            f"topic {topic.name!r} no longer holds what {reader.job} has {reader.done}:"
            f" {'; '.join(partitions.values())}",
            "find out when the cluster lost records, then continue from before that time:"
            f" {reader.move_to('@TIME', '(or --to start)')}",
        )


def diverged(cluster: Cluster, topic: Topic, ledger: Ledger) -> dict[int, str]:
    """Return the partitions whose log is not the one that was applied, with the evidence.

    A record that compaction has removed proves nothing.
    """
    first = offsets.earliest(cluster, topic.name, list(ledger))
    # The end with open transactions: a transaction that stays open is no lost end.
    end = offsets.latest(cluster, topic.name, list(ledger), committed=False)
    evidence: dict[int, str] = {}
    last_applied: dict[int, int] = {}
    for p, row in ledger.items():
        if row.next_offset > end[p]:
            evidence[p] = f"partition {p} ends at {end[p]}, but {row.next_offset} is next"
        elif row.last_digest and first[p] < row.next_offset:
            last_applied[p] = row.next_offset - 1
    for p, digest in digests(cluster, topic, last_applied).items():
        if digest is not None and digest != ledger[p].last_digest:
            evidence[p] = (
                f"partition {p} has another record at {last_applied[p]} than the one applied there"
            )
    return dict(sorted(evidence.items()))


def digests(cluster: Cluster, topic: Topic, places: Mapping[int, int]) -> dict[int, str | None]:
    """Return the digest of the record at exactly this offset of each partition, None if none is."""
    if not places:
        return {}
    found: dict[int, str | None] = {}
    for partition, record in offsets.first_records(cluster, topic.name, places).items():
        found[partition] = None
        if record is not None and record.offset == places[partition]:
            at_place = Record(record.offset, record.timestamp_ms, record.key, record.value)
            found[partition] = transaction.digest(at_place)
    return found


def _accept_new(reader: LogReader) -> str:
    return reader.move_to("start", reader.accept)
