"""Taking turns with a pipeline's tasks: what people apply, release or skip, under the same guard and in the same transaction.

A task locks its partition's row of the ledger; a turn locks all of them. So nothing of a document can come between, whether
the pipeline runs or not, and the ledger and its epoch stay as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from instep import errors, settings, sinks
from instep.document.decoding import Decoder
from instep.document.guard import Document
from instep.sinks import inspection
from instep.sinks.journal_entries import Action, RecordPosition
from instep.sinks.sink import Sink
from instep.sinks.target import Decision, Position

TRIES_MAX = 8

Result = TypeVar("Result")


class Change(msgspec.Struct, frozen=True):
    """What became, or would become, of one event: its verdict, and the row before and after where that changes."""

    place: RecordPosition
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
    """Where decisions about one pipeline are made: its sink, and a decoder by the settings of now."""

    def __init__(
        self, name: str, pipeline: settings.Pipeline, who: str, *, waits: bool = True
    ) -> None:
        """Without `waits` a turn is given up, as Transient, when a task holds the ledger: nobody waits for the one who waits."""
        self.name, self.who, self._waits = name, who, waits
        self.sink: Sink = sinks.open_sink(inspection.inspect(name, pipeline))
        self.decoder = Decoder(self.sink.target.mapping, self.sink.record_bytes_max)

    def __enter__(self) -> MaintenanceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.sink.close()

    @contextmanager
    def read(self) -> Iterator[Sink]:
        """The sink, for reading only."""
        with self.sink.translated():
            yield self.sink

    @contextmanager
    def transaction(self, *, execute: bool) -> Iterator[dict[int, Position]]:
        """A transaction with the ledger in hand. Without `execute` all of it is undone at the end: what was seen is the plan."""
        with self.sink.transaction(keep=execute):
            yield self.sink.ledger.positions(lock=True, wait=self._waits)

    def retry(self, attempt: Callable[[], Result]) -> Result:
        """Try again what the database gave up for another's sake."""
        wait_s = 0.05
        for _ in range(TRIES_MAX - 1):
            try:
                return attempt()
            except errors.Transient:
                time.sleep(wait_s)
                wait_s = min(wait_s * 2, 1.0)
        return attempt()

    def record(
        self, action: Action, lines: Iterable[Change], at: datetime, why: str | None = None
    ) -> None:
        """Keep what was decided, and what came of it."""
        self.sink.journal.add_decisions((self._decision(action, line, why) for line in lines), at)

    def _decision(self, action: Action, line: Change, why: str | None) -> Decision:
        outcome = line.verdict if line.reason is None else line.reason
        place = line.place
        return Decision(
            place.partition,
            place.offset,
            action.value,
            outcome,
            self.who,
            why or line.detail,
            line.document,
            place.topic,
        )


def now() -> datetime:
    return datetime.now(UTC)


def row_change(
    document: Document, before: dict[Document, Any], after: dict[Document, Any]
) -> dict[str, Any]:
    """The row of a document before and after, as a line shows it."""
    return {"before": before.get(document), "after": after.get(document)}
