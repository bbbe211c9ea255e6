"""Maintenance sessions: how people apply, release or skip events beside a running pipeline.

A task locks the ledger row of its partition; a maintenance transaction locks all of them. So
neither can interfere with a document of the other, whether the pipeline runs or not. The ledger
and its epoch stay as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from instep import errors, settings, sinks
from instep.document import results
from instep.document.decoding import DeadLetter, Decoder, Event, Record
from instep.document.guard import DocumentId
from instep.document.reasons import Reason
from instep.document.results import Result, Transform
from instep.sinks import inspection
from instep.sinks.connection import WRITING, Access
from instep.sinks.journal_entries import Action, QuarantinedRecord, RecordPosition
from instep.sinks.sink import Sink
from instep.sinks.target import Decision, Position, Target
from instep.waiting import retrying

TRIES_MAX = 8
APPROACHES_MAX = 10
NEAR_RECORDS = 1_000  # from the ledger: so few are read while it is locked

Returned = TypeVar("Returned")


class Change(msgspec.Struct, frozen=True):
    """What became, or would become, of one event, and its row before and after."""

    position: RecordPosition
    document: str | None
    verdict: str
    reason: str | None = None
    detail: str | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None

    @property
    def changes(self) -> bool:
        return self.before != self.after


class MaintenanceSession:
    """The sink of one pipeline, and a decoder by its current settings."""

    def __init__(
        self,
        name: str,
        pipeline: settings.Pipeline,
        actor: str,
        *,
        waits: bool = True,
        transform: Transform | None = None,
        inspected: Target | None = None,
        access: Access = WRITING,
        tries_max: int = TRIES_MAX,
    ) -> None:
        """Open the sink.

        Without `waits`, a transaction raises Transient if a task has locked the ledger. A pipeline
        with a transformation needs `transform` to decode records. With `inspected`, the tables are
        not looked at again. A session that is read-only has no transactions.
        """
        self._transform = transform
        self.name, self.actor, self._waits = name, actor, waits
        self._tries_max = tries_max
        inspected = inspected or inspection.inspect(name, pipeline, access)
        self.sink: Sink = sinks.open_sink(inspected, access)
        self.decoder = Decoder(self.sink.target.mapping, self.sink.record_bytes_max)

    def __enter__(self) -> MaintenanceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.sink.close()
        close = getattr(self._transform, "close", None)
        if close is not None:
            close()

    def decode(self, records: Sequence[Record]) -> tuple[list[Event], list[DeadLetter]]:
        """Return events and dead letters of records of the log."""
        if self.sink.target.slots == 1:
            return self.decoder.decode_all(records)
        return results.decode(self.decoder, self._transformed(records))

    def decode_quarantined(
        self, quarantined: Sequence[QuarantinedRecord]
    ) -> tuple[list[Event], list[DeadLetter]]:
        """Return events and dead letters of what is in quarantine.

        A row of a load is an event. With a transformation, a record has results: these are the
        ones in quarantine, or all results of a record on which the transformation failed. A result
        that the transformation does not yield any more is neither.
        """
        if self.sink.target.slots == 1:
            return self.decoder.decode_all([one.record for one in quarantined])
        found: list[Result] = []
        loaded = [one.record for one in quarantined if one.position.is_loaded]
        transformed = [one for one in quarantined if not one.position.is_loaded]
        for _, same_log in itertools.groupby(transformed, key=lambda one: one.position.log):
            found += self._results_of(list(same_log))
        events, dead = results.decode(self.decoder, found)
        events_of_rows, dead_rows = self.decoder.decode_all(loaded)
        return events + events_of_rows, dead + dead_rows

    def _results_of(self, quarantined: Sequence[QuarantinedRecord]) -> list[Result]:
        """Return the results in quarantine of records of one log."""
        records = {
            (one.position.partition, one.position.offset): msgspec.structs.replace(
                one.record, offset=one.position.offset
            )
            for one in quarantined
        }
        by_record: dict[tuple[int, int], list[Result]] = {}
        for result in self._transformed(list(records.values())):
            place = (result.partition, result.offset // results.SLOTS)
            by_record.setdefault(place, []).append(result)
        found: list[Result] = []
        for one in quarantined:
            of_record = by_record.get((one.position.partition, one.position.offset), [])
            if one.reason != Reason.TRANSFORMATION_FAILED and not any(
                result.failure for result in of_record
            ):
                of_record = of_record[one.position.result : one.position.result + 1]
            first = one.record.offset - one.position.result
            found += [
                msgspec.structs.replace(result, offset=first + result.offset % results.SLOTS)
                for result in of_record
            ]
        return found

    def _transformed(self, records: Sequence[Record]) -> list[Result]:
        if self._transform is None:
            raise errors.InstepError(
                f"pipeline {self.name!r} has a transformation, which needs Spark",
                "run a command that starts Spark: instep replay, instep parked release",
            )
        return self._transform(records)

    @contextmanager
    def read(self) -> Iterator[Sink]:
        """Open the sink for reading."""
        with self.sink.translated():
            yield self.sink

    @contextmanager
    def transaction(self, *, execute: bool) -> Iterator[dict[int, Position]]:
        """Run a transaction that locks the ledger, and yield the ledger.

        Without `execute` it is rolled back at the end: what it showed is the plan.
        """
        with self.sink.transaction(keep=execute):
            yield self.sink.ledger.positions(lock=True, wait=self._waits)

    def approach_ledger(self, read: Callable[[dict[int, Position]], None]) -> None:
        """Let `read` read the log up to the ledger, again until few records are missing.

        Nothing is locked: the flow continues meanwhile. The caller reads the rest under the lock.
        """
        for _ in range(APPROACHES_MAX):
            reached = self._ledger()
            read(reached)
            now = self._ledger()
            if _distance(reached, now) <= NEAR_RECORDS:
                return

    def _ledger(self) -> dict[int, Position]:
        with self.read() as sink:
            return sink.ledger.positions()

    def retry(self, attempt: Callable[[], Returned]) -> Returned:
        """Retry a transaction that the database aborted because of another one."""
        return retrying(
            attempt, lambda error: isinstance(error, errors.Transient), tries_max=self._tries_max
        )

    def record(
        self, action: Action, lines: Iterable[Change], at: datetime, why: str | None = None
    ) -> None:
        """Keep what was decided, and the outcome."""
        self.sink.journal.add_decisions((self._decision(action, line, why) for line in lines), at)

    def _decision(self, action: Action, line: Change, why: str | None) -> Decision:
        outcome = line.verdict if line.reason is None else line.reason
        position = line.position
        return Decision(
            position.partition,
            position.offset,
            action.value,
            outcome,
            self.actor,
            why or line.detail,
            line.document,
            position.topic,
        )


def now() -> datetime:
    return datetime.now(UTC)


def _distance(reached: dict[int, Position], now: dict[int, Position]) -> int:
    """Return the number of records by which the ledger has moved on."""
    return sum(
        position.next_offset - reached[partition].next_offset
        for partition, position in now.items()
        if partition in reached
    )


def row_change(
    document: DocumentId, before: dict[DocumentId, Any], after: dict[DocumentId, Any]
) -> dict[str, Any]:
    """Return the row of a document before and after, for a Change."""
    return {"before": before.get(document), "after": after.get(document)}
