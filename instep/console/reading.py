"""Read-only sessions of the pages: few per pipeline, and kept between requests.

A database that does not answer holds up the pages of its own pipelines only: a session counts until
its reading has ended, even if the page that wanted it was given up.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from instep import errors, settings
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.sinks import inspection
from instep.sinks.connection import Access
from instep.sinks.target import Target

STATEMENT_S = 15.0  # then the database ends a statement of a page
AT_ONCE_MAX = 8  # sessions of a pipeline
BUSY_AFTER_S = 2.0
IDLE_MAX = 4
INSPECTED_S = 60.0  # then the tables are looked at again, with another session
ACTOR = "console"
# errors that say nothing about the database
OF_THE_REQUEST = (errors.SettingsError, errors.NoSuchDocument, errors.NotParked)


class KeptSession:
    """A session, and the target that it was opened for."""

    def __init__(self, session: MaintenanceSession, target: Target) -> None:
        self.session, self.target = session, target

    def answers(self) -> bool:
        """Return whether the session can be used again."""
        with contextlib.suppress(Exception):
            connection = self.session.sink.connection
            connection.refresh()
            return bool(connection.select("SELECT 1"))
        return False

    def close(self) -> None:
        self.session.sink.close()


class ReadingSessions:
    """The read-only sessions of one pipeline."""

    def __init__(self, name: str, pipeline: settings.Pipeline) -> None:
        self._name, self._pipeline = name, pipeline
        self._access = Access(read_only=True, statement_s=STATEMENT_S)
        self._slots = threading.BoundedSemaphore(AT_ONCE_MAX)
        self._lock = threading.Lock()
        self._idle: list[KeptSession] = []
        self._target: Target | None = None
        self._inspected_s = float("-inf")

    @contextmanager
    def borrow(self) -> Iterator[MaintenanceSession]:
        """Yield a session that nobody else uses meanwhile; raise if too many are in use."""
        if not self._slots.acquire(timeout=BUSY_AFTER_S):
            raise errors.Unreachable(
                f"the database of pipeline {self._name} is busy: {AT_ONCE_MAX} pages wait for it",
                "try again later; the pages of other pipelines do not need to wait for it",
            )
        try:
            with self._opened() as session:
                yield session
        finally:
            self._slots.release()

    def target(self) -> Target:
        """Return the target, as it was found up to INSPECTED_S ago."""
        with self._lock:
            if self._target is not None and time.monotonic() - self._inspected_s < INSPECTED_S:
                return self._target
        began_s = time.monotonic()
        target = inspection.inspect(self._name, self._pipeline, self._access)
        with self._lock:
            self._target, self._inspected_s = target, began_s
        return target

    def forget(self) -> None:
        """Look at the tables again before the next page: after an error, they may have changed."""
        with self._lock:
            self._target, idle, self._idle = None, self._idle, []
        for kept in idle:
            kept.close()

    def close(self) -> None:
        """Close the sessions that nobody uses."""
        self.forget()

    @contextmanager
    def _opened(self) -> Iterator[MaintenanceSession]:
        kept = None
        try:
            kept = self._take()
            yield kept.session
        except BaseException as error:
            if kept is not None:
                kept.close()
            if isinstance(error, errors.InstepError) and not isinstance(error, OF_THE_REQUEST):
                self.forget()
            if isinstance(error, errors.TooMuchAtOnce):
                raise errors.Unreachable(
                    f"the database of pipeline {self._name} did not answer within"
                    f" {STATEMENT_S:.0f} s: {error.what}",
                    "try again later, or use the command, which waits longer",
                ) from error
            raise
        self._give_back(kept)

    def _take(self) -> KeptSession:
        target = self.target()
        while True:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            if kept is None:
                break
            if kept.target is target and kept.answers():
                return kept
            kept.close()
        session = MaintenanceSession(
            self._name, self._pipeline, ACTOR, inspected=target, access=self._access
        )
        return KeptSession(session, target)

    def _give_back(self, kept: KeptSession) -> None:
        with self._lock:
            if kept.target is self._target and len(self._idle) < IDLE_MAX:
                self._idle.append(kept)
                return
        kept.close()
