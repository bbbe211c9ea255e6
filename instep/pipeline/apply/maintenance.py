"""Maintenance sessions: how people apply, release or skip events beside a running pipeline.

A task locks the ledger row of its partition; a maintenance transaction locks all of them. So
neither can interfere with a document of the other, whether the pipeline runs or not. The ledger
and its epoch stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from instep import errors, settings, sinks
from instep.document.decoding import Decoder
from instep.document.guard import DocumentId
from instep.sinks import inspection
from instep.sinks.journal_entries import Action, RecordPosition
from instep.sinks.sink import Sink
from instep.sinks.target import Decision, Position
from instep.waiting import retrying

TRIES_MAX = 8

Result = TypeVar("Result")


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
        self, name: str, pipeline: settings.Pipeline, actor: str, *, waits: bool = True
    ) -> None:
        """Open the sink.

        Without `waits`, a transaction raises Transient if a task has locked the ledger.
        """
        self.name, self.actor, self._waits = name, actor, waits
        self.sink: Sink = sinks.open_sink(inspection.inspect(name, pipeline))
        self.decoder = Decoder(self.sink.target.mapping, self.sink.record_bytes_max)

    def __enter__(self) -> MaintenanceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.sink.close()

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

    def retry(self, attempt: Callable[[], Result]) -> Result:
        """Retry a transaction that the database aborted because of another one."""
        return retrying(
            attempt, lambda error: isinstance(error, errors.Transient), tries_max=TRIES_MAX
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


def row_change(
    document: DocumentId, before: dict[DocumentId, Any], after: dict[DocumentId, Any]
) -> dict[str, Any]:
    """Return the row of a document before and after, for a Change."""
    return {"before": before.get(document), "after": after.get(document)}
