"""`instep replay`: apply a range of the log again, under the guard, to repair a damaged table.

The ledger and its epoch stay as they are. Records that the pipeline has not reached yet are left
to it. Replay excludes what is missing from the table on purpose: dead letters, parked documents,
and what people skipped or dropped. It does not check status transitions again and parks nothing:
if the table refuses a row, the report says so and the row stays as it is.

As in the pipeline, an event with a higher order value than the stored one is applied, and one with
a lower order value is stale. If the order values are *equal*, the event may be the one that wrote
the row. It then restores the row, but only if it is known to be that event:

- The history names the event that wrote a row.
- Without a history, and with versions, the first event of a version wrote the row. It is known if
  the log is read from offset 0.
- Without a history, and with times, the last event of a time wrote the row. It is known if the log
  is read up to the ledger.

A delete has no order value. It is replayed only if the history says that nothing came after it.

Without an order, the later record in the log wins, so the range must reach the ledger. Events are
folded to one state per document before anything is written, so the table never shows an older
status.
"""

from __future__ import annotations

import functools
import itertools
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import msgspec

from instep import errors
from instep.document import guard
from instep.document.decoding import Event, Record, record_of
from instep.document.guard import DocumentId, Stored, Values, Verdict
from instep.document.reasons import Reason
from instep.kafka import places
from instep.kafka.connection import Cluster
from instep.kafka.logs import Log, TopicLog
from instep.pipeline import continuity
from instep.pipeline.apply import isolate, maintenance, rewrite
from instep.pipeline.apply.maintenance import Change, MaintenanceSession
from instep.sinks.journal_entries import (
    Action,
    PartitionRange,
    RecordPosition,
    RowOrigins,
    position_of,
)
from instep.sinks.stored_values import chunks
from instep.sinks.target import Position

CHUNK_EVENTS = 5_000
REFUSED = "refused"


class ReplayRange(msgspec.Struct, frozen=True):
    """The part of the log to replay, by partition, and the documents (all, if none is named)."""

    ranges: dict[int, tuple[int, int]]
    from_start: bool
    to_ledger: bool
    documents: frozenset[DocumentId] = frozenset()

    @property
    def records(self) -> int:
        """Return the number of offsets."""
        return sum(max(0, end - start) for start, end in self.ranges.values())


def resolve_range(
    session: MaintenanceSession,
    cluster: Cluster,
    *,
    documents: Collection[str] = (),
    first: places.Place | None = None,
    last: places.Place | None = None,
    partitions: Collection[int] = (),
    log: Log | None = None,
) -> ReplayRange:
    """Return the part of the log between two places. It never goes beyond the ledger.

    `log` has the records; by default, the topic itself.
    """
    with session.read() as sink:
        ledger = sink.ledger.positions()
    topic = continuity.describe(
        cluster, continuity.pipeline(session.name), session.sink.target.topic, ledger
    )
    continuity.refuse_replaced(continuity.pipeline(session.name), topic, ledger)
    unknown = sorted(set(partitions) - set(topic.partitions))
    if unknown:
        raise errors.SettingsError(
            f"topic {topic.name!r} has no partition {', '.join(map(str, unknown))}",
            f"it has {', '.join(map(str, topic.partitions))}",
        )
    selected = sorted(set(partitions or topic.partitions) & set(ledger))
    log = log or TopicLog(cluster, topic.name)
    begin = places.resolve_in(log, selected, first or places.FromStart())
    end = places.resolve_in(log, selected, last or places.FromEnd())
    log_start = log.starts(selected)
    ranges = {}
    for partition in selected:
        upper = min(end[partition], ledger[partition].next_offset)
        ranges[partition] = (begin[partition], max(begin[partition], upper))
    to_ledger = all(end[p] >= ledger[p].next_offset for p in selected)
    if not session.sink.target.rules.ordered and not to_ledger:
        raise errors.SettingsError(
            f"pipeline {session.name!r} has no order, so a range that ends before the ledger would"
            " bring back older statuses",
            "leave out --to",
        )
    from_start = all(begin[p] == log_start[p] == 0 for p in selected)
    return ReplayRange(
        ranges, from_start, to_ledger, frozenset(map(session.decoder.document, documents))
    )


