"""`instep reconcile --fix`: the table brought back in step, through the same guard.

A plan says for each real difference what would be done. Carried out, some documents at a time, in one transaction:

1. lock every ledger row of the pipeline, so that no task writes meanwhile
2. leave alone the documents that have had events since they were compared, that are parked now, whose row is no longer as
   it was read, those whose stored order value is higher than the expected one, and rows to delete that nothing in instep's own
   tables says the pipeline has written
3. insert what is missing, write what differs, delete what the log says was deleted; a row that the table refuses is
   found and left out alone
4. keep a decision for each document that was mended

Values differ under one order value here, so a tie is written, where a pipeline would take it for a repetition.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET

from instep import errors
from instep.document import canonical, comparison, folding, guard
from instep.document.comparison import DocumentState, Question
from instep.document.guard import Document, Stored
from instep.document.identity import Identity
from instep.reconcile import spark_steps
from instep.reconcile.findings import RowDifference
from instep.sinks.journal_entries import Action
from instep.sinks.sink import Sink
from instep.sinks.target import Decision

DOCUMENTS_MAX = 1_000
TRIES_MAX = 4
SHOWN_MAX = 20
NOWHERE = -1
INSERT, WRITE, DELETE, LEAVE = "insert", "write", "delete", "leave"
OUTCOMES = {INSERT: "inserted", WRITE: "written", DELETE: "deleted"}

Say = Callable[[str], None]
Touched = Callable[[Mapping[int, int], Mapping[int, int], Sequence[str]], set[str]]


class RepairRequest(msgspec.Struct, frozen=True):
    """How to mend: plan only, or carry it out; and whether rows that the log does not know are deleted.

    A row is deleted only if instep's own tables say that the pipeline has written it.
    """

    execute: bool = False
    delete_extra: bool = False
    who: str = ""


class RepairResult(msgspec.Struct, frozen=True):
    """What was done, and the first of the documents that were left alone, with the reason."""

    inserted: int
    written: int
    deleted: int
    left_alone: int
    first_left_alone: list[tuple[str, str]]

    @property
    def done(self) -> int:
        return self.inserted + self.written + self.deleted


class ComparedLedger(msgspec.Struct, frozen=True):
    """The position that the comparison holds for, and a way to ask which documents had events after it."""

    applied: dict[int, int]
    touched: Touched


class Repairer:
    """Mends one pipeline's table."""

    def __init__(
        self,
        sink: Sink,
        ledger: ComparedLedger,
        asked: Question,
        fix: RepairRequest,
        *,
        from_source: bool,
    ) -> None:
        self._sink, self._ledger, self._asked, self._fix, self._from_source = (
            sink,
            ledger,
            asked,
            fix,
            from_source,
        )
        mapping = sink.target.mapping
        self._id = Identity(mapping).of_kept
        self._restorers = [canonical.restorer(column.kind) for column in mapping.columns]
        self._line = spark_steps.liner(mapping, sink.url.get_backend_name())
        self._number = itertools.count()

    def plan(self, one: RowDifference) -> tuple[str, str]:
        """What would be done with a difference, and why nothing, where that is so."""
        if one.split and not self._asked.rules.ordered:
            return (
                LEAVE,
                "its events lie in several partitions, and without an order nothing says which came last",
            )
        stored = self._stored_order(one)
        if one.kind == DocumentState.MISSING:
            return INSERT, ""
        if one.kind == DocumentState.EXTRA and not one.recorded:
            return (
                LEAVE,
                "no record says that this pipeline wrote it: delete it by hand if it is wrong",
            )
        if one.kind == DocumentState.EXTRA and not one.known:
            return (
                (DELETE, "")
                if self._fix.delete_extra
                else (LEAVE, "nothing says that it was deleted: --delete-extra")
            )
        if stored is not None and one.order is not None and stored > one.order:
            return LEAVE, f"the table holds the higher order value {stored}"
        return (DELETE if one.kind == DocumentState.EXTRA else WRITE), ""

    def words(self, one: RowDifference) -> str:
        """The plan for a difference in words."""
        action, why = self.plan(one)
        return f"{action}: {why}" if why else action

    def mend(
        self, differences: Iterable[RowDifference], left_alone: Callable[[str, str], None], say: Say
    ) -> RepairResult:
        """Carry the plan out; `left_alone` is told every document that was not mended, and why."""
        counts = dict.fromkeys(OUTCOMES, 0)
        left, first = 0, list[tuple[str, str]]()
        for some in _chunks(differences):
            done, alone = self._insistently(some)
            for one in done:
                counts[self.plan(one)[0]] += 1
            for document, why in alone:
                left += 1
                left_alone(document, why)
                if len(first) < SHOWN_MAX:
                    first.append((document, why))
            say(f"{sum(counts.values()):,} documents mended, {left:,} left alone")
        return RepairResult(counts[INSERT], counts[WRITE], counts[DELETE], left, first)

    def _insistently(
        self, some: list[RowDifference]
    ) -> tuple[list[RowDifference], list[tuple[str, str]]]:
        for number in itertools.count(1):
            try:
                return self._transaction(some)
            except errors.Transient:
                if number >= TRIES_MAX:
                    raise
        raise AssertionError

    def _transaction(
        self, some: list[RowDifference]
    ) -> tuple[list[RowDifference], list[tuple[str, str]]]:
        sink = self._sink
        with sink.table.unguarded(), sink.transaction():
            touched = self._touched(some)  # 1
            ready, alone = self._ready(some, touched)  # 2
            done, refused = self._write(ready)  # 3
            if done:
                sink.journal.add_decisions(
                    [self._decision(one) for one in done], datetime.now(UTC)
                )  # 4
            return done, [*alone, *refused]

    def _touched(self, some: list[RowDifference]) -> set[str]:
        """Step 1: which of these documents have had events since they were compared."""
        now = {
            partition: row.next_offset
            for partition, row in self._sink.ledger.positions(lock=True).items()
        }
        before = self._ledger.applied
        if any(now.get(partition, 0) < at for partition, at in before.items() if at > 0):
            raise errors.LedgerMoved(
                f"the ledger of pipeline {self._sink.target.pipeline!r} went back while it was reconciled",
                "run it again",
            )
        return self._ledger.touched(before, now, [one.document for one in some])

    def _ready(
        self, some: list[RowDifference], touched: set[str]
    ) -> tuple[list[RowDifference], list[tuple[str, str]]]:
        """Step 2."""
        documents = {one.document: self._id(one.document) for one in some}
        rows = self._sink.table.locked_rows(list(documents.values()))
        stored = self._sink.stored(documents.values())
        parked = self._sink.journal.parked_among(documents.values())
        ready, alone = [], []
        for one in some:
            name = one.document
            row = rows.get(documents[name])
            action, why = self.plan(one)
            if name in touched:
                why = "it has had events since it was compared: run again"
            elif documents[name] in parked:
                why = "it is parked now"
            elif (None if row is None else self._line(row)) != one.found:
                why = "its row has changed since it was compared: run again"
            elif action != LEAVE and one.known and self._is_later(stored.get(documents[name]), one):
                why = "a higher order value is stored"
            if why:
                alone.append((name, why))
            else:
                ready.append(one)
        return ready, alone

    def _stored_order(self, one: RowDifference) -> int | None:
        return (
            comparison.order_of(self._asked, folding.unpack(one.found))
            if one.found is not None
            else None
        )

    def _is_later(self, stored: Stored | None, one: RowDifference) -> bool:
        return (
            stored is not None
            and stored.order is not None
            and one.order is not None
            and stored.order > one.order
        )

    def _write(
        self, ready: list[RowDifference]
    ) -> tuple[list[RowDifference], list[tuple[str, str]]]:
        """Step 3: all at once, or one by one when the table refuses one of them."""
        if not ready:
            return [], []
        try:
            with self._sink.savepoint():
                self._sink.write(self._changes(ready))
            return ready, []
        except errors.RowRefused:
            pass
        done, refused = [], []
        for one in ready:
            try:
                with self._sink.savepoint():
                    self._sink.write(self._changes([one]))
                done.append(one)
            except errors.RowRefused as error:
                refused.append((one.document, f"the table refuses it: {error.what}"))
        return done, refused

    def _changes(self, ready: list[RowDifference]) -> guard.Changes:
        changes = guard.Changes([], {}, {}, {}, [])
        for one in ready:
            document: Document = self._id(one.document)
            match self.plan(one)[0]:
                case "insert":
                    changes.inserts[document] = self._values(one)
                case "write":
                    changes.updates[document] = self._values(one)
                case _:
                    changes.deletes.append(document)
                    highest = one.order if one.order is not None else self._stored_order(one)
                    if one.known and highest is not None:
                        changes.deleted_orders[document] = highest
        return changes

    def _values(self, one: RowDifference) -> guard.Values:
        assert one.expected is not None
        texts = folding.unpack(one.expected)
        return tuple(
            UNSET if text == folding.ABSENT else None if text is None else restore(text)
            for restore, text in zip(self._restorers, texts, strict=True)
        )

    def _decision(self, one: RowDifference) -> Decision:
        names = [column.name for column in self._sink.target.mapping.columns]
        differing = ", ".join(names[number] for number in one.columns)
        why = f"reconcile: {one.kind}" + (f" in {differing}" if differing else "")
        partition, offset = one.partition, one.offset
        if partition is None or offset is None or self._from_source:
            partition, offset = NOWHERE, next(self._number)
        return Decision(
            partition,
            offset,
            Action.REPAIRED.value,
            OUTCOMES[self.plan(one)[0]],
            self._fix.who,
            why,
            one.document,
        )


def _chunks(differences: Iterable[RowDifference]) -> Iterator[list[RowDifference]]:
    source = iter(differences)
    while some := list(itertools.islice(source, DOCUMENTS_MAX)):
        yield some
