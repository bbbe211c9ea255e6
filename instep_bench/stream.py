"""`instep bench stream`: streams from topic to topic, and through both stages into a table.

All contestants publish the same topic in one Spark session, from its start to its end, each time
into a new topic. They alternate round by round. The time is from the order to its answer: it
contains the start of the flow, not that of Spark. After each run the output must have every record
exactly once, and the table of the second stage every document; otherwise there is no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import tomli_w

from instep import errors
from instep.kafka import offsets, reading, topics
from instep.report.tables import Cell, ReportTable
from instep_bench import bench_servers, charts, load, machine, row_check, turns
from instep_bench.bench_servers import BenchPipeline
from instep_bench.contestant_program import ContestantProgram, Order
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult, Figure

MODULE = "instep_bench.baselines.stream_runs"
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
COPY, COPY_REPEATING = "instep stream", "instep stream, at-least-once"
SQL = "instep stream with SQL"
SPARK = "Spark Kafka sink"
BOTH, BOTH_REPEATING = "two stages", "two stages, at-least-once stream"


class StreamKind(msgspec.Struct, frozen=True):
    """What a contestant does, and what it promises."""

    guarantee: str
    sql: str | None = None
    has_pipeline: bool = False


KINDS: Mapping[str, StreamKind] = {
    COPY: StreamKind(EXACTLY_ONCE),
    COPY_REPEATING: StreamKind(AT_LEAST_ONCE),
    SQL: StreamKind(
        EXACTLY_ONCE,
        sql="SELECT value FROM records WHERE get_json_object(value, '$.status') <> 'DRAFT'",
    ),
    SPARK: StreamKind(AT_LEAST_ONCE),
    BOTH: StreamKind(EXACTLY_ONCE, has_pipeline=True),
    BOTH_REPEATING: StreamKind(AT_LEAST_ONCE, has_pipeline=True),
}
# Of two contestants, the first is to reach this share of the second.
RATIO_GOALS = {(COPY, COPY_REPEATING): 0.8, (BOTH, BOTH_REPEATING): 0.8}
SPEED_GOALS = {BOTH: 80_000}


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. The target is that of the second stage."""

    target: str = "postgres"
    events: int = 500_000
    documents: int = 100_000
    size: int = 150
    partitions: int = 4
    rounds: int = 3
    bootstrap: str | None = None
    seed: int = 1


Measured = Mapping[str, Sequence[float]]  # seconds of each round


def run(options: StreamOptions, say: Callable[[str], None], command: str) -> BenchResult:
    """Measure all contestants in turn. Every process that is started ends with the benchmark."""
    workload = check(options)
    recorder = Recorder("stream", command)
    with bench_servers.BenchServers(options.bootstrap, say) as servers:
        database = servers.database(options.target)
        source = servers.new_topic(options.partitions)
        say(f"publishing {options.events:,} events to {options.partitions} partitions")
        load.publish(workload, servers.bootstrap, source)
        program = ContestantProgram(MODULE, servers.folder / "program")
        try:
            program.start()
            measured = _measure(options, program, servers, source, say)
        finally:
            program.close()
        releases = machine.releases({database.label: database.url}, bootstrap=options.bootstrap)
    found = list(figures(options, measured))
    return recorder.close(
        options,
        {},
        releases,
        figures=found,
        tables=[speed_table(found), ratio_table(found)],
        plots=[charts.bars("From topic to topic, and to a table", found, x="contestant")],
        notes=_notes(),
    )


def check(options: StreamOptions) -> load.Load:
    """Return the requested load. Raise SettingsError if an option is impossible."""
    bench_servers.check_target(options.target)
    turns.require_positive(options, "events", "documents", "size", "partitions", "rounds")
    return load.Load(
        events=options.events, documents=options.documents, size=options.size, seed=options.seed
    )


# --- measuring ------------------------------------------------------------------------------------


