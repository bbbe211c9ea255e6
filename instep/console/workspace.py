"""What the pages work with: settings, cluster, maintenance sessions, samples, and results."""

from __future__ import annotations

import functools
import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from instep import errors, settings
from instep.console.action_runs import ActionRuns
from instep.console.command_runs import CommandRuns
from instep.console.reading import ReadingSessions
from instep.console.sampling import Past, PipelineSampler
from instep.document.showing import shell_word
from instep.kafka.connection import Cluster
from instep.local import registry
from instep.operate import status
from instep.operate.status import PipelineStatus
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.sinks import ledger_reader
from instep.sinks.connection import Access

KAFKA_TIMEOUT_S = 5.0
IDLE_CLIENTS_MAX = 4  # readers, and others, that are kept for the next page
RESULTS_MAX = 200
CACHED_MAX = 100
RECENT_S = 5.0  # then a list of all topics, for example, is read again
STALE_S = 30.0  # then nobody sees it any more
KEPT_SHARE = 5  # of the time that the reading took, if that is longer
READING_PATIENCE_S = 15.0  # then a page says that something is still being read
PIPELINE_PATIENCE_S = 15.0  # of a page that shows all pipelines, for each of them
# how long a statement of a plan waits for a lock, and may take: the flow may wait for the plan
PLAN_LOCK_S, PLAN_STATEMENT_S = 2.0, 8.0
PLAN_TRIES_MAX = 3
NO_COMMAND = "# no command can do this: an argument of a program cannot have a zero byte"

Value = TypeVar("Value")

# What a session is for. A plan tries out changes, and rolls them back.
Purpose = Literal["read", "plan", "change"]

log = logging.getLogger("instep.console")


class RecentValue(msgspec.Struct, Generic[Value], frozen=True):
    """Something that was read from a server, and when."""

    value: Value
    at: datetime  # when the reading began
    ended_s: float  # on the monotonic clock
    took_s: float

    @property
    def is_kept(self) -> bool:
        """Return whether pages still show it: what is slow to read, for longer."""
        kept_s = max(STALE_S, KEPT_SHARE * self.took_s)
        return time.monotonic() - self.ended_s < kept_s

    @property
    def is_old(self) -> bool:
        """Return whether it is time to read it again."""
        old_s = max(RECENT_S, self.took_s)
        return time.monotonic() - self.ended_s >= old_s


class ConsoleOptions(msgspec.Struct, frozen=True):
    """The options of the command that the pages depend on."""

    config: Path | None = None
    read_only: bool = False
    hide_values: bool = False


