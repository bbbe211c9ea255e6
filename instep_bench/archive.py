"""`instep bench archive`: an archive beside Spark's own file sink, from a topic to Parquet files.

Both archive the same topic in the same Spark session, from its start to its end, each time into a
new folder. They alternate round by round. The time is from the order to its answer: it contains the
start of the flow, not that of Spark. After each run the files must have every record exactly once;
otherwise there is no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import tomli_w
from pyarrow import dataset

from instep import errors
from instep.report.tables import Cell, ReportTable
from instep_bench import bench_servers, charts, load, machine, turns
from instep_bench.contestant_program import ContestantProgram, Order
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult, Figure

MODULE = "instep_bench.baselines.archive_writers"
ARCHIVE, FILE_SINK = "instep archive", "Spark file sink"
PROMISES = {
    ARCHIVE: "exactly once, also for readers of the folder's table",
    FILE_SINK: "exactly once for Spark, which reads its log of files; other readers see files of"
    " batches that failed",
}
SPEED_BAR = 200_000


class ArchiveOptions(msgspec.Struct, frozen=True, kw_only=True):
    events: int = 2_000_000
    documents: int = 100_000
    size: int = 150
    partitions: int = 4
    rounds: int = 3
    bootstrap: str | None = None
    seed: int = 1


class ArchivingRun(msgspec.Struct, frozen=True):
    """One run of a contestant."""

    seconds: float
    files: int
    bytes: int


Measured = Mapping[str, Sequence[ArchivingRun]]


def run(options: ArchiveOptions, say: Callable[[str], None], command: str) -> BenchResult:
    """Measure both in turn. Every process that is started ends with the benchmark."""
    workload = check(options)
    recorder = Recorder("archive", command)
    with bench_servers.BenchServers(options.bootstrap, say) as servers:
        topic = servers.new_topic(options.partitions)
        say(f"publishing {options.events:,} events to {options.partitions} partitions")
        load.publish(workload, servers.bootstrap, topic)
        program = ContestantProgram(MODULE, servers.folder / "program")
        try:
            program.start()
            measured = _measure(options, program, servers, topic, say)
        finally:
            program.close()
        releases = machine.releases(bootstrap=options.bootstrap)
    found = list(figures(options, measured))
    return recorder.close(
        options,
        {},
        releases,
        figures=found,
        tables=[_table(found)],
        plots=[
            charts.bars(
                "Archiving a topic",
                [one for one in found if one.name == "throughput"],
                x="contestant",
            )
        ],
        notes=_notes(),
    )


def check(options: ArchiveOptions) -> load.Load:
    """Return the requested load. Raise SettingsError if an option is impossible."""
    turns.require_positive(options, "events", "documents", "size", "partitions", "rounds")
    return load.Load(
        events=options.events,
        documents=options.documents,
        size=options.size,
        seed=options.seed,
    )


# --- measuring ------------------------------------------------------------------------------------


def _measure(
    options: ArchiveOptions,
    program: ContestantProgram,
    servers: bench_servers.BenchServers,
    topic: str,
    say: Callable[[str], None],
) -> Measured:
    return turns.alternate(
        list(PROMISES),
        options.rounds,
        lambda name, number: _archive(options, program, servers, topic, name, number),
        lambda one: f"{options.events / one.seconds:,.0f} events/s, {one.files} files",
        say,
    )


def _archive(
    options: ArchiveOptions,
    program: ContestantProgram,
    servers: bench_servers.BenchServers,
    topic: str,
    name: str,
    number: int,
) -> ArchivingRun:
    """Let a contestant archive the topic into a new folder, and check what it has written."""
    run = f"{'sink' if name == FILE_SINK else 'archive'}-{number + 1}"
    folder = servers.folder / run
    config = servers.folder / f"{run}.toml"
    declared = {
        "kafka": {"bootstrap": servers.bootstrap},
        "archives": {run: {"topic": topic, "path": str(folder)}},
    }
    config.write_text(tomli_w.dumps(declared), encoding="utf-8")
    servers.groups.append(f"instep-{run}")
    seconds = program.carry_out(Order(str(config), run, [name]), name)
    files = [file for file in folder.rglob("*.parquet") if file.is_file()]
    _refuse_differences(name, files, options.events)
    return ArchivingRun(seconds, len(files), sum(file.stat().st_size for file in files))


def _refuse_differences(name: str, files: Sequence[Path], events: int) -> None:
    """Raise unless the files have this number of records, each of them once."""
    rows = dataset.dataset([str(file) for file in files]).to_table(columns=["partition", "offset"])
    distinct = rows.group_by(["partition", "offset"]).aggregate([]).num_rows
    if not rows.num_rows == distinct == events:
        raise errors.InstepError(
            f"{name} has written {rows.num_rows:,} records, {distinct:,} different ones, of"
            f" {events:,}"
        )


# --- results --------------------------------------------------------------------------------------


def figures(options: ArchiveOptions, measured: Measured) -> Iterator[Figure]:
    """Yield the figures of all rounds."""
    for name, runs in measured.items():
        label = {"contestant": name}
        yield Figure(
            name="throughput",
            unit="events/s",
            better="more",
            labels=label,
            values=[round(options.events / one.seconds, 1) for one in runs],
        )
        yield Figure(
            name="bytes per event",
            unit="bytes",
            better="less",
            labels=label,
            values=[round(one.bytes / options.events, 2) for one in runs],
        )


def _table(found: Sequence[Figure]) -> ReportTable:
    by_name = {(one.name, one.labels["contestant"]): one for one in found}
    rows: list[list[Cell]] = [
        [
            name,
            by_name["throughput", name].median,
            f"at least {SPEED_BAR:,}" if name == ARCHIVE else "",
            by_name["bytes per event", name].median,
            promise,
        ]
        for name, promise in PROMISES.items()
    ]
    columns = ["contestant", "events/s", "goal", "bytes per event", "guarantee"]
    return ReportTable("Archiving a topic", columns, rows)


def _notes() -> list[str]:
    return [
        "The time is from the order to the last commit. It contains the start of the flow or query,"
        " which a short run shows; not the start of Spark.",
        "Files are joined later, beside the writer, and are not part of the time.",
    ]
