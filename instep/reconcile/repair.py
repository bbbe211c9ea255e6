"""`instep reconcile --fix`: repair the rows that differ, under the guard.

The plan says for each real difference what would be done. With `--execute`, the documents are
repaired in chunks. Each chunk is one transaction:

1. Lock every ledger row of the pipeline, so that no task writes meanwhile.
2. Leave a document alone if it has had events since the comparison, if it is parked now, if its
   row has changed since it was read, or if a higher order value than the expected one is stored.
   Do not delete a row unless instep's own tables say that the pipeline has written it.
3. Insert what is missing, write what differs, delete what the log says was deleted. If the table
   refuses a row, find that row and leave it alone.
4. Record a decision for each repaired document.

Here values can differ although the order values are equal, so a tie is written. A pipeline would
treat the same tie as a repeated event.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from instep import errors
from instep.document import canonical, comparison, folding, guard
from instep.document.comparison import DocumentState, Question
from instep.document.guard import DocumentId, Stored
from instep.document.identity import Identity
from instep.pipeline.apply import isolate
from instep.reconcile import findings, spark_steps
from instep.reconcile.findings import RowDifference
from instep.sinks.journal_entries import Action
from instep.sinks.sink import FurtherSink, Sink
from instep.sinks.target import Decision

DOCUMENTS_MAX = 1_000
TRIES_MAX = 4
SHOWN_MAX = 20
MARK_CHARACTERS = 32  # of a hash: 128 bits
MAKE_A_PLAN = "make a plan again: instep reconcile --fix"
NO_PARTITION = -1
INSERT, WRITE, DELETE, LEAVE = "insert", "write", "delete", "leave"
OUTCOMES = {INSERT: "inserted", WRITE: "written", DELETE: "deleted"}

Say = Callable[[str], None]
# what was repaired, and the documents that were left alone with the reason
Repaired = tuple[list[RowDifference], list[tuple[str, str]]]
DocumentsWithEvents = Callable[[Mapping[int, int], Mapping[int, int], Sequence[str]], set[str]]


def planned_marks(files: Iterable[Path]) -> frozenset[str]:
    """Return the marks in the files that a plan has written."""
    found: set[str] = set()
    for path in files:
        try:
            with path.open("rb") as lines:
                found |= {mark for line in lines if (mark := _LISTED.decode(line).plan)}
        except OSError as error:
            raise errors.SettingsError(
                f"the plan {path} cannot be read: {error.strerror}", MAKE_A_PLAN
            ) from error
        except msgspec.MsgspecError as error:
            raise errors.SettingsError(f"{path} is not a plan: {error}", MAKE_A_PLAN) from error
    return frozenset(found)


class _ListedRow(msgspec.Struct, frozen=True):
    """A line of the file of a plan: here only its mark counts."""

    plan: str | None = None


_LISTED = msgspec.json.Decoder(_ListedRow)


class RepairRequest(msgspec.Struct, frozen=True):
    """The options of a repair: plan only or execute, and whether to delete rows not in the log.

    A row is deleted only if instep's own tables say that the pipeline has written it. With
    `planned`, the marks of a plan that somebody has seen, everything else is left alone.
    """

    execute: bool = False
    delete_extra: bool = False
    actor: str = ""
    reason: str | None = None  # of the person, kept behind what was repaired
    planned: frozenset[str] | None = None


class RepairResult(msgspec.Struct, frozen=True):
    """The numbers of repaired documents, and the first that were left alone, with the reason."""

    inserted: int
    written: int
    deleted: int
    left_alone: int
    first_left_alone: list[tuple[str, str]]

    @property
    def done(self) -> int:
        """Return the number of repaired documents."""
        return self.inserted + self.written + self.deleted


class ComparedLedger(msgspec.Struct, frozen=True):
    """The positions that the comparison is valid for.

    `documents_with_events` returns which documents have events between two positions.
    """

    applied: dict[int, int]
    documents_with_events: DocumentsWithEvents


class Repairer:
    """Repairs the table of one pipeline."""

    def __init__(
        self,
        sink: Sink,
        ledger: ComparedLedger,
        question: Question,
        fix: RepairRequest,
        *,
        from_source: bool,
        further: FurtherSink | None = None,
    ) -> None:
        """Take the sink of the pipeline, and the further table if that is to be repaired."""
        self._sink, self._ledger, self._question = sink, ledger, question
        self._fix, self._from_source = fix, from_source
        self._further, self._repaired = further, further or sink
        mapping = self._repaired.target.mapping
        self._id = Identity(mapping).of_kept
        self._restorers = [canonical.restorer(column.kind) for column in mapping.columns]
        self._pack_row = spark_steps.row_packer(mapping, sink.url.get_backend_name())
        self._row_numbers = itertools.count()

    def _document(self, difference: RowDifference) -> str:
        """Return the document that a row belongs to."""
        if self._further is None:
            return difference.document
        return self._further.document_of(difference.document)

    def plan(self, difference: RowDifference) -> tuple[str, str]:
        """Return what to do about a difference, and the reason if it is left alone."""
        if difference.split and not self._question.rules.ordered:
            return (
                LEAVE,
                "its events lie in several partitions, and without an order instep cannot tell"
                " which came last",
            )
        if difference.kind == DocumentState.MISSING:
            if difference.loaded:
                return LEAVE, "it was loaded, and the log does not have all of it: load it again"
            return INSERT, ""
        if difference.kind == DocumentState.EXTRA:
            if not difference.recorded:
                return (
                    LEAVE,
                    "nothing shows that this pipeline wrote it: delete it by hand if it is wrong",
                )
            if not difference.known:
                if self._fix.delete_extra:
                    return DELETE, ""
                return LEAVE, "the log does not say that it was deleted: use --delete-extra"
        stored = self._stored_order(difference)
        if stored is not None and difference.order is not None and stored > difference.order:
            return LEAVE, f"the table holds the higher order value {stored}"
        return (DELETE if difference.kind == DocumentState.EXTRA else WRITE), ""

    def planned(self, difference: RowDifference) -> str:
        """Return the plan for a difference as text."""
        action, reason = self.plan(difference)
        return f"{action}: {reason}" if reason else action

    def mark(self, difference: RowDifference) -> str:
        """Return what identifies a difference and its repair in a plan."""
        facts = (
            str(self._repaired.target.table),
            difference.document,
            difference.kind,
            self.plan(difference)[0],
            difference.expected,
            difference.found,
        )
        return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:MARK_CHARACTERS]

    def _is_planned(self, difference: RowDifference) -> bool:
        return self._fix.planned is None or self.mark(difference) in self._fix.planned

    def repair(
        self,
        differences: Iterable[RowDifference],
        report_left_alone: Callable[[str, str], None],
        say: Say,
    ) -> RepairResult:
        """Execute the plan; report each document that was not repaired, with the reason."""
        counts = dict.fromkeys(OUTCOMES, 0)
        left_alone, first = 0, list[tuple[str, str]]()
        for chunk in _chunks(differences):
            repaired, alone = self._repair_chunk(chunk)
            for difference in repaired:
                counts[self.plan(difference)[0]] += 1
            for document, reason in alone:
                left_alone += 1
                report_left_alone(document, reason)
                if len(first) < SHOWN_MAX:
                    first.append((findings.shown(document), reason))
            say(f"{sum(counts.values()):,} documents repaired, {left_alone:,} left alone")
        return RepairResult(counts[INSERT], counts[WRITE], counts[DELETE], left_alone, first)

    def _repair_chunk(self, chunk: list[RowDifference]) -> Repaired:
        """Repair a chunk; try again after a transient error."""
        for attempt in itertools.count(1):
            try:
                return self._transaction(chunk)
            except errors.Transient:
                if attempt >= TRIES_MAX:
                    raise
        raise AssertionError

    def _transaction(self, chunk: list[RowDifference]) -> Repaired:
        sink = self._sink
        with sink.unguarded(), sink.transaction():
            changed = self._lock_ledger(chunk)  # 1
            ready, alone = self._ready(chunk, changed)  # 2
            repaired, refused = self._write(ready)  # 3
            if repaired:
                decisions = [self._decision(difference) for difference in repaired]
                sink.journal.add_decisions(decisions, datetime.now(UTC))  # 4
            return repaired, [*alone, *refused]

    def _lock_ledger(self, chunk: list[RowDifference]) -> set[str]:
        """Lock the ledger; return the documents with events since the comparison (step 1)."""
        locked = self._sink.ledger.positions(lock=True)
        now = {partition: row.next_offset for partition, row in locked.items()}
        before = self._ledger.applied
        if any(now.get(partition, 0) < at for partition, at in before.items() if at > 0):
            raise errors.LedgerMoved(
                f"the ledger of pipeline {self._sink.target.pipeline!r} went back during the"
                " reconciliation",
                "run it again",
            )
        documents = [self._document(difference) for difference in chunk]
        return self._ledger.documents_with_events(before, now, documents)

    def _ready(self, chunk: list[RowDifference], changed: set[str]) -> Repaired:
        """Split a chunk into what can be repaired and what is left alone (step 2)."""
        documents = {difference.document: self._id(difference.document) for difference in chunk}
        rows = self._repaired.table.locked_rows(list(documents.values()))
        stored = self._repaired.stored(documents.values())
        parked = self._sink.journal.parked_among({self._document(one) for one in chunk})
        ready, alone = [], []
        for difference in chunk:
            document = documents[difference.document]
            row = rows.get(document)
            line = None if row is None else self._pack_row(row)
            action, reason = self.plan(difference)
            if self._document(difference) in changed:
                reason = "it has had events since the comparison: run again"
            elif self._document(difference) in parked:
                reason = "it is parked now"
            elif line != difference.found:
                reason = "its row has changed since the comparison: run again"
            elif action != LEAVE and not self._is_planned(difference):
                reason = "it differs otherwise than in the plan, or since then: see a new plan"
            elif action != LEAVE and _is_later(stored.get(document), difference):
                reason = "a higher order value is stored"
            if reason:
                alone.append((difference.document, reason))
            else:
                ready.append(difference)
        return ready, alone

    def _stored_order(self, difference: RowDifference) -> int | None:
        """Return the order value in the row that the comparison found."""
        if difference.found is None:
            return None
        return comparison.order_of(self._question, folding.unpack(difference.found))

    def _write(self, ready: list[RowDifference]) -> Repaired:
        """Write the rows, and leave out those that the table refuses (step 3)."""
        repaired: list[RowDifference] = []
        refused: list[tuple[str, str]] = []
        isolate.write(
            self._repaired,
            [[difference] for difference in ready],
            decide=self._changes,
            written=lambda differences, _: repaired.extend(differences),
            refused=lambda difference, error: refused.append(
                (difference.document, f"the table refuses it: {error.what}")
            ),
        )
        return repaired, refused

    def _changes(self, ready: Sequence[RowDifference]) -> guard.Changes:
        changes = guard.Changes([], {}, {}, {}, [])
        for difference in ready:
            document: DocumentId = self._id(difference.document)
            match self.plan(difference)[0]:
                case "insert":
                    changes.inserts[document] = self._values(difference)
                case "write":
                    changes.updates[document] = self._values(difference)
                case _:
                    changes.deletes.append(document)
                    order = difference.order
                    if order is None:
                        order = self._stored_order(difference)
                    if difference.known and order is not None and self._further is None:
                        changes.deleted_orders[document] = order
        return changes

    def _values(self, difference: RowDifference) -> guard.Values:
        """Return the expected values, UNSET where no event has set the column."""
        assert difference.expected is not None
        values: list[Any] = []
        texts = folding.unpack(difference.expected)
        for restore, text in zip(self._restorers, texts, strict=True):
            if text == folding.ABSENT:
                values.append(UNSET)
            else:
                values.append(None if text is None else restore(text))
        return tuple(values)

    def _decision(self, difference: RowDifference) -> Decision:
        names = [column.name for column in self._repaired.target.mapping.columns]
        reason = f"reconcile: {difference.kind}"
        if self._further is not None:
            reason += f" in table {self._further.target.table}"
        if difference.columns:
            reason += " in " + ", ".join(names[number] for number in difference.columns)
        if self._fix.reason:
            reason += f": {self._fix.reason}"
        partition, offset = difference.partition, difference.offset
        if partition is None or offset is None or self._from_source:
            partition, offset = NO_PARTITION, next(self._row_numbers)
        return Decision(
            partition,
            offset,
            Action.REPAIRED.value,
            OUTCOMES[self.plan(difference)[0]],
            self._fix.actor,
            reason,
            self._document(difference),
        )


def _is_later(stored: Stored | None, difference: RowDifference) -> bool:
    """Return whether a higher order value is stored than the log or the source says."""
    return (
        difference.known
        and stored is not None
        and stored.order is not None
        and difference.order is not None
        and stored.order > difference.order
    )


def _chunks(differences: Iterable[RowDifference]) -> Iterator[list[RowDifference]]:
    source = iter(differences)
    while chunk := list(itertools.islice(source, DOCUMENTS_MAX)):
        yield chunk