class Workspace:
    """The settings as they were when the console started, and what was opened since."""

    def __init__(self, loaded: settings.Loaded, options: ConsoleOptions) -> None:
        self.loaded, self.options = loaded, options
        self.declared = loaded.settings
        self.closing = threading.Event()
        self.runs = CommandRuns()
        self.actions = ActionRuns()
        self.signs_in = False
        self.paths: frozenset[str] = frozenset()  # of the pages that exist with these options
        self.samplers = {
            name: PipelineSampler(name, self._reader(name), self._past_reader(name))
            for name in self.declared.pipelines
        }
        self._lock = threading.Lock()
        self._clusters: dict[str, Cluster] = {}
        self._cached: OrderedDict[Any, tuple[float, Any]] = OrderedDict()
        self._recent: OrderedDict[Any, RecentValue[Any]] = OrderedDict()
        self._being_read: dict[Any, Future[RecentValue[Any]]] = {}
        self._results: OrderedDict[str, Any] = OrderedDict()
        self._reading = {
            name: ReadingSessions(name, pipeline)
            for name, pipeline in self.declared.pipelines.items()
        }

    def start(self) -> None:
        """Start the threads that read the pipelines' states."""
        for sampler in self.samplers.values():
            sampler.start()

    def close(self) -> None:
        """End the threads and the streams, and close the clients."""
        self.closing.set()
        for sampler in self.samplers.values():
            sampler.end()
        self.runs.end()
        self.actions.end()
        for sessions in self._reading.values():
            sessions.close()
        with self._lock:
            clusters, self._clusters = self._clusters, {}
        for cluster in clusters.values():
            cluster.close()

    def cluster(self) -> Cluster:
        """Return the cluster, which all pages share; raise if none is named and none runs here."""
        found = self._cluster()
        if found is None:
            raise errors.BrokerUnreachable("the local Kafka is not running", "start it: instep up")
        return found

    @contextmanager
    def shared_cluster(self) -> Iterator[Cluster]:
        """Yield the shared cluster to code that would close one of its own."""
        yield self.cluster()

    @contextmanager
    def session(self, name: str, actor: str, purpose: Purpose) -> Iterator[MaintenanceSession]:
        """Yield a session in which a person reads or changes what concerns one pipeline.

        Looking at the tables takes longer than most pages, so pages that only read use a look that
        is up to a minute old. A plan looks again: it must say what the change will do.
        """
        declared, reading = settings.pipeline(self.declared, name), self._reading[name]
        if purpose == "read":
            with reading.borrow() as session:
                yield session
            return
        try:
            if purpose == "change":
                opened = MaintenanceSession(name, declared, actor)
            else:
                opened = MaintenanceSession(
                    name,
                    declared,
                    actor,
                    access=Access(statement_s=PLAN_STATEMENT_S, lock_s=PLAN_LOCK_S),
                    tries_max=PLAN_TRIES_MAX,
                )
            with opened as session:
                yield session
        except errors.InstepError:
            reading.forget()
            raise

    def of_each(
        self, names: Iterable[str], read: Callable[[str], Value]
    ) -> tuple[list[tuple[str, Value]], list[tuple[str, errors.InstepError]]]:
        """Return what was read of each pipeline, and the errors of those that did not answer.

        They are read at the same time, so that one database that does not answer hides nothing
        else. An unexpected error is raised.
        """
        started = [(name, _started(functools.partial(read, name))) for name in names]
        deadline_s = time.monotonic() + PIPELINE_PATIENCE_S
        found: list[tuple[str, Value]] = []
        problems: list[tuple[str, errors.InstepError]] = []
        for name, future in started:
            try:
                value = future.result(max(0.0, deadline_s - time.monotonic()))
            except TimeoutError:
                late = f"its servers did not answer within {PIPELINE_PATIENCE_S:.0f} s"
                problems.append((name, errors.Unreachable(late, "try again later")))
            except errors.InstepError as error:
                problems.append((name, error))
            else:
                found.append((name, value))
        return found, problems

    def sampler(self, name: str) -> PipelineSampler:
        """Return the sampler of a pipeline; raise if it is not declared."""
        settings.pipeline(self.declared, name)
        return self.samplers[name]

    def cached(self, key: Any, seconds: float, read: Callable[[], Value]) -> Value:
        """Return a value that was read at most this many seconds ago."""
        now = time.monotonic()
        with self._lock:
            at, value = self._cached.get(key, (float("-inf"), None))
        if now - at < seconds:
            return value  # type: ignore[no-any-return]
        value = read()
        with self._lock:
            self._cached[key] = (now, value)
            self._cached.move_to_end(key)
            while len(self._cached) > CACHED_MAX:
                self._cached.popitem(last=False)
        return value

    def recent(self, key: Any, read: Callable[[], Value]) -> RecentValue[Value]:
        """Return a value and when it was read: not long ago.

        After a few seconds it is read again in the background, so that nobody waits for it. All who
        wait for the same value wait for one reading, which goes on if they give up.
        """
        with self._lock:
            found = self._recent.get(key)
            is_kept = found is not None and found.is_kept
            reading = self._being_read.get(key)
            if reading is None and (found is None or not is_kept or found.is_old):
                read_once = functools.partial(self._read_recent, key, read)
                reading = self._being_read[key] = _started(read_once)
        if found is not None and is_kept:
            return found
        assert reading is not None
        try:
            return reading.result(READING_PATIENCE_S)
        except TimeoutError:
            raise errors.Unreachable(
                f"this is still being read, after {READING_PATIENCE_S:.0f} s",
                "load the page again later: it is shown as soon as it is complete",
            ) from None

    def _read_recent(self, key: Any, read: Callable[[], Value]) -> RecentValue[Value]:
        at, began_s = datetime.now(UTC), time.monotonic()
        try:
            value = read()
            ended_s = time.monotonic()
            made = RecentValue(value, at, ended_s, ended_s - began_s)
            with self._lock:
                self._recent[key] = made
                self._recent.move_to_end(key)
                while len(self._recent) > CACHED_MAX:
                    self._recent.popitem(last=False)
            return made
        finally:
            with self._lock:
                del self._being_read[key]

    def keep(self, result: Any) -> str:
        """Keep the result of a write for its page; return its id."""
        name = uuid.uuid4().hex
        with self._lock:
            self._results[name] = result
            while len(self._results) > RESULTS_MAX:
                self._results.popitem(last=False)
        return name

    def result(self, name: str) -> Any | None:
        """Return a kept result; None if it is not kept any more."""
        with self._lock:
            return self._results.get(name)

    def command(self, *arguments: str, items: Iterable[str] = ()) -> str:
        """Return the equivalent command, to be pasted into a shell."""
        named = list(items)
        config = ["--config", str(self.options.config)] if self.options.config else []
        # an id may begin like an option
        end = ["--"] if any(item.startswith("-") for item in named) else []
        words = ["instep", *arguments, *config, *end, *named]
        if any("\0" in word for word in words):
            return NO_COMMAND
        return " ".join(map(shell_word, words))

    def needs_spark(self, name: str) -> str | None:
        """Return why the console cannot decode records of a pipeline, or None."""
        if settings.pipeline(self.declared, name).transform is None:
            return None
        return (
            f"Pipeline {name} has a transformation, which needs Spark. The console starts none:"
            " use the command."
        )

    def pipelines(self) -> Sequence[str]:
        """Return the names of the declared pipelines."""
        return list(self.declared.pipelines)

    def _reader(self, name: str) -> Callable[[], PipelineStatus]:
        pipeline = self.declared.pipelines[name]

        def read() -> PipelineStatus:
            try:
                cluster = self._cluster()
            except errors.InstepError as error:
                return msgspec.structs.replace(status.read(None, name, pipeline), error=str(error))
            return self._shown(status.read(cluster, name, pipeline))

        return read

    def _past_reader(self, name: str) -> Callable[[], Past]:
        pipeline = self.declared.pipelines[name]

        def read() -> Past:
            return [
                (
                    age_s,
                    {
                        "lag": minute.lag,
                        "applied": minute.applied_per_s,
                        "p50": minute.freshness_p50_s,
                        "p99": minute.freshness_p99_s,
                    },
                )
                for age_s, minute in ledger_reader.trend(name, pipeline)
            ]

        return read

    def _shown(self, read: PipelineStatus) -> PipelineStatus:
        """Return a status without the text of the error that a run reports: it may have values."""
        run = read.run
        if not self.options.hide_values or run is None or run.detail is None:
            return read
        run = msgspec.structs.replace(run, description=run.state, detail="its text is hidden")
        return msgspec.structs.replace(read, run=run)

    def _cluster(self) -> Cluster | None:
        address = self.declared.kafka.bootstrap or registry.bootstrap()
        if address is None:
            return None
        with self._lock:
            if address not in self._clusters:
                self._clusters[address] = Cluster(
                    self.declared.kafka, address, KAFKA_TIMEOUT_S, idle_max=IDLE_CLIENTS_MAX
                )
            return self._clusters[address]


def _started(work: Callable[[], Value]) -> Future[Value]:
    """Start a function in a thread that does not keep the console from ending."""
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - who waits for it gets it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