def _no_progress() -> None:
    """Show no progress."""


def replay(
    session: MaintenanceSession,
    cluster: Cluster,
    selected: ReplayRange,
    *,
    execute: bool,
    progress: Callable[[], None] = _no_progress,
    log: Log | None = None,
) -> Iterator[Change]:
    """Replay a range; yield the documents whose rows change, or would, or are refused.

    `log` has the records; by default, the topic itself.
    """
    log = log or TopicLog(cluster, session.sink.target.topic)
    excluded = _excluded(session)
    if not session.sink.target.rules.ordered:
        yield from _replay_unordered(session, log, selected, excluded, execute, progress)
        return
    highest_orders: dict[DocumentId, int] = {}  # by document, of the events read so far
    for partition, bounds in selected.ranges.items():
        events = _events(session, log, {partition: bounds}, selected.documents, excluded, progress)
        while chunk := list(itertools.islice(events, CHUNK_EVENTS)):
            yield from session.retry(
                functools.partial(
                    _replay_ordered, session, selected, partition, chunk, highest_orders, execute
                )
            )


class OvertakenInLog:
    """Finds the events whose documents have had a later event, for pipelines without an order.

    Without order values only the log can tell, so it is read from the first event to the ledger.
    What was read is kept for the next question about the same events: who asks before the ledger
    is locked, and again under the lock, reads only the records in between under the lock.
    """

    def __init__(
        self,
        session: MaintenanceSession,
        open_cluster: Callable[[], AbstractContextManager[Cluster]],
        progress: Callable[[], None] = _no_progress,
    ) -> None:
        """Call `progress` for each record that is read; an error that it raises ends the search."""
        self._session, self._open_cluster, self._progress = session, open_cluster, progress
        self._range: tuple[int, int] = 0, 0
        self._documents: frozenset[DocumentId] = frozenset()
        self._read_to = 0
        self._offsets: dict[DocumentId, array[int]] = {}

    def __call__(self, position: Position, events: Sequence[Event]) -> set[int]:
        """Return the offsets of the partition's events whose documents have had a later event."""
        target = self._session.sink.target
        if target.rules.ordered:
            return set()
        documents = frozenset(event.document for event in events)
        start = min(event.offset for event in events) // target.slots
        if (position.partition, start) != self._range or documents != self._documents:
            self._range, self._documents = (position.partition, start), documents
            self._read_to, self._offsets = start, {}
        self._read(position)
        bounds = PartitionRange(position.partition, start, position.next_offset)
        with self._session.read() as sink:
            excluded = sink.journal.unapplied(bounds)

        def is_overtaken(event: Event) -> bool:
            return any(
                later > event.offset
                and position_of(target, position.partition, later) not in excluded
                for later in reversed(self._offsets.get(event.document, ()))
            )

        return {event.offset for event in events if is_overtaken(event)}

    def _read(self, position: Position) -> None:
        """Read what lies between the last question and the ledger."""
        if position.next_offset <= self._read_to:
            return
        session, unread = self._session, {position.partition: (self._read_to, position.next_offset)}
        offsets: dict[DocumentId, array[int]] = {}
        with self._open_cluster() as cluster:
            log = TopicLog(cluster, session.sink.target.topic)
            for event in _events(session, log, unread, self._documents, set(), self._progress):
                offsets.setdefault(event.document, array("q")).append(event.offset)
        for document, found in offsets.items():
            self._offsets.setdefault(document, array("q")).extend(found)
        self._read_to = position.next_offset


def _excluded(session: MaintenanceSession) -> set[RecordPosition]:
    """Return the records that must not be replayed: quarantined, skipped or dropped ones."""
    with session.read() as sink:
        return sink.journal.unapplied()


