"""Publish the records of one source partition, with the position, in Kafka transactions.

Whoever publishes has first fenced everybody else and marked that (`fence`), then read the position
up to the mark, then claimed it: the claim is a transaction that contains only the position, with
this run's epoch. So a run that was fenced finds out by the position whether a newer run has taken
over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from instep import errors
from instep.document.decoding import Record
from instep.document.guard import Verdict
from instep.kafka import position_topic, topics
from instep.kafka.connection import Cluster
from instep.kafka.record_writer import Headers, RecordRefused, RecordWriter
from instep.kafka.topic_identity import TopicIdentity
from instep.pipeline.apply.batch import BatchOutcome, ProbeEvent, bounded, find_probe
from instep.pipeline.apply.transaction import digest
from instep.streams import output, position
from instep.streams.output import OutputRecord, Unpublishable
from instep.streams.plan import StreamPlan
from instep.streams.position import StreamPosition

PUBLICATION = 0  # as the timestamp of a record: the time at which it is published


class SourceRecords(msgspec.Struct, frozen=True):
    """The source records that one transaction is about: from the first offset to the last."""

    first: int
    last: int
    records: int
    last_digest: str | None
    timestamps_ms: Sequence[int]  # of those that something is published of

    @staticmethod
    def of(records: Sequence[Record]) -> SourceRecords:
        """Return what a transaction says about these records of a partition."""
        return SourceRecords(
            records[0].offset,
            records[-1].offset,
            len(records),
            digest(records[-1]),
            [record.timestamp_ms for record in records],
        )


class PartitionPublisher:
    """Publishes what comes from one partition. Used by one thread at a time.

    After an error it must be closed: only another one can find out what was committed.
    """

    def __init__(
        self, plan: StreamPlan, partition: int, cluster: Cluster, is_stopped: Callable[[], bool]
    ) -> None:
        self._plan, self._partition, self._cluster = plan, partition, cluster
        self._writer = RecordWriter(
            cluster,
            position_topic.of_stream(plan.name, partition),
            plan.stream.target,
            guarantee=plan.stream.guarantee,
            record_bytes_max=plan.record_bytes_max,
            is_stopped=is_stopped,
        )
        self._prefix = output.id_prefix(plan.name, topics.kafka_spelling(plan.source_id), partition)
        self._probe = find_probe()
        self._position: StreamPosition
        self._commits = 0
        self._published = self._dead = 0  # in the open transaction

    @property
    def next_offset(self) -> int:
        """Return the offset that comes next."""
        return self._position.next_offset

    def fence(self) -> bytes:
        """Fence older publishers of this partition, end their open transactions, and mark that."""
        self._writer.start()
        return self._writer.mark()

    def claim(self, found: bytes | None) -> None:
        """Take over the position that was read after `fence`."""
        known = self._known(found)
        if known.writer > self._plan.writer:
            raise position.fenced(self._plan.name, known, self._plan.epoch)
        self._position = msgspec.structs.replace(
            known, epoch=self._plan.epoch, run=self._plan.run, at_ms=_now_ms()
        )
        self._writer.begin()
        self._writer.commit(position.encode(self._position))

    def _known(self, found: bytes | None) -> StreamPosition:
        plan = self._plan
        if found is not None:
            return position.decode(found, plan.name, self._partition)
        if self._partition not in plan.begins:
            raise position.missing(plan.name, [self._partition], "the position is gone")
        return plan.first_position(plan.begins[self._partition])

    def add(self, outputs: Iterable[OutputRecord], first: int, last: int) -> None:
        """Begin a transaction, and add what is published of the records between two offsets."""
        self._step(1, first, last)
        self._writer.begin()
        self._step(2, first, last)
        self._published = self._dead = 0
        add, prefix = self._writer.add, self._prefix
        earliest_ms, latest_ms = self._accepted_timestamps()
        for record in outputs:
            headers = output.headers(record, prefix)
            if record.failure is not None:
                self._refuse(record, headers, Unpublishable.TRANSFORMATION_FAILED, record.failure)
                continue
            if record.key is None:
                self._refuse(record, headers, Unpublishable.KEY_MISSING, "it has no key")
                continue
            timestamp_ms = record.timestamp_ms
            if not earliest_ms <= timestamp_ms <= latest_ms:
                timestamp_ms = PUBLICATION
            try:
                add(record.key, record.value, headers, None, timestamp_ms)
            except RecordRefused as refused:
                size = len(record.value or b"")
                why = f"it has {size:,} bytes, which topic {self._plan.stream.target!r} refuses"
                self._refuse(record, headers, Unpublishable.TOO_LARGE, f"{why}: {refused}")
            else:
                self._published += 1
        if self._commits < self._writer.clients:
            # Only now does this client know the partitions. They are confirmed before the commit.
            self._writer.settle()
        self._step(3, first, last)

    def commit(self, source: SourceRecords) -> BatchOutcome:
        """Commit the open transaction, which has what is published of these records."""
        first, last = source.first, source.last
        following = msgspec.structs.replace(
            self._position,
            next_offset=last + 1,
            last_digest=source.last_digest,
            records=self._position.records + source.records,
            published=self._position.published + self._published,
            dead=self._position.dead + self._dead,
            at_ms=_now_ms(),
        )

        self._writer.commit(position.encode(following), lambda: self._step(4, first, last))
        self._commits += 1
        self._position = following
        self._step(5, first, last)
        return self._outcome(source)

    def close(self) -> None:
        """Abort what is not committed."""
        self._writer.close()

    def _accepted_timestamps(self) -> tuple[int, int]:
        """Return the bounds of timestamps that are kept; an empty range if none are."""
        bounds = self._plan.timestamps
        return bounds.around(_now_ms()) if bounds is not None else (0, -1)

    def _outcome(self, source: SourceRecords) -> BatchOutcome:
        now = _now_ms()
        ages = [(now - timestamp_ms) * 1_000 for timestamp_ms in source.timestamps_ms]
        verdicts = dict.fromkeys(Verdict, 0) | {Verdict.APPLIED: self._published}
        return BatchOutcome(self._partition, source.records, verdicts, self._dead, bounded(ages))

    def _refuse(
        self, record: OutputRecord, headers: Headers, reason: Unpublishable, why: str
    ) -> None:
        """Publish a record as a dead letter instead, in the same transaction, or stop."""
        plan = self._plan
        place = f"{plan.stream.source}:{self._partition}:{record.offset}"
        if reason is Unpublishable.TRANSFORMATION_FAILED:
            what = f"stream {plan.name!r} cannot transform record {place}: {why}"
        else:
            what = f"what stream {plan.name!r} made of record {place} cannot be published: {why}"
        topic = plan.stream.dead_letters
        if topic is None:
            stop = {
                Unpublishable.KEY_MISSING: errors.OutputKeyMissing,
                Unpublishable.TOO_LARGE: errors.OutputTooLarge,
                Unpublishable.TRANSFORMATION_FAILED: errors.RecordNotTransformed,
            }[reason]
            raise stop(what)
        headers = [
            *headers,
            (output.REASON, reason.value.encode()),
            (output.DETAIL, what.encode()),
        ]
        value = record.value
        if reason is Unpublishable.TOO_LARGE or len(value or b"") > plan.dead_bytes_max:
            value = None  # what it was made of is in the topic that the stream reads
        try:
            self._writer.add(record.key, value, headers, topic)
        except RecordRefused:
            self._writer.add(None, None, headers[-3:], topic)
        self._dead += 1

    def _step(self, step: int, first: int, last: int) -> None:
        self._probe(ProbeEvent(self._plan.name, step, self._partition, first, last))


class SameTarget:
    """Checks before a commit that the output topic is still the one that the flow knows."""

    def __init__(self, plan: StreamPlan, cluster: Cluster) -> None:
        self._plan, self._cluster = plan, cluster
        self._identity = TopicIdentity(
            cluster.kafka,
            cluster.bootstrap,
            plan.stream.target,
            plan.target_id,
            plan.target_partitions,
        )

    def ask(self) -> None:
        """Send the request, after records were added."""
        self._identity.ask()

    def confirm(self) -> None:
        """Raise if the topic was replaced or has grown."""
        if not self._identity.is_confirmed():
            self._plan.refuse_changed_target(
                topics.describe(self._cluster, self._plan.stream.target)
            )

    def close(self) -> None:
        """Close the connection."""
        self._identity.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
