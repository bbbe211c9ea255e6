"""What the console's answers cost the flow, and how soon overdue documents are found.

The pipeline runs in a process of its own, over the table that the benchmark has filled. Rounds with
and without limits for statuses take turns, and so do writes with and without the indexes that only
the console's lists need.
"""

from __future__ import annotations

import time
import tomllib
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import tomli_w

from instep import Publisher, errors, settings
from instep.demo.pipeline_process import PipelineProcess
from instep.document.decoding import DeadLetter, Record
from instep.document.due import OverdueSummary
from instep.document.reasons import Reason
from instep.sinks import connecting, ledger_reader, tables, target
from instep.sinks.sink import Sink
from instep.sinks.target import Decision
from instep.waiting import wait_until
from instep_bench import meters
from instep_bench.bench_servers import BenchPipeline, TargetDatabase

SPACING_S = 1.0  # between the times at which two documents are due
LEAD_S = 10.0  # from their events to the first of these times
START_S = 300.0
PATIENCE_S = 120.0
POLL_S = 0.1
SETTLE_S = 10.0  # a run that has just started applies its backlog and reads the whole table
BATCH_ROWS = 1_000
RUNNING = "running"
FIRST_OFFSET = 10**9  # behind everything else that the benchmark writes
LIMITS, NO_LIMITS = "limits", "no limits"
INDEXED, NOT_INDEXED = "the console's indexes", "no such indexes"
CONSOLE_INDEXES = (
    (tables.DEAD_LETTERS, "instep_dead_letters_reason"),
    (tables.DEAD_LETTERS, "instep_dead_letters_key"),
    (tables.DECISIONS, "instep_decisions_at"),
)

Say = Callable[[str], None]


# --- overdue documents ----------------------------------------------------------------------------


def found_after(
    declared: BenchPipeline, status_name: str, limit_s: float, count: int
) -> list[float]:
    """Return how many seconds after it was due each of some new documents was found."""
    with _running(declared.name, declared.config):
        before = _total(declared)
        now = datetime.now(UTC)
        due = [now + timedelta(seconds=LEAD_S + SPACING_S * number) for number in range(count)]
        _publish(declared, status_name, [at - timedelta(seconds=limit_s) for at in due])
        found: list[float] = []

        def is_complete() -> bool:
            total, seen = _total(declared), datetime.now(UTC)
            new = due[len(found) : max(0, total - before)]
            found.extend((seen - at).total_seconds() for at in new)
            return len(found) == count

        if not wait_until(is_complete, PATIENCE_S + SPACING_S * count, interval_s=POLL_S):
            raise errors.InstepError(f"only {len(found)} of {count} overdue documents were found")
    return found


def watch_cores(
    declared: BenchPipeline, database: TargetDatabase, seconds: float, rounds: int, say: Say
) -> dict[str, list[float]]:
    """Return the cores of a pipeline at rest and of its database, with limits and without."""
    without = _without_limits(declared.config)
    found: dict[str, list[float]] = {LIMITS: [], NO_LIMITS: []}
    for number in range(rounds):
        for label, config in ((LIMITS, declared.config), (NO_LIMITS, without)):
            say(f"measuring a pipeline with {label}, round {number + 1}")
            has_limits = label == LIMITS
            with _running(declared.name, config, has_limits=has_limits) as process:
                time.sleep(SETTLE_S)
                roles = {"pipeline": meters.tree(process.pid), "database": database.pids}
                meter = meters.Meter(roles)
                meter.start()
                time.sleep(seconds)
                usage = meter.stop()
            found[label].append(sum(one.cpu_s for one in usage.values()) / seconds)
    return found


