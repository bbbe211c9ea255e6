"""Actions that run in the background: a page shows how far each is, and can stop it.

An action goes on when its person closes the page. It ends between two transactions: when it is
stopped, or when the console ends.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from instep import errors
from instep.pipeline.apply.maintenance import Change
from instep.sinks.journal_entries import DecisionRecord

SHOWN = 100  # changes of an action
RUNNING_MAX = 4
KEPT_MAX = 200
UNPACED_S = 2.0  # then an action pauses as long as it has worked
PAUSE_MAX_S = 1.0
END_PATIENCE_S = 10.0


log = logging.getLogger("instep.console")


class ActionStopped(Exception):
    """Somebody has stopped the action, or the console ends."""


class ActionResult(msgspec.Struct):
    """What an action has done so far, for its page: the first changes, and the number of all.

    `moved` has documents that another event blocks than in the plan.
    """

    title: str
    pipeline: str
    actor: str
    at: datetime
    reason: str
    commands: list[str]
    changes: list[Change] = []
    counts: dict[str, int] = {}
    missing: dict[str, list[DecisionRecord]] = {}
    moved: dict[str, str] = {}
    expected: int | None = None  # dead letters or documents
    done: int = 0  # of these

    @property
    def total(self) -> int:
        """Return the number of all changes."""
        return sum(self.counts.values())

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to report."""
        return not (self.counts or self.missing or self.moved)

    def add(self, changes: Iterable[Change], done: int) -> None:
        """Add changes, and what was done of what is expected."""
        self.done += done
        for change in changes:
            self.counts[change.verdict] = self.counts.get(change.verdict, 0) + 1
            if len(self.changes) < SHOWN:
                self.changes.append(change)


class ActionRun:
    """One action, in a thread of its own."""

    def __init__(self, result: ActionResult) -> None:
        self.id, self.result = uuid.uuid4().hex, result
        self.failure: Exception | None = None
        self.is_stopped = False
        self.updates = 0
        self._lock = threading.Lock()
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._began_s = self._chunk_s = time.monotonic()

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set()

    def start(self, work: Callable[[ActionRun], None]) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def stop(self) -> None:
        """Let the action end after its current transaction."""
        self._stopping.set()

    def wait(self, seconds: float) -> bool:
        """Return whether the action has ended; wait for it so long."""
        return self._ended.wait(seconds)

    def so_far(self) -> ActionResult:
        """Return a copy of the result, which does not change while a page shows it."""
        with self._lock:
            return msgspec.structs.replace(
                self.result,
                changes=list(self.result.changes),
                counts=dict(self.result.counts),
                missing=dict(self.result.missing),
                moved=dict(self.result.moved),
            )

    def expect(self, count: int) -> None:
        """Keep how many dead letters or documents there are."""
        with self._lock:
            self.result.expected = count
            self.updates += 1

    def miss(self, missing: dict[str, list[DecisionRecord]]) -> None:
        """Keep what others have done meanwhile."""
        with self._lock:
            self.result.missing |= missing

    def leave(self, document: str, what: str) -> None:
        """Keep why a document was left alone."""
        with self._lock:
            self.result.moved[document] = what

    def add(self, changes: Iterable[Change], done: int = 1) -> None:
        """Add the changes of a transaction; then give the flow time. Raise if it was stopped."""
        with self._lock:
            self.result.add(changes, done)
            self.updates += 1
        now_s = time.monotonic()
        pause_s = 0.0
        if now_s - self._began_s > UNPACED_S:
            pause_s = min(now_s - self._chunk_s, PAUSE_MAX_S)
        if self._stopping.wait(pause_s):
            raise ActionStopped
        self._chunk_s = time.monotonic()

    def _run(self, work: Callable[[ActionRun], None]) -> None:
        try:
            work(self)
        except ActionStopped:
            self.is_stopped = True
        except Exception as error:
            log.exception("%s ended early", self.result.title)
            self.failure = error
        finally:
            self.updates += 1
            self._ended.set()


class ActionRuns:
    """The actions of this console, of which the last ones are kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, ActionRun] = {}

    def start(self, result: ActionResult, work: Callable[[ActionRun], None]) -> ActionRun:
        """Start an action; raise if enough of them are running."""
        run = ActionRun(result)
        with self._lock:
            ended = [name for name, one in self._runs.items() if not one.is_running]
            if len(self._runs) - len(ended) >= RUNNING_MAX:
                raise errors.SettingsError(
                    f"{RUNNING_MAX} actions are running already; nothing was changed",
                    "wait until one has ended, or stop it on its page",
                )
            for name in ended[: max(0, len(self._runs) - KEPT_MAX + 1)]:
                del self._runs[name]
            self._runs[run.id] = run
        run.start(work)
        return run

    def find(self, name: str) -> ActionRun:
        """Return an action by its id."""
        with self._lock:
            run = self._runs.get(name)
        if run is None:
            raise errors.SettingsError(
                "the result of this action is not kept any more",
                "its decisions are: open the page Decisions",
            )
        return run

    def running(self, pipeline: str) -> list[ActionRun]:
        """Return the actions on a pipeline that have not ended."""
        with self._lock:
            runs = list(self._runs.values())
        return [run for run in runs if run.is_running and run.result.pipeline == pipeline]

    def end(self) -> None:
        """Stop what still runs, and wait for its current transaction."""
        with self._lock:
            runs = [run for run in self._runs.values() if run.is_running]
        for run in runs:
            run.stop()
        deadline_s = time.monotonic() + END_PATIENCE_S
        for run in runs:
            run.wait(max(0.0, deadline_s - time.monotonic()))