def _measure(
    options: StreamOptions,
    program: ContestantProgram,
    servers: bench_servers.BenchServers,
    source: str,
    say: Callable[[str], None],
) -> Measured:
    return turns.alternate(
        list(KINDS),
        options.rounds,
        lambda name, _number: _publish(options, program, servers, source, name),
        lambda seconds: f"{options.events / seconds:,.0f} events/s",
        say,
    )


def _publish(
    options: StreamOptions,
    program: ContestantProgram,
    servers: bench_servers.BenchServers,
    source: str,
    name: str,
) -> float:
    """Let a contestant publish the topic to a new one; return the seconds that it took."""
    kind = KINDS[name]
    output = servers.new_topic(options.partitions)
    pipeline = servers.database(options.target).declare(servers.bootstrap, output)
    config = _add_stream(pipeline.config, source, output, kind)
    seconds = program.carry_out(Order(str(config), pipeline.name, [name]), name)
    _refuse_differences(options, servers, name, output, pipeline)
    topics.delete(servers.cluster, output)
    return seconds


def _add_stream(config: Path, source: str, output: str, kind: StreamKind) -> Path:
    """Write the settings of the pipeline with a stream into its topic."""
    stream = {"from": source, "to": output, "guarantee": kind.guarantee}
    if kind.sql is not None:
        stream["sql"] = kind.sql
    text = config.read_text(encoding="utf-8")
    declared = tomli_w.dumps({"streams": {f"{config.stem}-stream": stream}})
    config.write_text(f"{text}\n{declared}", encoding="utf-8")
    return config


def _refuse_differences(
    options: StreamOptions,
    servers: bench_servers.BenchServers,
    name: str,
    output: str,
    pipeline: BenchPipeline,
) -> None:
    """Raise unless the output has every record once, and the table every document."""
    cluster = servers.cluster
    ends = offsets.latest(cluster, output, range(options.partitions))
    ranges = {part: (0, end) for part, end in ends.items()}
    found = [message.value() for _, message in reading.messages(cluster, output, ranges)]
    if not len(found) == len(set(found)) == options.events:
        raise errors.InstepError(
            f"{name} has published {len(found):,} records, {len(set(found)):,} different ones, of"
            f" {options.events:,}"
        )
    if KINDS[name].has_pipeline:
        row_check.refuse_differences(pipeline, options.events, options.documents)


# --- results --------------------------------------------------------------------------------------


def figures(options: StreamOptions, measured: Measured) -> Iterator[Figure]:
    """Yield the throughput of each contestant."""
    for name, seconds in measured.items():
        yield Figure(
            name="throughput",
            unit="events/s",
            better="more",
            labels={"contestant": name},
            values=[round(options.events / one, 1) for one in seconds],
        )


def speed_table(found: Sequence[Figure]) -> ReportTable:
    """Return the throughput beside the goals."""
    rows: list[list[Cell]] = []
    for one in found:
        name = one.labels["contestant"]
        goal = f"at least {SPEED_GOALS[name]:,}" if name in SPEED_GOALS else ""
        rows.append([name, one.median, goal, KINDS[name].guarantee])
    columns = ["contestant", "events/s", "goal", "guarantee of the stream"]
    return ReportTable("From topic to topic, and to a table", columns, rows)


def ratio_table(found: Sequence[Figure]) -> ReportTable:
    """Return what transactions cost: exactly once beside at least once."""
    medians = {one.labels["contestant"]: one.median for one in found}
    rows: list[list[Cell]] = [
        [first, second, round(medians[first] / medians[second], 2), f"at least {goal}"]
        for (first, second), goal in RATIO_GOALS.items()
    ]
    return ReportTable("What transactions cost", ["contestant", "beside", "ratio", "goal"], rows)


def _notes() -> list[str]:
    return [
        "The time is from the order to the last commit. It contains the start of the flow or query,"
        " which a short run shows; not the start of Spark.",
        "With two stages, both run at the same time and share Spark's slots. The second one is"
        " done when it has reported all events; it reports every quarter of a second.",
    ]
