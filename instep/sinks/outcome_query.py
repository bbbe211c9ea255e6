"""Find what became of a record: from the ledger, the quarantine, the decisions and the history.

Read permission is enough.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import sqlalchemy as sa

from instep import settings
from instep.document.outcome import DEAD, PARKED, PROCESSED, UNREAD, Outcome
from instep.sinks import connecting, tables, target
from instep.sinks.journal_entries import RecordPosition
from instep.sinks.stored_values import utc_time


class OutcomeQuery:
    """One connection to the target of a pipeline, used by one thread at a time."""

    def __init__(self, name: str, pipeline: settings.Pipeline) -> None:
        self._name = name
        self._url = target.database_url(pipeline.target)
        self._lock = threading.Lock()
        self._open = contextlib.ExitStack()
        self._connection: sa.Connection | None = None

    def find(
        self, position: RecordPosition, document: str | None, topic_id: str | None = None
    ) -> Outcome | None:
        """Return what became of a record; None if the pipeline has not reached it.

        With the id of the record's topic, it has not reached a record of another topic with the
        same name.
        The connection is opened by the first call, and by the next one after an error.
        """
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open.enter_context(
                        connecting.connection(self._url, read_only=True)
                    )
                found = self._find(self._connection, position, document, topic_id)
                self._connection.rollback()  # the next query must see what was committed since
            except sa.exc.DBAPIError as error:
                self._connection = None
                # the connection's block translates the error
                self._open.__exit__(type(error), error, error.__traceback__)
                raise
        return found

    def close(self) -> None:
        with self._lock:
            self._connection = None
            self._open.close()

    def _find(
        self,
        opened: sa.Connection,
        position: RecordPosition,
        document: str | None,
        topic_id: str | None,
    ) -> Outcome | None:
        ledger = self._row(opened, tables.LEDGER, position, at_offset=False)
        if ledger is None or ledger.next_offset <= position.offset:
            return None
        if topic_id not in (None, ledger.topic_id):
            return None
        parked = self._row(opened, tables.PARKED, position)
        if parked is not None:
            at = utc_time(parked._mapping["at"])
            return Outcome(PARKED, parked.document, parked.reason, parked.detail, at)
        dead = self._row(opened, tables.DEAD_LETTERS, position)
        if dead is not None:
            at = utc_time(dead._mapping["at"])
            return Outcome(DEAD, document, dead.reason, dead.detail, at)
        decided = self._row(opened, tables.DECISIONS, position)
        if decided is not None:
            at = utc_time(decided._mapping["at"])
            return Outcome(decided.action, document, decided.outcome, decided.reason, at)
        if document is not None:
            kept = self._row(opened, tables.HISTORY, position, document=document)
            if kept is not None:
                at = utc_time(kept.committed_at)
                return Outcome(kept.verdict, document, committed_at=at)
        if position.offset < (ledger.since_offset or 0) and not self._was_read(opened, position):
            return Outcome(UNREAD, document)
        return Outcome(PROCESSED, document, committed_at=utc_time(ledger.committed_at))

    def _was_read(self, opened: sa.Connection, position: RecordPosition) -> bool:
        """Return whether a record was applied before the ledger was moved."""
        columns = tables.APPLIED.c
        query = sa.select(columns.start_offset).where(
            columns.pipeline == self._name,
            columns.topic == position.topic,
            columns.partition == position.partition,
            columns.start_offset <= position.offset,
            columns.end_offset > position.offset,
        )
        return opened.execute(query.limit(1)).first() is not None

    def _row(
        self,
        opened: sa.Connection,
        table: sa.Table,
        position: RecordPosition,
        *,
        at_offset: bool = True,
        document: str | None = None,
    ) -> Any:
        """Return the newest row about this record, or the row of its partition."""
        query = sa.select(table).where(
            table.c.pipeline == self._name,
            table.c.topic == position.topic,
            table.c.partition == position.partition,
        )
        if at_offset:
            query = query.where(table.c.offset == position.offset)
        if document is not None:
            query = query.where(table.c.document == document)
        if "at" in table.c:
            query = query.order_by(table.c["at"].desc())
        return opened.execute(query.limit(1)).first()
