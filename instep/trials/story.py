"""`instep demo`: the story on real parts. Polling first; then events, with a kill -9 in the middle; then the comparison.

The contract system's table starts with its documents and no statuses. The print system publishes each document's way:
CREATED, QUEUED and PRINTING at full speed, while the pipeline is killed and started again; PRINTED or FAILED at an even
rate, by which freshness is measured. Some events are malformed, late or repeated.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import UNSET

from instep import errors, settings, sinks
from instep.document import guard
from instep.emit import Publisher, StatusEvent
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.local import artifacts, broker
from instep.sinks import inspection, preparation
from instep.sinks.sink import Sink
from instep.trials import polling, processes

POLLED_SAMPLE = 10
FIRST = 50
PARTITIONS = 4
KILL_AT_SHARE = 0.25
STEADY_PER_S = 1_000
PATIENCE_S = 180.0
SEED = 1

MALFORMED = (
    b"",
    b"{",
    b'{"doc_id": "doc-00001"}',
    b'{"doc_id": "doc-00002", "status": "PRINTED", "version": "three"}',
    b'{"doc_id": "", "status": "PRINTED", "version": 3}',
    b"\xff\xfe\x00",
    b"[1, 2, 3]",
    b'{"doc_id": "doc-00003", "status": "PRINTED", "version": 9, "updated_at": "soon"}',
)


class Freshness(msgspec.Struct, frozen=True):
    p50: float
    p99: float


class Result(msgspec.Struct, frozen=True):
    """What the story came to."""

    documents: int
    events: int
    applied: int
    dead_letters: int
    restarts: int
    apply_s: float
    outage_s: float
    events_per_s: float
    freshness_ms: Freshness
    polling_s: float
    polling_sampled: int
    differences: int


def tell(*, target_url: str | None, documents: int, say: Callable[[str], None]) -> Result:
    """Tell the story; everything that it starts is gone when it ends."""
    artifacts.jars("spark-kafka")  # fetched now, so that the pipeline starts at once later
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="instep-demo-")))
        say("starting a Kafka broker on this machine")
        kafka = stack.enter_context(broker.Cluster())
        story = _Story(folder, kafka.bootstrap, target_url or f"sqlite:///{folder / 'contracts.db'}", documents, say)
        if target_url:
            stack.callback(story.remove)
        story.prepare()
        return story.run(stack)


class _Story:
    def __init__(self, folder: Path, bootstrap: str, url: str, count: int, say: Callable[[str], None]) -> None:
        self.folder, self.bootstrap, self.say = folder, bootstrap, say
        self.name = f"demo-{uuid.uuid4().hex[:8]}"
        self.config = folder / "instep.toml"
        self.config.write_text(_settings(self.name, bootstrap, url), encoding="utf-8")
        self.pipeline = settings.pipeline(settings.load(self.config), self.name)
        self.documents = [f"doc-{number:05}" for number in range(count)]
        self.truth: dict[str, tuple[str, int]] = {}
        self.events = 0
        self.malformed = 0
        self.made: list[str] = []

    # --- the parts -------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """The contract system's table with its documents, and the topic."""
        self.made = preparation.prepare(self.pipeline)
        with self._sink() as sink, sink.transaction():
            nothing = (UNSET,) * len(sink.columns)
            sink.write(guard.Changes([], dict.fromkeys(self.documents, nothing), {}, {}, []))
        with Cluster(settings.Kafka(), self.bootstrap) as cluster:
            topics.create(cluster, self.pipeline.topic, PARTITIONS)

    def remove(self) -> None:
        """Leave the database as it was."""
        preparation.remove(self.name, self.pipeline, own_tables=any("instep_ledger" in statement for statement in self.made))

    def run(self, stack: contextlib.ExitStack) -> Result:
        running = processes.PipelineProcess(self.config, self.name, log=self.folder / "run.log")
        stack.callback(running.close)
        running.start()
        polling_s = self._poll()
        sink = stack.enter_context(self._sink())
        self._wait(running, lambda: self._started(sink), "starting")

        publisher = stack.enter_context(Publisher(self.bootstrap, self.pipeline.topic, source="print-system"))
        self._publish_first(publisher)
        self._wait(running, lambda: self._done(sink) == self.events, "applying the first events")

        self.say(f"the new way: the print system publishes every change of {len(self.documents):,} documents, at full speed")
        first, began = self.events, time.monotonic()
        self._publish_ways(publisher)
        publisher.flush()
        bulk = self.events + self.malformed
        self._wait(running, lambda: self._done(sink) >= bulk * KILL_AT_SHARE, "applying")
        self.say(f"kill -9 of the pipeline, with {self._done(sink):,} of {bulk:,} records applied")
        running.kill()
        killed = time.monotonic()
        at_kill = self._done(sink)
        self.say("starting it again")
        running.start()
        self._wait(running, lambda: self._done(sink) > at_kill, "starting again")
        resumed = time.monotonic()
        self._wait(running, lambda: self._done(sink) >= bulk, "catching up")
        ended = time.monotonic()

        self.say(f"the last change of every document, {STEADY_PER_S:,} a second, to see how far behind the table is")
        steady_from = datetime.now(UTC)
        self._publish_ends(publisher)
        publisher.flush()
        self._wait(running, lambda: self._done(sink) >= self.events + self.malformed, "keeping in step")
        running.stop()

        self.say("comparing every document with the source")
        apply_s = (ended - began) - (resumed - killed)
        return Result(
            documents=len(self.documents),
            events=self.events,
            applied=self._applied(sink),
            dead_letters=sink.dead_count(),
            restarts=max(position.epoch for position in sink.positions().values()) - 1,
            apply_s=round(apply_s, 2),
            outage_s=round(resumed - killed, 2),
            events_per_s=round((bulk - first) / apply_s),
            freshness_ms=self._freshness(sink, steady_from),
            polling_s=round(polling_s, 1),
            polling_sampled=POLLED_SAMPLE,
            differences=self._differences(sink),
        )

    def _poll(self) -> float:
        """The old way on a sample; the rest is extrapolated, and said to be."""
        sample = self.documents[:: max(1, len(self.documents) // POLLED_SAMPLE)][:POLLED_SAMPLE]
        with polling.QueryService(dict.fromkeys(self.documents, "CREATED")) as service:
            _, seconds = polling.poll(service.port, sample)
        whole_s = seconds / len(sample) * len(self.documents)
        self.say(
            f"the old way: {len(sample)} documents polled in {seconds:.1f} s;"
            f" extrapolated, {len(self.documents):,} take {whole_s / 60:.0f} minutes a round"
        )
        return whole_s

    def _publish_first(self, publisher: Publisher) -> None:
        """A few events to see that the pipeline is at work: Spark's first batch compiles what the others only run."""
        for document in self.documents[:FIRST]:
            self._publish(publisher, document, "CREATED", 1)
        publisher.flush()

    def _publish_ways(self, publisher: Publisher) -> None:
        dice = random.Random(SEED)  # noqa: S311 - which events are late is no secret
        for version, status in enumerate(("CREATED", "QUEUED", "PRINTING"), start=1):
            for document in self.documents[FIRST if version == 1 else 0 :]:
                self._publish(publisher, document, status, version)
        for document in dice.sample(self.documents, 20):
            self._publish(publisher, document, "QUEUED", 2)  # late
        for document in dice.sample(self.documents, 20):
            self._publish(publisher, document, "PRINTING", 3)  # repeated
        for number, value in enumerate(MALFORMED):
            publisher.send_raw(self.documents[number].encode(), value)
            self.malformed += 1

    def _publish_ends(self, publisher: Publisher) -> None:
        started = time.monotonic()
        for number, document in enumerate(self.documents):
            due = started + number / STEADY_PER_S
            if due > time.monotonic():
                time.sleep(max(0.0, due - time.monotonic()))
            self._publish(publisher, document, "FAILED" if number % 50 == 0 else "PRINTED", 4)

    def _publish(self, publisher: Publisher, document: str, status: str, version: int) -> None:
        publisher.send(StatusEvent(document=document, status=status, version=version, at=datetime.now(UTC)))
        self.events += 1
        if version > self.truth.get(document, ("", 0))[1]:
            self.truth[document] = (status, version)

    # --- looking ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _sink(self) -> Iterator[Sink]:
        sink = sinks.open_sink(inspection.inspect(self.name, self.pipeline))
        try:
            yield sink
        finally:
            sink.close()

    def _started(self, sink: Sink) -> bool:
        return len(sink.positions()) == PARTITIONS

    def _done(self, sink: Sink) -> int:
        return sum(position.next_offset for position in sink.positions().values())

    def _applied(self, sink: Sink) -> int:
        statement = f"SELECT count(*) FROM instep_history WHERE verdict = 'applied' AND pipeline = {sink.placeholder}"  # noqa: S608
        return int(sink.select(statement, (self.name,))[0][0])

    def _freshness(self, sink: Sink, since: datetime) -> Freshness:
        """Of the steady flow: from an event happening to its commit."""
        statement = f"SELECT event_time, committed_at FROM instep_history WHERE order_value = 4 AND pipeline = {sink.placeholder}"  # noqa: S608
        spans = sorted(
            (_time(committed) - _time(happened)).total_seconds() * 1000
            for happened, committed in sink.select(statement, (self.name,))
            if _time(happened) >= since
        )
        return Freshness(p50=round(_share(spans, 0.50), 1), p99=round(_share(spans, 0.99), 1))

    def _differences(self, sink: Sink) -> int:
        rows = sink.select(f"SELECT doc_no, print_status, print_version FROM {sink.table}")  # noqa: S608
        found = {row[0]: (row[1], row[2]) for row in rows}
        return sum(found.get(document) != expected for document, expected in self.truth.items()) + len(
            found.keys() - self.truth.keys()
        )

    def _wait(self, running: processes.PipelineProcess, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            if running.poll() is not None or time.monotonic() > deadline:
                raise errors.InstepError(f"the demo's pipeline failed while {what}; the end of its log:\n{running.tail()}")
            time.sleep(0.02)


def table(result: Result) -> str:
    """The result as people read it."""
    rows = [
        ("documents", f"{result.documents:,}"),
        ("events", f"{result.events:,}, {result.applied:,} of them applied (the others were late or repeated)"),
        ("time", f"{result.apply_s:.1f} s at full speed, and {result.outage_s:.1f} s down after the kill -9"),
        ("events/s", f"{result.events_per_s:,.0f}"),
        ("freshness", f"p50 {result.freshness_ms.p50:.0f} ms, p99 {result.freshness_ms.p99:.0f} ms at {STEADY_PER_S:,} events/s"),
        ("polling", f"{result.polling_s / 60:.0f} minutes a round (extrapolated from {result.polling_sampled} calls)"),
        ("dead letters", f"{result.dead_letters:,} (malformed on purpose, each with its reason)"),
        ("restarts", f"{result.restarts}"),
        ("differences", f"{result.differences:,}"),
    ]
    return "\n".join(f"{name:<14}{value}" for name, value in rows)


def _settings(name: str, bootstrap: str, url: str) -> str:
    table = name.replace("-", "_") + "_document"
    return f"""[kafka]
bootstrap = "{bootstrap}"

[pipelines.{name}]
topic = "print-status"
target = {msgspec.json.encode(url).decode()}
table = "{table}"
key = "doc_no"
batch_rows_max = 4000

[pipelines.{name}.event]
document = "doc_id"
status = "status"
order = "version"
at = "updated_at"

[pipelines.{name}.columns]
print_status = "status"
print_version = "version"
printed_at = "updated_at"
"""


def _time(value: datetime | str) -> datetime:
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _share(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0
