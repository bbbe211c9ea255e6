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
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from instep.emit import Publisher
from instep.local import broker, spark
from instep.trials import polling
from instep.trials.contracts import Contracts

POLLED_SAMPLE = 10
FIRST = 50
KILL_AT_SHARE = 0.25
STEADY_PER_S = 1_000
SEED = 1
BATCH_ROWS_MAX = 4_000  # several batches, so that the kill comes in the middle

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
    spark.prepare(say)  # now, so that the pipeline starts at once later
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="instep-demo-")))
        say("starting a Kafka broker on this machine")
        kafka = stack.enter_context(broker.Cluster())
        url = target_url or f"sqlite:///{folder / 'contracts.db'}"
        system = Contracts(folder, kafka.bootstrap, url, documents, prefix="demo", batch_rows_max=BATCH_ROWS_MAX)
        if target_url:
            stack.callback(system.leave_database)
        system.prepare()
        return _Story(system, say).run(stack)


class _Story:
    def __init__(self, system: Contracts, say: Callable[[str], None]) -> None:
        self.system, self.say = system, say
        self.documents = system.documents
        self.malformed = 0

    @property
    def records(self) -> int:
        """How many were sent."""
        return self.system.events + self.malformed

    def run(self, stack: contextlib.ExitStack) -> Result:
        system, wait = self.system, self.system.wait
        running = system.process()
        stack.callback(running.close)
        running.start()
        polling_s = self._poll()
        sink = stack.enter_context(system.sink())
        wait(running, lambda: system.started(sink), "starting")

        publisher = stack.enter_context(system.publisher())
        self._publish_first(publisher)
        wait(running, lambda: system.done(sink) == system.events, "applying the first events")

        self.say(f"the new way: the print system publishes every change of {len(self.documents):,} documents, at full speed")
        first, began = system.events, time.monotonic()
        self._publish_ways(publisher)
        publisher.flush()
        bulk = self.records
        wait(running, lambda: system.done(sink) >= bulk * KILL_AT_SHARE, "applying")
        self.say(f"kill -9 of the pipeline, with {system.done(sink):,} of {bulk:,} records applied")
        running.kill()
        killed = time.monotonic()
        at_kill = system.done(sink)
        self.say("starting it again")
        running.start()
        wait(running, lambda: system.done(sink) > at_kill, "starting again")
        resumed = time.monotonic()
        wait(running, lambda: system.done(sink) >= bulk, "catching up")
        ended = time.monotonic()

        self.say(f"the last change of every document, {STEADY_PER_S:,} a second, to see how far behind the table is")
        steady_from = datetime.now(UTC)
        self._publish_ends(publisher)
        publisher.flush()
        wait(running, lambda: system.done(sink) >= self.records, "keeping in step")
        running.stop()

        self.say("comparing every document with the source")
        apply_s = (ended - began) - (resumed - killed)
        return Result(
            documents=len(self.documents),
            events=system.events,
            applied=system.applied(sink),
            dead_letters=sink.dead_count(),
            restarts=max(position.epoch for position in sink.positions().values()) - 1,
            apply_s=round(apply_s, 2),
            outage_s=round(resumed - killed, 2),
            events_per_s=round((bulk - first) / apply_s),
            freshness_ms=_freshness(system.freshness_ms(sink, 4, steady_from)),
            polling_s=round(polling_s, 1),
            polling_sampled=POLLED_SAMPLE,
            differences=system.differences(sink),
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
            self.system.publish(publisher, document, "CREATED", 1)
        publisher.flush()

    def _publish_ways(self, publisher: Publisher) -> None:
        dice = random.Random(SEED)  # noqa: S311 - which events are late is no secret
        for version, status in enumerate(("CREATED", "QUEUED", "PRINTING"), start=1):
            for document in self.documents[FIRST if version == 1 else 0 :]:
                self.system.publish(publisher, document, status, version)
        for document in dice.sample(self.documents, 20):
            self.system.publish(publisher, document, "QUEUED", 2)  # late
        for document in dice.sample(self.documents, 20):
            self.system.publish(publisher, document, "PRINTING", 3)  # repeated
        for number, value in enumerate(MALFORMED):
            publisher.send_raw(self.documents[number].encode(), value)
            self.malformed += 1

    def _publish_ends(self, publisher: Publisher) -> None:
        started = time.monotonic()
        for number, document in enumerate(self.documents):
            due = started + number / STEADY_PER_S
            if due > time.monotonic():
                time.sleep(max(0.0, due - time.monotonic()))
            self.system.publish(publisher, document, "FAILED" if number % 50 == 0 else "PRINTED", 4)


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


def _freshness(spans_ms: list[float]) -> Freshness:
    """Of the steady flow: from an event happening to its commit."""
    return Freshness(p50=round(_share(spans_ms, 0.50), 1), p99=round(_share(spans_ms, 0.99), 1))


def _share(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0
