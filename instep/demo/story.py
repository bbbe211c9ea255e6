"""`instep demo`: polling and events side by side on real servers, through three faults.

The contract system's table starts with its documents and no statuses. The print system publishes
the status changes of each document: CREATED, QUEUED and PRINTING at full speed, while the pipeline
is killed and started again; then PRINTED or FAILED at an even rate, which measures freshness, while
another writer locks the database and the broker is killed. Some events are malformed, repeated or
late. A naive loop gets the same events and is killed at the same time. Every figure is measured in
this run.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from instep import errors, sinks
from instep.demo import polling
from instep.demo.contract_system import Contracts
from instep.demo.naive_loop import NaiveLoop
from instep.demo.pipeline_process import PipelineProcess
from instep.demo.stage import DemoTerminal, ProgressSample, positions
from instep.emit import Publisher
from instep.kafka.connection import Cluster
from instep.local import broker, class_archives
from instep.operate import timeline
from instep.pipeline.apply.maintenance import MaintenanceSession
from instep.report.percentiles import percentile_values
from instep.sinks import inspection, target
from instep.sinks.journal_entries import Selection
from instep.sinks.sink import Sink
from instep.terminal import Tone
from instep.waiting import wait_until

FIRST = 50
KILL_AT_SHARE = 0.25
STEADY_PER_S = 1_000
LOCKED_S = 2.0
SEED = 1
BATCH_ROWS_MAX = 4_000  # several batches, so that the kill happens midway
LATE = 25
ODD_EVENTS = 20
SAMPLE_S = 0.2
NAIVE_PATIENCE_S = 30.0
FINAL = 4

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


class Outage(msgspec.Struct, frozen=True):
    """A fault: the ledger when it began, the ledger at the next commit, the seconds between."""

    what: str
    before: dict[int, int]
    after: dict[int, int]
    down_s: float


class Naive(msgspec.Struct, frozen=True):
    """How the naive loop's table differs from what was published."""

    differences: int
    older: int  # a late event overwrote the last one, or the last one was never applied
    missing: int
    extra: int  # rows of documents that do not exist


class StoryEvent(msgspec.Struct, frozen=True):
    """One event in a document's timeline."""

    place: str
    status: str
    version: int | None
    happened: datetime | None
    verdict: str
    freshness_ms: float | None


class DemoResult(msgspec.Struct, frozen=True):
    """The result of the demo."""

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
    naive: Naive
    faults: list[Outage]
    document: str
    life: list[StoryEvent]
    dead_letter: str
    target: str
    seconds: float


def run(
    *, target_url: str | None, documents: int, folder: Path, stage: DemoTerminal
) -> tuple[DemoResult, list[ProgressSample]]:
    """Run the demo, keep its files in this folder, and return its result and progress samples.

    Every process that the demo starts ends with it. A user's database is left unchanged.
    """
    # Prepare the class archive now, so that the pipeline starts faster later.
    class_archives.prepare(class_archives.SPARK, stage.say)
    with contextlib.ExitStack() as stack:
        stage.say("starting a Kafka broker on this machine")
        kafka = stack.enter_context(broker.LocalCluster())
        system = stack.enter_context(prepared(kafka.bootstrap, target_url, documents, folder))
        return _Story(system, kafka, folder, stage).run(stack)


