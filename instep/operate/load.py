"""`instep load`: bring existing documents from another source into the table, under the guard.

Rows are read and decoded by one thread and applied by another, batch by batch
(`pipeline/apply/load.py`), while the pipeline keeps running. A load is known by its name. Its
position is in the target database and moves with the rows, so a load that was killed continues
where it stopped. It continues only if the source is the same: a file with the same content, or the
same query or table of the same database.

A plan reads all rows, and compares them with the table without locks; it does not try whether the
table would refuse a row.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from instep import errors, settings, sinks
from instep.document import guard
from instep.document.decoding import Record
from instep.document.guard import Verdict
from instep.operate import row_source
from instep.operate.row_source import RowSource, SourceRow
from instep.pipeline.apply import batch, load
from instep.pipeline.apply.batch import Writer
from instep.pipeline.apply.load import LoadTransaction, RowBatch, RowDecoder
from instep.sinks import inspection, loads, source_query
from instep.sinks.ledger import Ledger
from instep.sinks.loads import LoadProblem, Loads, LoadState, StoredLoad
from instep.sinks.sink import Sink
from instep.sinks.target import Position, Target
from instep.waiting import retrying

BATCH_ROWS = 5_000
BATCH_ROWS_LEAST = 100
BATCH_ROWS_FIRST = 1_000
BATCH_BYTES_MAX = 8 * 1024 * 1024
LOCKED_S = 0.01  # how long a batch should keep the tasks of a pipeline waiting, about
LOCKED_SHARE = 0.2  # of the time, at most, while events flow; also leaves processors to the tasks
PAUSE_MAX_S = 0.5  # the locks of one slow batch say little about the next
AHEAD_BATCHES = 2  # read and decoded before they are needed
RATE_PARTS = 5  # batches per second, at least, if the rate is limited
TRIES_MAX = 8
PATIENCE_S = 30.0  # with a database that does not answer
TABLE_CHECK_S = 30.0
END_PATIENCE_S = 2.0  # with the thread that reads ahead
NO_PARTITION = -1  # a row has neither partition nor offset nor headers
NAME_CHARACTERS_MAX = 255

Progress = Callable[[str, int, int, str], None]


class LoadStart(StrEnum):
    """What a load does with an earlier one of the same name."""

    NEW = "new"
    CONTINUED = "continued"
    RESTARTED = "restarted"
    NOTHING_LEFT = "already complete"


class LoadRequest(msgspec.Struct, frozen=True):
    """The options of one load."""

    source: RowSource
    name: str | None = None  # of the load; by default that of the file or table, or "query"
    batch_rows: int = BATCH_ROWS
    rate: float | None = None  # rows per second, at most
    restart: bool = False
    actor: str = ""


class LoadReport(msgspec.Struct, frozen=True):
    """What a load did, or would do."""

    pipeline: str
    name: str
    source: str
    executed: bool
    start: LoadStart
    load: int | None  # its number; None for the plan of a new one
    first_row: int
    rows: int  # read by this command
    totals: dict[str, int]  # of the load: its rows, each verdict, and dead letters
    problems: list[LoadProblem]
    notes: list[str]
    seconds: float

    @property
    def dead(self) -> int:
        """Return the number of rows that cannot be understood."""
        return self.totals.get("dead", 0)


def run(
    name: str,
    pipeline: settings.Pipeline,
    request: LoadRequest,
    *,
    execute: bool,
    progress: Progress = lambda *_: None,
) -> LoadReport:
    """Load a source into the table of a pipeline, or plan it."""
    refuse_unfit(name, pipeline, request)
    loader = _Loader(name, pipeline, request, progress)
    try:
        return loader.execute() if execute else loader.plan()
    finally:
        loader.close()


def refuse_unfit(name: str, pipeline: settings.Pipeline, request: LoadRequest) -> None:
    """Raise if the rows of a source cannot have what the pipeline needs."""
    order = pipeline.event.order
    if order is not None and order.startswith("@"):
        raise errors.SettingsError(
            f"pipeline {name!r} is ordered by {order}, which a row of the source does not have",
            "order it by a version or a time of the source: `order` in [event]",
        )
    if request.source.file == "-":
        raise errors.SettingsError(
            "the standard input cannot be loaded: a load that was interrupted could not continue",
            "write it to a file first",
        )
    if request.name is not None and not 0 < len(request.name) <= NAME_CHARACTERS_MAX:
        raise errors.SettingsError(
            f"the name of a load must have 1 to {NAME_CHARACTERS_MAX} characters",
            "give another --name",
        )


def usual_name(source: RowSource) -> str:
    """Return the name of a load that is given none."""
    name = "query"
    if source.file:
        name = Path(source.file).name
    elif source.table:
        name = source.table
    return name[-NAME_CHARACTERS_MAX:]


class _Loader:
    """One load, from the look at earlier ones to its report."""

    def __init__(
        self, name: str, pipeline: settings.Pipeline, request: LoadRequest, progress: Progress
    ) -> None:
        self._name, self._pipeline, self._request = name, pipeline, request
        self._source, self._load_name = request.source, request.name or usual_name(request.source)
        self._progress = progress
        self._began = time.monotonic()
        self._target: Target = inspection.inspect(name, pipeline)
        self._sink: Sink | None = None
        self._number: int | None = None
        self._state_of_file = _state_of_file(self._source)
        found = row_source.fingerprint(
            self._source,
            lambda done, size: progress("reading the file", done, size, "bytes"),
        )
        self._digest, self._rows_total = found.digest, found.rows
        self._size = min(BATCH_ROWS_FIRST, request.batch_rows)
        self._checked_at = time.monotonic()
        self._pipeline_offset: int | None = None  # of the batch before

    def close(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()

    def _opened(self) -> Sink:
        """Return the sink: that of the load, once it has a number."""
        if self._sink is None:
            to = self._target
            if self._number is not None:
                to = load.load_target(to, self._number)
            self._sink = sinks.open_sink(to)
        return self._sink

    # --- which load this is -----------------------------------------------------------------------

    def _find(self) -> tuple[LoadStart, StoredLoad | None]:
        """Return what to do, and the earlier load of this name if there is one."""
        sink = self._opened()
        with sink.translated():
            if not Ledger(sink.connection, self._target.topic).positions():
                raise load.no_ledger(self._name)
            last = Loads(sink.connection).last(self._load_name)
        if last is None:
            return LoadStart.NEW, None
        if self._request.restart:
            return LoadStart.RESTARTED, last
        if last.digest == self._digest:
            if last.state == LoadState.LOADING:
                return LoadStart.CONTINUED, last
            if last.state == LoadState.COMPLETE:
                return LoadStart.NOTHING_LEFT, last
        elif last.state == LoadState.LOADING:
            raise errors.SettingsError(
                f"load {last.number} ({self._load_name}) of pipeline {self._name!r} is not"
                f" complete, and the source has changed since: it was {last.source}",
                "load the new source from its first row, which the guard makes safe: --restart;"
                " or load it beside the other one: --name NAME",
            )
        return LoadStart.NEW, last

    def _position(self, number: int) -> Position | None:
        sink = self._opened()
        with sink.translated():
            ledger = Ledger(sink.connection, loads.topic_of(number))
            return ledger.positions().get(loads.PARTITION)

    def _begin(self, start: LoadStart, last: StoredLoad | None) -> tuple[StoredLoad, Writer]:
        """Take the load over, or add a new one; return it, and the writer that it has now."""
        sink = self._opened()

        def attempt() -> int:
            with sink.transaction():
                table = Loads(sink.connection)
                if start is LoadStart.CONTINUED and last is not None:
                    return last.number
                if last is not None:
                    table.end(last.number, LoadState.REPLACED)
                return table.add(
                    self._load_name, self._source.named, self._digest, self._request.actor
                )

        self._number = retrying(
            attempt, lambda error: isinstance(error, errors.Transient), tries_max=TRIES_MAX
        )
        self.close()  # the next sink is that of the load
        sink = self._opened()
        first = Position(loads.PARTITION, 1, 0, "", self._digest)
        epoch, _ = sink.ledger.take_epoch([first])
        with sink.translated():
            stored = Loads(sink.connection).last(self._load_name)
        if stored is None or stored.number != self._number:
            raise self._taken_over()
        return stored, Writer(epoch, "", self._digest)

    def _taken_over(self) -> errors.Fenced:
        return errors.Fenced(
            f"another command has taken over load {self._load_name} of pipeline {self._name!r}",
            "let it finish: no row is lost or applied twice",
        )

    # --- the plan ---------------------------------------------------------------------------------

    def plan(self) -> LoadReport:
        """Read all rows that are left, and say what would become of them."""
        start, last = self._find()
        number, next_row, mark = None, 1, None
        totals = dict.fromkeys(batch.TOTALS, 0)
        if last is not None and start in (LoadStart.CONTINUED, LoadStart.NOTHING_LEFT):
            number, mark = last.number, last.mark
            position = self._position(number)
            if position is not None:
                next_row = position.next_offset
                totals |= position.totals
        count, problems = 0, list[LoadProblem]()
        if start is not LoadStart.NOTHING_LEFT:
            self._number = number if number is not None else 0
            self.close()  # the sink of a load judges ties as a load does
            sink, self._size = self._opened(), self._request.batch_rows
            for rows in self._batches(next_row, mark):
                count += len(rows.records)
                with sink.snapshot():
                    outcome = judged(sink, rows)
                for key, number_of in outcome.items():
                    totals[key] += number_of
                problems += _problems_of(rows)[: loads.PROBLEMS_MAX - len(problems)]
                self._show("planning", rows)
        return self._report(start, number, next_row, count, totals, problems, executed=False)

    # --- execution --------------------------------------------------------------------------------

    def execute(self) -> LoadReport:
        """Load all rows that are left."""
        start, last = self._find()
        if start is LoadStart.NOTHING_LEFT and last is not None:
            return self._complete(start, last.number, 0, 0)
        stored, writer = self._begin(start, last)
        position = self._position(stored.number)
        next_row = position.next_offset if position else 1
        count = 0
        pace = Pace(self._request.rate)
        for rows in self._batches(next_row, stored.mark):
            pace.wait(len(rows.records))
            began = time.monotonic()
            work = self._apply(rows, writer, stored.number)
            time.sleep(self._pause_s(work, time.monotonic() - began))
            count += len(rows.records)
            self._show("loading", rows)
        self._refuse_changed_file()
        self._end(stored.number, writer)
        return self._complete(start, stored.number, next_row, count)

    def _apply(self, rows: RowBatch, writer: Writer, number: int) -> LoadTransaction:
        """Apply a batch; retry it if the type of the error allows that."""
        work = LoadTransaction(
            writer,
            self._pipeline.topic,
            number,
            rows,
            batch.find_probe(),
            same_table=self._check_table,
        )
        tries, give_up_at, pause_s = 0, time.monotonic() + PATIENCE_S, 0.05
        while True:
            try:
                if time.monotonic() - self._checked_at > TABLE_CHECK_S:
                    self._check_table()
                work.apply_rows(self._opened())
            except errors.Fenced as error:
                raise self._taken_over() from error
            except errors.TableConstrained:
                self._target = inspection.inspect(self._name, self._pipeline)
                self.close()
            except errors.Transient:
                tries += 1
                if tries >= TRIES_MAX:
                    raise
            except errors.Unreachable:
                self.close()
                if time.monotonic() >= give_up_at:
                    raise
            else:
                self._adapt(work.locked_s)
                return work
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)

    def _adapt(self, locked_s: float) -> None:
        """Choose the size of the next batches so that tasks wait about LOCKED_S for each."""
        factor = min(max(LOCKED_S / max(locked_s, 1e-6), 0.5), 1.5)
        least = min(BATCH_ROWS_LEAST, self._request.batch_rows)
        self._size = min(max(int(self._size * factor), least), self._request.batch_rows)

    def _pause_s(self, work: LoadTransaction, took_s: float) -> float:
        """Return how long to let tasks work after a batch, if they have events to apply."""
        before, self._pipeline_offset = self._pipeline_offset, work.pipeline_offset
        if before in (None, work.pipeline_offset):
            return 0.0
        return min(max(0.0, work.locked_s / LOCKED_SHARE - took_s), PAUSE_MAX_S)

    def _check_table(self) -> None:
        """Raise if the table was changed since it was inspected."""
        inspection.refuse_constrained(self._target, self._pipeline)
        self._checked_at = time.monotonic()

    def _refuse_changed_file(self) -> None:
        if _state_of_file(self._source) != self._state_of_file:
            raise errors.SettingsError(
                f"{self._source.file} was changed while it was loaded",
                "load it from its first row, which the guard makes safe: --restart",
            )

    def _end(self, number: int, writer: Writer) -> None:
        """Mark the load as complete, unless another command has taken it over."""

        def attempt() -> None:
            sink = self._opened()
            with sink.transaction():
                position = sink.ledger.positions(lock=True).get(loads.PARTITION)
                if position is None or position.epoch != writer.epoch:
                    raise self._taken_over()
                Loads(sink.connection).end(number, LoadState.COMPLETE)

        retrying(attempt, lambda error: isinstance(error, errors.Transient), tries_max=TRIES_MAX)

    def _complete(self, start: LoadStart, number: int, first_row: int, count: int) -> LoadReport:
        totals = dict.fromkeys(batch.TOTALS, 0)
        position = self._position(number)
        if position is not None:
            totals |= position.totals
        sink = self._opened()
        with sink.translated():
            problems = Loads(sink.connection).problems(number)
        return self._report(start, number, first_row, count, totals, problems, executed=True)

    def _report(
        self,
        start: LoadStart,
        number: int | None,
        first_row: int,
        count: int,
        totals: dict[str, int],
        problems: list[LoadProblem],
        *,
        executed: bool,
    ) -> LoadReport:
        return LoadReport(
            pipeline=self._name,
            name=self._load_name,
            source=self._source.named,
            executed=executed,
            start=start,
            load=number,
            first_row=first_row,
            rows=count,
            totals=totals,
            problems=problems,
            notes=list(self._notes(totals)),
            seconds=round(time.monotonic() - self._began, 3),
        )

    def _notes(self, totals: dict[str, int]) -> Iterator[str]:
        rules = self._target.rules
        if not rules.ordered:
            yield (
                "the pipeline has no order: rows are applied only to documents that no event has"
                " reached and that have no values in the table"
            )
        if not self._target.history and rules.deletes == "row" and rules.missing == "insert":
            yield (
                "history = false: a document that an event deleted before the table had it"
                " is not recognised, and would be inserted"
            )
        if totals["ignored"] and rules.missing == "insert":
            yield "a load deletes nothing: deletes in the source were ignored"

    def _show(self, what: str, rows: RowBatch) -> None:
        last = rows.records[-1].offset
        self._progress(what, last, max(last, self._rows_total), "rows")

    # --- reading ----------------------------------------------------------------------------------

    def _batches(self, next_row: int, mark: source_query.RowMark | None) -> Iterator[RowBatch]:
        """Yield the rows from this one on in batches, which a thread reads and decodes ahead."""
        mapping = self._target.mapping.without_further
        decoder = RowDecoder(mapping, self._opened().record_bytes_max)
        rows = row_source.sorted_rows(self._source, mapping, next_row=next_row, after=mark)
        return _read_ahead(functools.partial(self._decoded, rows, decoder))

    def _decoded(self, rows: Iterator[SourceRow], decoder: RowDecoder) -> Iterator[RowBatch]:
        most = self._request.batch_rows
        if self._request.rate is not None:
            most = max(1, min(most, int(self._request.rate / RATE_PARTS)))
        collected: list[SourceRow] = []
        size = 0
        for row in rows:
            collected.append(row)
            size += len(row.value or b"")
            if len(collected) >= min(self._size, most) or size >= BATCH_BYTES_MAX:
                yield _row_batch(collected, decoder)
                collected, size = [], 0
        if collected:
            yield _row_batch(collected, decoder)


def judged(sink: Sink, rows: RowBatch) -> dict[str, int]:
    """Return what would become of a batch, without locks and without a write."""
    stored = sink.stored(event.document for event in rows.events)
    events = [event for event in rows.events if event.values is not None]
    left = load.left_to_pipeline(sink, events)
    due = [event for event in events if event.offset not in left]
    parked = sink.journal.parked_among(event.document for event in due)
    verdicts = guard.settle(due, stored, sink.target.rules, parked).verdicts
    counts = {verdict.value: verdicts.count(verdict) for verdict in Verdict}
    counts[Verdict.STALE.value] += len(left)
    counts[Verdict.IGNORED.value] += len(rows.events) - len(events)
    return {"records": len(rows.records), **counts, "dead": len(rows.dead)}


def _row_batch(rows: list[SourceRow], decoder: RowDecoder) -> RowBatch:
    records = [
        Record(row.number, row_source.NO_TIMESTAMP, row.document, row.value, NO_PARTITION)
        for row in rows
    ]
    return RowBatch(
        records,
        decoder,
        problems={row.number: row.problem for row in rows if row.problem is not None},
        marks={row.number: row.mark for row in rows if row.mark is not None},
    )


def _problems_of(rows: RowBatch) -> list[LoadProblem]:
    """Return the rows that would become dead letters, or that their columns cannot hold."""
    problems = [
        LoadProblem(letter.record.offset, None, letter.reason.value, letter.detail)
        for letter in rows.dead
    ]
    problems += [
        LoadProblem(
            event.offset, str(event.document), event.refusal.reason.value, event.refusal.detail
        )
        for event in rows.events
        if event.refusal is not None
    ]
    return sorted(problems, key=lambda problem: problem.row)


def _state_of_file(source: RowSource) -> tuple[int, ...] | None:
    """Return what changes when a file is written or replaced."""
    if not source.file:
        return None
    try:
        found = os.stat(source.file)  # noqa: PTH116 - the state itself, not a path
    except OSError as error:
        raise errors.SettingsError(
            f"{source.file} cannot be read: {error.strerror}", "name a file that this user can read"
        ) from error
    return found.st_size, found.st_mtime_ns, found.st_ino


class Pace:
    """Keeps the number of rows per second below a rate.

    After a pause, for example of the database, nothing is made up for: that would be a burst.
    """

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._free_at = clock()

    def wait(self, rows: int) -> None:
        """Wait until this number of further rows may be applied."""
        if self._rate is None:
            return
        self._sleep(max(0.0, self._free_at - self._clock()))
        self._free_at = max(self._free_at, self._clock()) + rows / self._rate


def _read_ahead(batches: Callable[[], Iterator[RowBatch]]) -> Iterator[RowBatch]:
    """Yield batches that a thread makes ahead. An error of the thread is raised here."""
    made: queue.Queue[RowBatch | BaseException | None] = queue.Queue(AHEAD_BATCHES)
    ended = threading.Event()

    def put(item: Any) -> bool:
        while not ended.is_set():
            try:
                made.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for one in batches():
                if not put(one):
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            put(error)

    thread = threading.Thread(target=work, name="instep load", daemon=True)
    thread.start()
    try:
        while True:
            item = made.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        ended.set()
        thread.join(END_PATIENCE_S)  # it may wait for the source's database
