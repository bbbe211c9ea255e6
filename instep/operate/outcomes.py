"""What became of a record: applied, stale, repeated, ignored, parked or dead."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from instep import errors, settings
from instep.document.decoding import Decoder, Record
from instep.document.outcome import Outcome
from instep.sinks import inspection
from instep.sinks.journal_entries import RecordPosition
from instep.sinks.outcome_query import OutcomeQuery

FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.25
RECORD_BYTES_MAX = 1 << 30  # a record that was delivered is not too large to be looked up


class OutcomeReader:
    """Reads what became of one pipeline's records. Several threads may use it.

    It needs read permission on the target's tables, nothing else.
    """

    def __init__(self, declared: settings.Settings | str | Path, pipeline: str) -> None:
        """Take the settings, or the path of their file, and the name of the pipeline."""
        if not isinstance(declared, settings.Settings):
            declared = settings.load(Path(declared))
        declaration = settings.pipeline(declared, pipeline)
        self.name, self.topic = pipeline, declaration.topic
        self._query = OutcomeQuery(pipeline, declaration)
        self._pool = _new_pool()
        mapping = inspection.inspect(pipeline, declaration).mapping
        self._decoder = Decoder(mapping, RECORD_BYTES_MAX)

    def outcome(
        self, topic: str, record: Record, timeout_s: float | None, topic_id: str | None = None
    ) -> Outcome:
        """Wait until the pipeline has reached a record, and return what became of it.

        Raise NotReached after the time. A database that does not answer is asked again until then.
        With the topic's id, what a topic of the same name had at this place does not count.
        """
        asked = self._question(topic, record, timeout_s, topic_id)
        while (found := self._answer(asked)) is None:
            time.sleep(asked.pause_s())
        return found

    async def outcome_async(
        self, topic: str, record: Record, timeout_s: float | None, topic_id: str | None = None
    ) -> Outcome:
        """Do the same without blocking the event loop: a thread of the reader asks the database."""
        asked = self._question(topic, record, timeout_s, topic_id)
        loop = asyncio.get_running_loop()
        while True:
            found = await loop.run_in_executor(self._pool, self._answer, asked)
            if found is not None:
                return found
            await asyncio.sleep(asked.pause_s())

    def close(self) -> None:
        """Close the connection; the next question opens another one."""
        pool, self._pool = self._pool, _new_pool()
        pool.shutdown()
        self._query.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _question(
        self, topic: str, record: Record, timeout_s: float | None, topic_id: str | None
    ) -> _AskedRecord:
        if topic != self.topic:
            raise errors.SettingsError(
                f"pipeline {self.name!r} follows topic {self.topic!r}, not {topic!r}",
                "name the pipeline that follows the publisher's topic",
            )
        position = RecordPosition(topic, record.partition, record.offset)
        return _AskedRecord(position, self._document(record), timeout_s, topic_id)

    def _answer(self, asked: _AskedRecord) -> Outcome | None:
        """Ask the database once; raise NotReached if there is no time left to ask again."""
        failure: errors.InstepError | None = None
        try:
            found = self._query.find(asked.position, asked.document, asked.topic_id)
        except (errors.Unreachable, errors.Transient) as error:
            found, failure = None, error
        if found is None and asked.is_over():
            raise self._not_reached(asked.position, asked.timeout_s or 0.0, failure) from failure
        return found

    def _document(self, record: Record) -> str | None:
        """Return the document that a record is about; None if it names none."""
        events, _ = self._decoder.decode_all([record])
        return str(events[0].document) if events else None

    def _not_reached(
        self, position: RecordPosition, timeout_s: float, failure: errors.InstepError | None
    ) -> errors.NotReached:
        why = f": {failure.what}" if failure else ""
        return errors.NotReached(
            f"pipeline {self.name!r} has not reached {self.topic}:{position}"
            f" after {timeout_s:g} s{why}",
            f"check that it is running, and its lag: instep status {self.name}",
        )


class _AskedRecord:
    """A record that somebody waits for, and when to ask for it again."""

    def __init__(
        self,
        position: RecordPosition,
        document: str | None,
        timeout_s: float | None,
        topic_id: str | None,
    ) -> None:
        self.topic_id = topic_id
        self.position, self.document, self.timeout_s = position, document, timeout_s
        self._ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._pause_s = FIRST_PAUSE_S

    def is_over(self) -> bool:
        return self._ends_at is not None and time.monotonic() >= self._ends_at

    def pause_s(self) -> float:
        """Return how long to wait before the next attempt. Pauses get longer."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        if self._ends_at is None:
            return pause_s
        return max(0.0, min(pause_s, self._ends_at - time.monotonic()))


def _new_pool() -> ThreadPoolExecutor:
    """Return the thread for questions from event loops. It starts with the first one.

    One is enough, since questions share a connection. Those who wait take none of the threads that
    the event loop has for other work.
    """
    return ThreadPoolExecutor(1, "instep-outcomes")