def _events(
    session: MaintenanceSession,
    log: Log,
    ranges: Mapping[int, tuple[int, int]],
    documents: frozenset[DocumentId],
    excluded: set[RecordPosition],
    progress: Callable[[], None] = _no_progress,
) -> Iterator[Event]:
    """Yield the events that the pipeline applied, or would have applied, in log order by partition.

    Dead letters and refused events are left out.
    """
    target = session.sink.target
    keys = set()
    if target.mapping.is_keyed:
        keys = {str(document).encode() for document in documents}
    with session.read() as sink:
        failed = sink.journal.failed_transformations()
    [partition] = ranges

    def wanted() -> Iterator[Record]:
        for record in log.records(ranges):
            progress()
            place = RecordPosition(target.topic, record.partition, record.offset)
            if place not in failed and not (keys and record.key not in keys):
                yield record_of(record)

    records = wanted()
    while chunk := list(itertools.islice(records, CHUNK_EVENTS)):
        events, _ = session.decode(chunk)
        for event in events:
            if (
                event.refusal is None
                and (not documents or event.document in documents)
                and position_of(target, partition, event.offset) not in excluded
            ):
                yield event


# --- with an order: chunk by chunk ----------------------------------------------------------------


def _replay_ordered(
    session: MaintenanceSession,
    selected: ReplayRange,
    partition: int,
    events: Sequence[Event],
    highest_orders: dict[DocumentId, int],
    execute: bool,
) -> list[Change]:
    """Replay a chunk of one partition's events in one transaction."""
    sink, at = session.sink, maintenance.now()
    with session.transaction(execute=execute) as ledger:
        documents = {event.document for event in events}
        parked = sink.journal.parked_among(documents)
        slots = sink.target.slots
        next_offset = ledger[partition].next_offset * slots if partition in ledger else 0
        stored = sink.stored(documents)
        row_origins = sink.journal.row_origins(documents) if sink.target.history else None
        due: list[Event] = []
        chunk_orders: dict[DocumentId, int] = {}
        for event in events:
            if event.offset >= next_offset or event.document in parked:
                continue
            before = stored.get(event.document, guard.ABSENT)
            is_tie = before.present and event.order is not None and event.order == before.order
            highest = chunk_orders.get(event.document, highest_orders.get(event.document))
            if (is_tie or event.values is None) and not _wrote_the_row(
                session, selected, partition, event, row_origins, highest
            ):
                continue
            if is_tie and event.order is not None and not sink.target.rules.order_is_time:
                # The guard would call the event repeated. It wrote the row that is to be
                # restored, so let the guard see a lower stored version. A tie of times needs no
                # such help: there the guard applies the later event.
                stored[event.document] = msgspec.structs.replace(before, order=event.order - 1)
            due.append(event)
            if event.order is not None:
                if highest is None or highest < event.order:
                    highest = event.order
                chunk_orders[event.document] = highest
        changes = _write(
            session,
            due,
            stored,
            lambda event: position_of(sink.target, partition, event.offset),
            execute,
        )
        session.record(Action.REPLAYED, changes, at)
    # Remember the orders only after the commit. If the database aborts the transaction, the chunk
    # is tried again, and its own orders must not make its events look like repetitions.
    highest_orders |= chunk_orders
    return changes


def _wrote_the_row(
    session: MaintenanceSession,
    selected: ReplayRange,
    partition: int,
    event: Event,
    row_origins: RowOrigins | None,
    highest: int | None,
) -> bool:
    """Return whether this event is known to have written, or removed, its document's row.

    The history may have been pruned. An event that it does not know is judged as without a history.
    """
    if row_origins is not None:
        name, order = event.document, event.order
        writer = row_origins.last(name) if order is None else row_origins.by_order(name, order)
        if writer is not None:
            return writer == position_of(session.sink.target, partition, event.offset)
    if event.values is None:
        return False
    if session.sink.target.rules.order_is_time:
        return selected.to_ledger
    return selected.from_start and (highest is None or highest < (event.order or 0))


# --- without an order: fold first -----------------------------------------------------------------