@contextlib.contextmanager
def prepared(
    bootstrap: str, target_url: str | None, documents: int, folder: Path
) -> Iterator[Contracts]:
    """Create the table, the topic and the settings file.

    Without `target_url` they stay in the folder. In a user's database they are removed at the end.
    """
    rows = max(FIRST, min(BATCH_ROWS_MAX, documents * 3 // 7))
    if target_url is None:
        url = f"sqlite:///{folder / 'contracts.db'}"
        system = Contracts(
            folder, bootstrap, url, documents, prefix="", name="contracts", batch_rows_max=rows
        )
        system.prepare()
        yield system
        return
    # The settings contain the URL with its password, so the file is not kept.
    with tempfile.TemporaryDirectory(prefix="instep-demo-") as work:
        system = Contracts(
            Path(work), bootstrap, target_url, documents, prefix="demo", batch_rows_max=rows
        )
        try:
            system.prepare()
            yield system
        finally:
            system.clean_database()


class _Story:
    def __init__(
        self, system: Contracts, kafka: broker.LocalCluster, folder: Path, stage: DemoTerminal
    ) -> None:
        self.system, self.kafka, self.stage, self.say = system, kafka, stage, stage.say
        self.documents = system.documents
        self.began = time.monotonic()
        self.running: PipelineProcess = system.process()
        self.naive = NaiveLoop(kafka.bootstrap, system.pipeline.topic, folder / "naive.db")
        self.malformed = 0
        self.faults: list[Outage] = []
        dice = random.Random(SEED)  # noqa: S311 - which events are late is no secret
        self.late, self.reordered, self.repeated = (
            dice.sample(self.documents, count) for count in (LATE, ODD_EVENTS, ODD_EVENTS)
        )

    @property
    def records(self) -> int:
        """The number of records sent so far."""
        return self.system.events + self.malformed

    @property
    def planned(self) -> int:
        """The total number of records that the demo will send."""
        return (
            FINAL * len(self.documents)
            + len(self.late)
            + len(self.reordered)
            + len(self.repeated)
            + len(MALFORMED)
        )

    def run(self, stack: contextlib.ExitStack) -> tuple[DemoResult, list[ProgressSample]]:
        system = self.system
        for process in (self.running, self.naive):
            stack.callback(process.close)
            process.start()
        service = stack.enter_context(
            polling.QueryService(dict.fromkeys(self.documents, "CREATED"))
        )
        poller = polling.Poller(service.port, self.documents)
        poller.start()
        stack.callback(poller.stop)
        meter = stack.enter_context(_PollingMeter(self, poller))
        self.say(f"polling in the background: one call of {polling.CALL_S:g} s per document")
        self.say("starting the pipeline")
        sink = stack.enter_context(system.sink())
        self._wait(lambda: system.started(sink), "starting")
        publisher = stack.enter_context(system.publisher())
        self._publish_warm_up(publisher)
        self._wait(lambda: system.processed(sink) == system.events, "applying the first events")

        apply_s, outage_s, rate = self._run_at_full_speed(sink, publisher)
        steady = self._run_steadily(sink, publisher)
        self._publish_late(publisher)
        self._wait(lambda: system.processed(sink) >= self.records, "applying the last events")
        poller.stop()
        meter.stop()
        self.running.stop()
        self._wait_for_naive()

        self.say("comparing every document with the source")
        shown = next(
            (one for one in self.late if system.expected[one][0] == "PRINTED"), self.late[0]
        )
        result = DemoResult(
            documents=len(self.documents),
            events=system.events,
            applied=system.applied(sink),
            dead_letters=sink.journal.dead_letter_count(),
            restarts=max(position.epoch for position in sink.ledger.positions().values()) - 1,
            apply_s=round(apply_s, 2),
            outage_s=round(outage_s, 2),
            events_per_s=round(rate),
            freshness_ms=_freshness(system.freshness_ms(sink, FINAL, *steady)),
            polling_s=round(poller.round_s(), 1),
            polling_sampled=poller.count,
            differences=system.differences(sink),
            naive=_compared(self.naive.rows(), system.expected),
            faults=self.faults,
            document=shown,
            life=self._timeline(shown),
            dead_letter=str(sink.journal.dead_letters(Selection(), 1)[0].position),
            target=target.shown(sink.url),
            seconds=round(time.monotonic() - self.began, 1),
        )
        return result, meter.samples

    # --- the acts ------------------------------------------------------------------------------

    def _run_at_full_speed(self, sink: Sink, publisher: Publisher) -> tuple[float, float, float]:
        """Publish at full speed and kill the pipeline and the naive loop in the middle.

        Return the seconds of work, the seconds of the outage, and the events per second.
        """
        system = self.system
        self.say("events instead: the print system publishes every change, at full speed")
        first, began = system.events, time.monotonic()
        self._publish_first_changes(publisher)
        publisher.flush()
        bulk = self.records
        self._wait(lambda: system.processed(sink) >= bulk * KILL_AT_SHARE, "applying")
        with self._fault(sink, "kill -9 of the pipeline and of the naive loop") as down:
            self.running.kill()
            self.naive.kill()
            down.begins()
            self.running.start()
            self.naive.start()
        outage_s = self.faults[-1].down_s
        self._wait(lambda: system.processed(sink) >= bulk, "catching up")
        apply_s = time.monotonic() - began - outage_s
        return apply_s, outage_s, (bulk - first) / apply_s

    def _run_steadily(self, sink: Sink, publisher: Publisher) -> tuple[datetime, datetime]:
        """Publish the last change of every document at an even rate.

        Two thirds are sent without a fault, one sixth while the database is locked, and one sixth
        while the broker is down. Return the begin and end of the part without a fault.
        """
        third, sixth = len(self.documents) * 2 // 3, len(self.documents) * 5 // 6
        self.say(
            f"measuring freshness: the last change of every document, {STEADY_PER_S:,} per second"
        )
        since = datetime.now(UTC)
        self._publish_last_changes(publisher, range(third))
        publisher.flush()
        self._wait(lambda: self.system.processed(sink) >= self.records, "keeping in step")
        until = datetime.now(UTC)
        with (
            self._fault(sink, f"another writer locks the database for {LOCKED_S:g} s") as down,
            self._locked(),
        ):
            down.begins()
            self._publish_last_changes(publisher, range(third, sixth))
            publisher.flush()
            time.sleep(max(0.0, LOCKED_S - down.seconds()))
        with self._fault(sink, "kill -9 of the broker") as down:
            self.kafka.kill()
            down.begins()
            # The publisher buffers these until the broker is back.
            self._publish_last_changes(publisher, range(sixth, len(self.documents)))
            self.kafka.start()
            publisher.flush()
        return since, until

    @contextlib.contextmanager
    def _fault(self, sink: Sink, what: str) -> Iterator[_OutageStart]:
        """Announce a fault; after the block, wait until the ledger moves again and report that."""
        self.say(what, Tone.BAD)
        down = _OutageStart(lambda: self.system.ledger(sink), self.say)
        yield down
        at = sum(down.ledger.values())
        self._wait(
            lambda: self.system.processed(sink) > at or at >= self.records,
            f"recovering from: {what}",
        )
        outage = Outage(what, down.ledger, self.system.ledger(sink), round(down.seconds(), 2))
        self.faults.append(outage)
        self.say(
            f"  after:  {positions(outage.after)}, {outage.down_s:.1f} s later: resumed from there",
            Tone.GOOD,
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the ledger as another writer would.

        SQLite has no server that could be killed, and a user's server must not be killed.
        """
        with (
            MaintenanceSession(self.system.name, self.system.pipeline, "demo") as session,
            session.transaction(execute=False),
        ):
            yield

    def _wait_for_naive(self) -> None:
        """Wait until the naive loop has read everything: its table is compared, not its speed."""
        wait_until(
            lambda: self.naive.read_count() >= self.records, NAIVE_PATIENCE_S, interval_s=0.05
        )
        self.naive.close()

    def _wait(self, reached: Callable[[], bool], what: str) -> None:
        self.system.wait(self.running, reached, what)

    def _timeline(self, document: str) -> list[StoryEvent]:
        system = self.system
        with MaintenanceSession(system.name, system.pipeline, "demo") as session:
            found = timeline.read(
                session, document, lambda: Cluster(system.kafka, system.bootstrap)
            )
        return [
            StoryEvent(
                str(one.position),
                one.status or "",
                one.order,
                one.event_time,
                one.verdict,
                None if one.freshness_s is None else round(one.freshness_s * 1000, 1),
            )
            for one in found.events
        ]

    # --- publishing ----------------------------------------------------------------------------

    def _publish_warm_up(self, publisher: Publisher) -> None:
        """Publish a few events to warm up the pipeline: Spark compiles code in its first batch."""
        for document in self.documents[:FIRST]:
            self.system.publish(publisher, document, "CREATED", 1)
        publisher.flush()

    def _publish_first_changes(self, publisher: Publisher) -> None:
        for version, status in enumerate(("CREATED", "QUEUED", "PRINTING"), start=1):
            for document in self.documents[FIRST if version == 1 else 0 :]:
                self.system.publish(publisher, document, status, version)
        for document in self.reordered:
            self.system.publish(publisher, document, "QUEUED", 2)
        for document in self.repeated:
            self.system.publish(publisher, document, "PRINTING", 3)
        for number, value in enumerate(MALFORMED):
            publisher.send_raw(self.documents[number].encode(), value)
            self.malformed += 1

    def _publish_last_changes(self, publisher: Publisher, numbers: range) -> None:
        started = time.monotonic()
        for count, number in enumerate(numbers):
            due = started + count / STEADY_PER_S
            if due > time.monotonic():
                time.sleep(max(0.0, due - time.monotonic()))
            self.system.publish(
                publisher,
                self.documents[number],
                "FAILED" if number % 50 == 0 else "PRINTED",
                FINAL,
            )

    def _publish_late(self, publisher: Publisher) -> None:
        """Publish delayed events, which arrive after the last event of their document."""
        self.say(f"{len(self.late)} events arrive late, after the last one of their document")
        for document in self.late:
            self.system.publish(publisher, document, "PRINTING", 3)
        publisher.flush()


class _OutageStart:
    """The start of an outage and the ledger at that moment."""

    def __init__(
        self, read_ledger: Callable[[], dict[int, int]], say: Callable[[str, Tone], None]
    ) -> None:
        self._read_ledger, self._say = read_ledger, say
        self.ledger: dict[int, int] = {}
        self._since = time.monotonic()

    def begins(self) -> None:
        """Record that the outage begins now, with the ledger from which work must resume."""
        self.ledger, self._since = self._read_ledger(), time.monotonic()
        self._say(
            f"  ledger: {positions(self.ledger)}, {sum(self.ledger.values()):,} records", Tone.BAD
        )

    def seconds(self) -> float:
        return time.monotonic() - self._since


class _PollingMeter(threading.Thread):
    """Samples the ledger and the poller a few times a second, for the bars and the page."""

    def __init__(self, story: _Story, poller: polling.Poller) -> None:
        super().__init__(name="meter", daemon=True)
        self._story, self._poller = story, poller
        self._stopped = threading.Event()
        self.samples: list[ProgressSample] = []

    def run(self) -> None:
        story = self._story
        sink = sinks.open_sink(inspection.inspect(story.system.name, story.system.pipeline))
        with contextlib.closing(sink):
            while not self._stopped.wait(SAMPLE_S):
                # A failed read only leaves a gap in the plot.
                with contextlib.suppress(errors.InstepError):
                    self._sample(sink)

    def _sample(self, sink: Sink) -> None:
        story, poller = self._story, self._poller
        with sink.translated():
            ledger = story.system.ledger(sink)
        sample = ProgressSample(
            at_s=round(time.monotonic() - story.began, 2),
            documents=len(story.documents),
            polled=poller.count,
            round_s=poller.round_s(),
            records=story.planned,
            applied=sum(ledger.values()),
            ledger=ledger,
        )
        self.samples.append(sample)
        story.stage.show(sample)

    def stop(self) -> None:
        """Stop and wait for the thread."""
        self._stopped.set()
        self.join()

    def __enter__(self) -> _PollingMeter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def table(result: DemoResult) -> str:
    """Return the result as text."""
    naive = result.naive
    rows = [
        ("documents", f"{result.documents:,}"),
        (
            "events",
            f"{result.events:,}, {result.applied:,} of them applied"
            " (the others were late or repeated)",
        ),
        (
            "time",
            f"{result.apply_s:.1f} s at full speed,"
            f" and {result.outage_s:.1f} s down after the kill -9",
        ),
        ("events/s", f"{result.events_per_s:,.0f}"),
        (
            "freshness",
            f"p50 {result.freshness_ms.p50:.0f} ms, p99 {result.freshness_ms.p99:.0f} ms"
            f" at {STEADY_PER_S:,} events/s",
        ),
        (
            "polling",
            f"{result.polling_s / 60:.0f} minutes per round"
            f" (extrapolated from {result.polling_sampled} calls)",
        ),
        ("dead letters", f"{result.dead_letters:,} (malformed on purpose, each with its reason)"),
        ("restarts", f"{result.restarts}"),
        ("naive loop", f"{naive.differences:,} differences: {naive_words(naive)}"),
        ("differences", f"{result.differences:,}"),
    ]
    return "\n".join(f"{name:<14}{value}" for name, value in rows)


def naive_words(naive: Naive) -> str:
    """Describe the errors in the naive loop's table."""
    parts = (
        (naive.older, "with an older status"),
        (naive.missing, "missing"),
        (naive.extra, "unknown document" if naive.extra == 1 else "unknown documents"),
    )
    return ", ".join(f"{count:,} {words}" for count, words in parts if count) or "none"


def new_folder(wanted: Path | None) -> Path:
    """Create the folder for the demo's files.

    A folder given by the user must be new; the default is instep-demo with the next free number.
    """
    path = wanted or Path("instep-demo")
    for number in range(2, 1_000):
        try:
            path.mkdir(parents=wanted is not None)
            return path
        except FileExistsError:
            if wanted is not None:
                raise errors.SettingsError(
                    f"{wanted} already exists", "name a new folder with --folder"
                ) from None
            path = Path(f"instep-demo-{number}")
        except OSError as error:
            raise errors.SettingsError(
                f"{path} cannot be created: {error.strerror}", "name another folder with --folder"
            ) from error
    raise errors.SettingsError(
        "there are too many instep-demo folders here", "remove some, or name another with --folder"
    )


def discard(folder: Path) -> None:
    """Remove the folder of a demo that was interrupted."""
    shutil.rmtree(folder, ignore_errors=True)


def _compared(found: dict[str, tuple[str, int]], expected: dict[str, tuple[str, int]]) -> Naive:
    missing = len(expected.keys() - found.keys())
    extra = len(found.keys() - expected.keys())
    older = sum(found[name] != expected for name, expected in expected.items() if name in found)
    return Naive(older + missing + extra, older, missing, extra)


def _freshness(spans_ms: Sequence[float]) -> Freshness:
    """Return the percentiles of the events that were published at an even rate."""
    if not spans_ms:
        return Freshness(p50=0.0, p99=0.0)
    p50, p99 = percentile_values(spans_ms, (50, 99))
    return Freshness(p50=round(p50, 1), p99=round(p99, 1))
