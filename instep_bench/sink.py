"""`instep bench sink`: the doors of the Spark sink beside `foreachBatch` with Spark's JDBC writer.

All contestants write the same rows from the same files, in the same Spark session, one file in each
micro-batch. They alternate round by round. Large batches show the throughput, small ones what a
door adds to a micro-batch that writes nothing (Spark's `noop` sink). After each run the table must
hold the newest row of each document; otherwise there is no result.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
from pyarrow import parquet

from instep import errors, settings
from instep.report.tables import Cell, Plot, ReportTable
from instep_bench import bench_servers, charts, load, machine, row_check, turns
from instep_bench.contestant_program import ContestantProgram, Order
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult, Figure

MODULE = "instep_bench.baselines.sink_doors"
NOOP, FOR_EACH, FORMAT, JDBC = "noop", "foreachBatch door", "format door", "foreachBatch + JDBC"
PROMISES = {
    NOOP: "writes nothing",
    FOR_EACH: "exactly once, in order (guard)",
    FORMAT: "exactly once, in order (guard)",
    JDBC: "at least once, in order (guard, so that a repeated batch changes nothing)",
}
LARGE, SMALL = "large batches", "small batches"
SMALL_ROWS = 100
BATCHES_MAX = 100  # as many reports of batches as Spark keeps
PATIENCE_S = 1_800.0
SPEED_BAR = 1.5
OVERHEAD_BARS = {FOR_EACH: 15, FORMAT: 40}  # ms
ROW = pa.schema(
    [
        ("doc_id", pa.string()),
        ("status", pa.string()),
        ("version", pa.int64()),
        ("updated_at", pa.timestamp("us", tz="UTC")),
    ]
)


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    target: str = "postgres"
    rows: int = 400_000
    batches: int = 4
    small_batches: int = 20
    documents: int = 100_000
    rounds: int = 3


class RowFolder(msgspec.Struct, frozen=True):
    """The input of a measurement: a folder of files, one for each micro-batch."""

    name: str
    path: Path
    rows: int
    documents: int


# Milliseconds of each micro-batch, by the name of the folder, the contestant and the round.
Measured = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]


def run(options: SinkOptions, say: Callable[[str], None], command: str) -> BenchResult:
    """Measure all contestants in turn. Every process that is started ends with the benchmark."""
    check(options)
    recorder = Recorder("sink", command)
    with bench_servers.BenchServers(None, say) as servers:
        database = servers.database(options.target)
        declared = database.declare("localhost:1", "none")  # the sink reads no topic
        folders = _write_files(options, servers.folder)
        program = ContestantProgram(MODULE, servers.folder / "program")
        try:
            program.start()
            measured = _measure(options, program, declared, folders, say)
        finally:
            program.close()
        releases = machine.releases({database.label: database.url})
    found = list(figures(options, measured))
    return recorder.close(
        options,
        {},
        releases,
        figures=found,
        tables=[_table(found)],
        plots=_plots(found),
        notes=_notes(options),
    )


def check(options: SinkOptions) -> None:
    """Raise SettingsError if an option is impossible."""
    turns.require_positive(options, "rows", "batches", "small_batches", "documents", "rounds")
    if options.batches > options.rows:
        raise errors.SettingsError(
            f"{options.rows} rows do not fill {options.batches} batches", "give more rows"
        )
    if max(options.batches, options.small_batches) > BATCHES_MAX:
        raise errors.SettingsError(
            f"Spark keeps the times of {BATCHES_MAX} batches", "give fewer batches"
        )
    known = (bench_servers.SQLITE, *bench_servers.LOCAL)
    if options.target not in known:
        # A sink keeps tables of its own, which this benchmark would leave in a user's database.
        raise errors.SettingsError(
            f"bench sink cannot use the target {options.target!r}"
            f"{settings.nearest(options.target, known)}",
            f"use one of: {', '.join(known)}",
        )


def _write_files(options: SinkOptions, folder: Path) -> list[RowFolder]:
    per_batch = options.rows // options.batches
    return [
        _write_folder(folder, LARGE, options.batches, per_batch, options.documents),
        _write_folder(folder, SMALL, options.small_batches, SMALL_ROWS, SMALL_ROWS),
    ]


def _write_folder(
    folder: Path, name: str, batches: int, per_batch: int, documents: int
) -> RowFolder:
    """Write the files of one measurement: row after row the next version of the next document."""
    path = folder / name.replace(" ", "-")
    path.mkdir()
    for batch in range(batches):
        numbers = range(batch * per_batch, (batch + 1) * per_batch)
        versions = [number // documents + 1 for number in numbers]
        table = pa.Table.from_arrays(
            [
                pa.array([load.document(number % documents) for number in numbers]),
                pa.array([load.status(version) for version in versions]),
                pa.array(versions, pa.int64()),
                pa.array(
                    [load.BEGIN + timedelta(milliseconds=number) for number in numbers],
                    ROW.field("updated_at").type,
                ),
            ],
            schema=ROW,
        )
        parquet.write_table(table, path / f"{batch:06d}.parquet")
    return RowFolder(name, path, batches * per_batch, documents)


# --- measuring ------------------------------------------------------------------------------------


def _measure(
    options: SinkOptions,
    program: ContestantProgram,
    declared: bench_servers.BenchPipeline,
    folders: Sequence[RowFolder],
    say: Callable[[str], None],
) -> Measured:
    measured: dict[str, dict[str, list[list[float]]]] = {
        folder.name: {name: [] for name in PROMISES} for folder in folders
    }
    for name in PROMISES:
        say(f"warming up {name}")
        for folder in reversed(folders):
            _write(program, declared, folder, name)
    for number in range(options.rounds):
        for name in _turns(list(PROMISES), number):
            for folder in folders:
                batches = _write(program, declared, folder, name)
                measured[folder.name][name].append(batches)
            speed = _rows_per_s(options.rows, measured[LARGE][name][-1])
            small_ms = statistics.median(measured[SMALL][name][-1])
            say(f"{name}: {speed:,.0f} rows/s, {small_ms:.0f} ms for a small batch")
    return measured


def _write(
    program: ContestantProgram,
    declared: bench_servers.BenchPipeline,
    folder: RowFolder,
    name: str,
) -> list[float]:
    """Let a contestant write a folder to an empty table; return the time of each batch in ms."""
    declared.empty()
    order = Order(str(declared.config), declared.name, [name, str(folder.path)])
    program.send(order)
    result = program.receive(PATIENCE_S)
    if result.error:
        raise errors.InstepError(f"{name} failed: {result.error}")
    if name != NOOP:
        row_check.refuse_differences(declared, folder.rows, folder.documents)
    return result.batches_ms


def _turns(names: Sequence[str], number: int) -> list[str]:
    """Return the order of a round: each contestant is the first one in turn."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def _rows_per_s(rows: int, batches_ms: Sequence[float]) -> float:
    return rows / (sum(batches_ms) / 1_000)