class _Fold:
    """The state of a document after all its events, and the position of the last of them.

    `further` has, for each further table, the rows of the events since the last delete.
    """

    __slots__ = ("deleted", "further", "offset", "partition", "values")

    def __init__(self) -> None:
        self.deleted = False
        self.further: list[tuple[Event, ...]] = []
        self.values: Values | None = None
        self.partition = self.offset = 0

    def add(self, partition: int, event: Event, rules: guard.Rules) -> None:
        if event.values is None and rules.deletes in ("ignore", "park"):
            return
        self.partition, self.offset = partition, event.offset
        if event.values is not None:
            self.values = guard.merged(self.values, event.values)
            before = self.further or [()] * len(event.further)
            self.further = [old + new for old, new in zip(before, event.further, strict=True)]
        elif rules.deletes == "clear":
            self.values = guard.merged(self.values, rules.cleared)
        else:
            self.deleted, self.values, self.further = True, None, []

    def events(self, document: DocumentId) -> Iterator[Event]:
        if self.deleted:
            yield Event(self.offset, document, None, None, None, None)
        if self.values is not None:
            further = tuple(self.further)
            yield Event(self.offset, document, None, None, None, self.values, further=further)


def _replay_unordered(
    session: MaintenanceSession,
    log: Log,
    selected: ReplayRange,
    excluded: set[RecordPosition],
    execute: bool,
    progress: Callable[[], None],
) -> Iterator[Change]:
    folds: dict[DocumentId, _Fold] = {}
    read_to = {partition: start for partition, (start, _) in selected.ranges.items()}

    def read_up_to(ends: Mapping[int, int]) -> None:
        rules = session.sink.target.rules
        for partition, end in ends.items():
            if partition not in read_to or end <= read_to[partition]:
                continue
            unread = {partition: (read_to[partition], end)}
            for event in _events(session, log, unread, selected.documents, excluded, progress):
                folds.setdefault(event.document, _Fold()).add(partition, event, rules)
            read_to[partition] = end

    def read_up_to_ledger(ledger: Mapping[int, Position]) -> None:
        read_up_to({partition: position.next_offset for partition, position in ledger.items()})

    def replay_documents(documents: Sequence[DocumentId]) -> list[Change]:
        sink, at = session.sink, maintenance.now()
        session.approach_ledger(read_up_to_ledger)
        with session.transaction(execute=execute) as ledger:
            # The pipeline may have applied further records since the log was read.
            read_up_to_ledger(ledger)
            parked = sink.journal.parked_among(documents)
            due: list[Event] = []
            for document in documents:
                if document not in parked:
                    due += folds[document].events(document)

            def place_of(event: Event) -> RecordPosition:
                fold = folds[event.document]
                return position_of(sink.target, fold.partition, event.offset)

            changes = _write(session, due, sink.stored(documents), place_of, execute)
            session.record(Action.REPLAYED, changes, at)
        return changes

    read_up_to({partition: end for partition, (_, end) in selected.ranges.items()})
    for chunk in chunks(list(folds), CHUNK_EVENTS):
        yield from session.retry(functools.partial(replay_documents, chunk))


# --- writing --------------------------------------------------------------------------------------


def _write(
    session: MaintenanceSession,
    events: Sequence[Event],
    stored: Mapping[DocumentId, Stored],
    place_of: Callable[[Event], RecordPosition],
    execute: bool,
) -> list[Change]:
    """Write the rows that change, and report the documents whose rows the table refuses."""
    by_document: dict[DocumentId, list[Event]] = {}
    for event in events:
        by_document.setdefault(event.document, []).append(event)
    changes: list[Change] = []

    def attempt(documents: Sequence[DocumentId]) -> None:
        due = [event for document in documents for event in by_document[document]]
        for row in rewrite.write_changed(session.sink, due, stored, execute=execute):
            position, document = place_of(row.event), str(row.event.document)
            verdict = Verdict.APPLIED.value
            changes.append(Change(position, document, verdict, before=row.before, after=row.after))

    def refused(document: DocumentId, error: errors.InstepError) -> None:
        position = place_of(by_document[document][-1])
        reason = Reason.REFUSED_BY_TARGET.value
        changes.append(Change(position, str(document), REFUSED, reason, error.what))

    isolate.search([[document] for document in by_document], attempt=attempt, refused=refused)
    return changes
