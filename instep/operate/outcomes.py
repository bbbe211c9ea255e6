"""What became of a record: applied, stale, repeated, ignored, parked or dead."""

from __future__ import annotations

import time
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
        mapping = inspection.inspect(pipeline, declaration).mapping
        self._decoder = Decoder(mapping, RECORD_BYTES_MAX)

    def outcome(self, topic: str, record: Record, timeout_s: float | None) -> Outcome:
        """Wait until the pipeline has reached a record, and return what became of it.

        Raise NotReached after the time. A database that does not answer is asked again until then.
        """
        if topic != self.topic:
            raise errors.SettingsError(
                f"pipeline {self.name!r} follows topic {self.topic!r}, not {topic!r}",
                "name the pipeline that follows the publisher's topic",
            )
        position = RecordPosition(topic, record.partition, record.offset)
        document = self._document(record)
        began, pause = time.monotonic(), FIRST_PAUSE_S
        while True:
            failure: errors.InstepError | None = None
            try:
                found = self._query.find(position, document)
            except (errors.Unreachable, errors.Transient) as error:
                found, failure = None, error
            if found is not None:
                return found
            left = None if timeout_s is None else began + timeout_s - time.monotonic()
            if left is not None and left <= 0:
                raise self._not_reached(position, timeout_s or 0.0, failure) from failure
            time.sleep(pause if left is None else min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def close(self) -> None:
        """Close the connection; the next question opens another one."""
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
