"""What the pages work with: settings, cluster, maintenance sessions, samples, and results."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from instep import errors, settings
from instep.console.command_runs import CommandRuns
from instep.console.sampling import Past, PipelineSampler
from instep.document.showing import shell_word
from instep.kafka.connection import Cluster
from instep.local import registry
from instep.operate import status
from instep.operate.status import PipelineStatus
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.sinks import inspection, ledger_reader

KAFKA_TIMEOUT_S = 5.0
IDLE_CLIENTS_MAX = 4  # readers, and others, that are kept for the next page
RESULTS_MAX = 200
CACHED_MAX = 100
RECENT_S = 5.0  # then a list of all topics, for example, is read again
STALE_S = 30.0  # then nobody sees it any more
INSPECTED_S = 60.0
NO_COMMAND = "# no command can do this: an argument of a program cannot have a zero byte"

Value = TypeVar("Value")

log = logging.getLogger("instep.console")


class RecentValue(msgspec.Struct, Generic[Value], frozen=True):
    """Something that was read from a server, and when."""

    value: Value
    at: datetime
    read_s: float  # on the monotonic clock


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
        self._refreshing: set[Any] = set()
        self._results: OrderedDict[str, Any] = OrderedDict()

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
    def session(self, name: str, actor: str, *, writes: bool) -> Iterator[MaintenanceSession]:
        """Open a session in which a person reads or changes what concerns one pipeline.

        Inspecting the tables takes longer than most pages. A session that only reads therefore
        uses an inspection that is up to INSPECTED_S old. After an error, the next session inspects
        the tables again.
        """
        declared, key = settings.pipeline(self.declared, name), ("inspected", name)
        inspected = None
        if not writes:
            inspected = self.cached(key, INSPECTED_S, lambda: inspection.inspect(name, declared))
        try:
            with MaintenanceSession(name, declared, actor, inspected=inspected) as session:
                yield session
        except errors.InstepError:
            self._forget(key)
            raise

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

    def _forget(self, key: Any) -> None:
        with self._lock:
            self._cached.pop(key, None)

    def recent(self, key: Any, read: Callable[[], Value]) -> RecentValue[Value]:
        """Return a value and when it was read: at most STALE_S ago.

        After RECENT_S it is read again in the background, so that nobody waits for it.
        """
        now = time.monotonic()
        with self._lock:
            found = self._recent.get(key)
            age_s = now - found.read_s if found else float("inf")
            if found and age_s < STALE_S:
                if age_s >= RECENT_S and key not in self._refreshing:
                    self._refreshing.add(key)
                    threading.Thread(target=self._refresh, args=(key, read), daemon=True).start()
                return found
        return self._read_recent(key, read)

    def _refresh(self, key: Any, read: Callable[[], Value]) -> None:
        try:
            self._read_recent(key, read)
        except Exception as error:  # noqa: BLE001 - who asks after STALE_S sees it
            log.debug("reading %s again failed: %r", key, error)
        finally:
            with self._lock:
                self._refreshing.discard(key)

    def _read_recent(self, key: Any, read: Callable[[], Value]) -> RecentValue[Value]:
        at, read_s = datetime.now(UTC), time.monotonic()
        made = RecentValue(read(), at, read_s)
        with self._lock:
            self._recent[key] = made
            self._recent.move_to_end(key)
            while len(self._recent) > CACHED_MAX:
                self._recent.popitem(last=False)
        return made

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