# --- results --------------------------------------------------------------------------------------


def figures(options: SinkOptions, measured: Measured) -> Iterator[Figure]:
    """Yield the figures of all rounds."""
    rows = options.rows // options.batches * options.batches
    large, small = measured[LARGE], measured[SMALL]
    for name in PROMISES:
        yield Figure(
            name="throughput",
            unit="rows/s",
            better="more",
            labels={"contestant": name},
            values=[round(_rows_per_s(rows, one), 1) for one in large[name]],
        )
    for name in (FOR_EACH, FORMAT):
        pairs = zip(large[name], large[JDBC], strict=True)
        yield Figure(
            name="throughput, compared with JDBC",
            unit="times",
            better="more",
            labels={"contestant": name},
            values=[round(sum(theirs) / sum(ours), 3) for ours, theirs in pairs],
        )
    for name in (FOR_EACH, FORMAT, JDBC):
        pairs = zip(small[name], small[NOOP], strict=True)
        yield Figure(
            name="added to a small batch",
            unit="ms",
            better="less",
            labels={"contestant": name},
            values=[
                round(statistics.median(ours) - statistics.median(nothing), 2)
                for ours, nothing in pairs
            ],
        )


def _table(found: Sequence[Figure]) -> ReportTable:
    by_name = {(one.name, one.labels["contestant"]): one for one in found}
    rows: list[list[Cell]] = []
    for name, promise in PROMISES.items():
        ratio = by_name.get(("throughput, compared with JDBC", name))
        added = by_name.get(("added to a small batch", name))
        bar = OVERHEAD_BARS.get(name)
        rows.append(
            [
                name,
                by_name["throughput", name].median,
                ratio.median if ratio else "",
                f"at least {SPEED_BAR}" if ratio else "",
                added.median if added else "",
                f"at most {bar}" if bar else "",
                promise,
            ]
        )
    columns = ["contestant", "rows/s", "of JDBC's", "goal", "ms added", "goal", "guarantee"]
    return ReportTable("Writing a stream to a table", columns, rows)


def _plots(found: Sequence[Figure]) -> list[Plot]:
    return [
        charts.bars(
            f"Spark sink: {name}", [one for one in found if one.name == name], x="contestant"
        )
        for name in ("throughput", "added to a small batch")
    ]


def _notes(options: SinkOptions) -> list[str]:
    return [
        f"{options.batches} large batches of {options.rows // options.batches:,} rows for the"
        f" throughput, {options.small_batches} batches of {SMALL_ROWS} rows for what a door adds.",
        "The time of a micro-batch is Spark's own: from its trigger to the end of its commit. The"
        " start of the query is not in it.",
        "What a door adds is its median minus that of Spark's noop sink in the same round. It"
        " contains the database's transaction.",
    ]