@contextmanager
def _running(name: str, config: Path, *, has_limits: bool = True) -> Iterator[PipelineProcess]:
    """Run the pipeline; wait until it runs and, with limits, has read the whole table."""
    pipeline = settings.pipeline(settings.load(config), name)
    process = PipelineProcess(config, log=config.with_suffix(".run.log"))
    try:
        process.start()

        def is_ready() -> bool:
            if process.poll() is not None:
                raise errors.InstepError(f"the pipeline ended:\n{process.tail()}")
            run, _ = ledger_reader.latest_run(name, pipeline)
            if run is None or run.pid != process.pid or run.state != RUNNING:
                return False
            return run.overdue is not None or not has_limits

        if not wait_until(is_ready, START_S):
            raise errors.InstepError(f"the pipeline does not start:\n{process.tail()}")
        yield process
    finally:
        process.close()


def _total(declared: BenchPipeline) -> int:
    """Return how many documents the run has found overdue."""
    run, _ = ledger_reader.latest_run(declared.name, declared.pipeline)
    if run is None or run.overdue is None:
        return 0
    return msgspec.json.decode(run.overdue, type=OverdueSummary).total


def _publish(declared: BenchPipeline, status_name: str, times: Iterable[datetime]) -> None:
    """Publish the event that gives each of some new documents its status at a time."""
    bootstrap = settings.load(declared.config).kafka.bootstrap or ""
    with Publisher(bootstrap, declared.pipeline.topic) as publisher:
        for at in times:
            document = f"overdue-{uuid.uuid4().hex}"
            at_ms = int(at.timestamp() * 1000)
            event = {"doc_id": document, "status": status_name, "version": 1, "updated_at": at_ms}
            publisher.send_raw(document.encode(), msgspec.json.encode(event))


def _without_limits(config: Path) -> Path:
    """Write the settings file without the limits of statuses."""
    tree = tomllib.loads(config.read_text(encoding="utf-8"))
    for pipeline in tree["pipelines"].values():
        pipeline.pop("due", None)
    changed = config.with_suffix(".without-limits.toml")
    changed.write_text(tomli_w.dumps(tree), encoding="utf-8")
    return changed


# --- indexes --------------------------------------------------------------------------------------


def index_cost(
    declared: BenchPipeline, sink: Sink, rows: int, rounds: int, say: Say
) -> dict[str, list[float]]:
    """Return the microseconds per row of writing quarantine, with and without the indexes.

    A row is a dead letter and a decision about it.
    """
    first = FIRST_OFFSET
    found: dict[str, list[float]] = {INDEXED: [], NOT_INDEXED: []}
    for number in range(rounds):
        say(f"measuring the console's indexes, round {number + 1}")
        found[INDEXED].append(_written_us(sink, first, rows))
        with _no_indexes(declared.pipeline.target):
            found[NOT_INDEXED].append(_written_us(sink, first + rows, rows))
        first += 2 * rows
    return found


@contextmanager
def _no_indexes(database: str) -> Iterator[None]:
    engine = connecting.create_engine(target.database_url(database))
    indexes = [
        index for table, name in CONSOLE_INDEXES for index in table.indexes if index.name == name
    ]
    for index in indexes:
        index.drop(engine)
    try:
        yield
    finally:
        for index in indexes:
            index.create(engine)
        engine.dispose()


def _written_us(sink: Sink, first: int, rows: int) -> float:
    """Write rows in transactions of a batch; return the microseconds per row."""
    at = datetime.now(UTC)
    began = time.perf_counter()
    for begin in range(first, first + rows, BATCH_ROWS):
        numbers = range(begin, min(begin + BATCH_ROWS, first + rows))
        letters = [DeadLetter(_record(number), Reason.NOT_JSON, "not JSON") for number in numbers]
        decisions = [
            Decision(0, number, "dropped", "NOT_JSON", "bench", "noise", f"doc-{number}")
            for number in numbers
        ]
        with sink.transaction():
            sink.journal.add_dead_letters(0, letters, at)
            sink.journal.add_decisions(decisions, at)
    return (time.perf_counter() - began) / rows * 1e6


def _record(number: int) -> Record:
    return Record(number, 1_790_000_000_000, f"key-{number}".encode(), b"{broken" * 20)
