"""`instep bench polling`: query every document in turn, or publish every change as an event.

Polling is measured with a sample of real calls to a slow query service and extrapolated to a round
over all documents. With events, every document changes its status once per round, and the round
ends when the last change is in the table.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from instep import errors
from instep.demo import polling
from instep.demo.contract_system import Contracts
from instep.document.showing import counted
from instep.report.percentiles import percentile_values
from instep.report.tables import Cell, Plot, ReportTable
from instep_bench import bench_servers, charts, machine, turns
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult, Figure

STATUSES = ("CREATED", "QUEUED", "PRINTING", "PRINTED")
EVENTS = "events"
CALLS_LESS = 10  # each of several connections makes this many times fewer calls than a single one


class PollingOptions(msgspec.Struct, frozen=True, kw_only=True):
    documents: int = 9_000
    call_s: float = 0.3
    sample: int = 60
    connections: tuple[int, ...] = (1, 10, 50)
    rounds: int = 3
    target: str = "sqlite"
    bootstrap: str | None = None
    seed: int = 1


class Round(msgspec.Struct, frozen=True):
    """The result of one round: seconds for all documents, and the age of a status when known."""

    seconds: float
    p50_s: float
    p99_s: float


class PollingMethod(msgspec.Struct, frozen=True, kw_only=True):
    """One method to learn about changes, with its rounds."""

    name: str
    calls: int  # the calls that were actually made
    calls_a_round: int
    measured_s: float
    rounds: list[Round]

    @property
    def extrapolated(self) -> bool:
        return self.calls < self.calls_a_round * len(self.rounds)


def run(options: PollingOptions, say: Callable[[str], None], command: str) -> BenchResult:
    """Measure polling and events. Every process that is started ends with the benchmark."""
    check(options)
    recorder = Recorder("polling", command)
    methods = list(_poll(options, say))
    with (
        bench_servers.BenchServers(options.bootstrap, say) as servers,
        contextlib.ExitStack() as stack,
    ):
        database = servers.database(options.target)
        system = _system(options, servers, database, stack)
        by_events, ages_ms = _by_events(options, system, stack, say)
        releases = machine.releases({database.label: database.url}, bootstrap=options.bootstrap)
    methods.append(by_events)
    figures = list(_figures(methods))
    return recorder.close(
        options,
        {"target": database.label},
        releases,
        figures=figures,
        tables=[_table(methods)],
        plots=_plots(figures, ages_ms),
        notes=_notes(options, methods),
    )


def check(options: PollingOptions) -> None:
    """Raise SettingsError if an option is impossible."""
    turns.require_positive(options, "documents", "sample", "rounds")
    if not 0 <= options.call_s <= 60:
        raise errors.SettingsError(f"a call cannot take {options.call_s} s", "give 0 to 60 seconds")
    if not options.connections or not all(1 <= count <= 500 for count in options.connections):
        raise errors.SettingsError(
            "connections must be one or more numbers from 1 to 500", "give for example 1,10,50"
        )
    bench_servers.check_target(options.target)


# --- polling --------------------------------------------------------------------------------------


def _poll(options: PollingOptions, say: Callable[[str], None]) -> Iterator[PollingMethod]:
    documents = [f"doc-{number:05}" for number in range(options.documents)]
    random.Random(options.seed).shuffle(documents)  # noqa: S311 - a repeatable order
    with polling.QueryService(dict.fromkeys(documents, "CREATED"), options.call_s) as service:
        for connections in dict.fromkeys(options.connections):
            calls = _calls(options, connections)
            say(f"polling with {_connections(connections)}: {calls} calls, {options.rounds} times")
            seconds = []
            for number in range(options.rounds):
                sample = [
                    documents[(number * calls + call) % len(documents)] for call in range(calls)
                ]
                seconds.append(polling.poll_at_once(service.port, sample, connections)[1])
            yield PollingMethod(
                name=f"polling, {_connections(connections)}",
                calls=calls * options.rounds,
                calls_a_round=options.documents,
                measured_s=sum(seconds),
                rounds=[polled(one / calls * options.documents) for one in seconds],
            )


def polled(round_s: float) -> Round:
    """Return a polled round: the age of a status is uniform between 0 and a whole round."""
    return Round(round_s, 0.5 * round_s, 0.99 * round_s)


def _calls(options: PollingOptions, connections: int) -> int:
    """Return the calls in the sample of one round.

    Each connection makes the same number of calls; the total is at most the number of documents.
    """
    each = options.sample / options.rounds
    if connections > 1:
        each /= CALLS_LESS
    return min(options.documents, max(1, round(each)) * connections)


def _connections(count: int) -> str:
    return counted(count, "connection")


# --- events ---------------------------------------------------------------------------------------


def _system(
    options: PollingOptions,
    servers: bench_servers.BenchServers,
    database: bench_servers.TargetDatabase,
    stack: contextlib.ExitStack,
) -> Contracts:
    """Prepare the contract system; on a user's servers everything is removed at the end."""
    system = Contracts(
        servers.folder, servers.bootstrap, database.url, options.documents, prefix="bench"
    )
    # Before anything is created: the preparation may fail halfway.
    if not database.is_ours:
        stack.callback(system.clean_database)
    if options.bootstrap:
        stack.callback(system.delete_topic)
    system.prepare()
    return system


def _by_events(
    options: PollingOptions,
    system: Contracts,
    stack: contextlib.ExitStack,
    say: Callable[[str], None],
) -> tuple[PollingMethod, list[float]]:
    """Measure rounds in which every document changes once; return them and all ages in ms."""
    say("starting the pipeline")
    running = system.process()
    stack.callback(running.close)
    running.start()
    sink = stack.enter_context(system.sink())
    system.wait(running, lambda: system.started(sink), "starting")
    rounds: list[Round] = []
    ages_ms: list[float] = []
    with system.publisher() as publisher:
        for number in range(options.rounds + 1):
            status, version = STATUSES[number % len(STATUSES)], number + 1
            since, began = datetime.now(UTC), time.monotonic()
            for document in system.documents:
                system.publish(publisher, document, status, version)
            publisher.flush()
            system.wait(
                running,
                lambda: system.processed(sink) >= system.events,
                "applying events",
                interval_s=0.005,
            )
            seconds = time.monotonic() - began
            if number == 0:
                continue  # warm-up: Spark compiles code in its first batches
            found = system.freshness_ms(sink, version, since)
            ages_ms += found
            p50_ms, p99_ms = percentile_values(found, (50, 99))
            rounds.append(Round(seconds, p50_ms / 1000, p99_ms / 1000))
            say(f"events: {len(system.documents):,} changes in {seconds:.2f} s")
    running.stop()
    if differences := system.differences(sink):
        raise errors.InstepError(
            f"{differences:,} documents differ from what was published:"
            " the figures would be meaningless"
        )
    method = PollingMethod(
        name=EVENTS,
        calls=options.documents * options.rounds,
        calls_a_round=options.documents,
        measured_s=sum(one.seconds for one in rounds),
        rounds=rounds,
    )
    return method, ages_ms


# --- results --------------------------------------------------------------------------------------


def _figures(methods: Sequence[PollingMethod]) -> Iterator[Figure]:
    for method in methods:
        how = {
            "way": method.name,
            "seconds are": "extrapolated" if method.extrapolated else "measured",
        }
        yield Figure(
            name="a round",
            unit="s",
            better="less",
            labels=how,
            values=[one.seconds for one in method.rounds],
        )
    for method in methods:
        for percentile, values in (
            ("p50", [one.p50_s for one in method.rounds]),
            ("p99", [one.p99_s for one in method.rounds]),
        ):
            labels = {"way": method.name, "percentile": percentile}
            yield Figure(
                name="age of a status", unit="s", better="less", labels=labels, values=values
            )
    for method in methods:
        kind, count = _kind(method), float(method.calls_a_round)
        yield Figure(
            name="sent a round",
            unit=kind,
            better="less",
            labels={"way": method.name},
            values=[count],
        )


def _kind(method: PollingMethod) -> str:
    if method.name == EVENTS:
        return "messages"
    return "calls"


def _table(methods: Sequence[PollingMethod]) -> ReportTable:
    rows: list[list[Cell]] = []
    for method in methods:
        seconds = [one.seconds for one in method.rounds]
        kind = _kind(method)
        how = f"measured, {method.calls:,} {kind}"
        if method.extrapolated:
            how = f"extrapolated from {method.calls:,} {kind}"
        rows.append(
            [
                method.name,
                how,
                round(method.measured_s, 2),
                min(seconds),
                max(seconds),
                f"{method.calls_a_round:,} {kind}",
            ]
        )
    columns = [
        "way",
        "seconds are",
        "measured for s",
        "a round s, lowest",
        "a round s, highest",
        "a round takes",
    ]
    return ReportTable("One round: the status of every document is known", columns, rows)


def _plots(figures: Sequence[Figure], ages_ms: Sequence[float]) -> list[Plot]:
    return [
        charts.bars(
            "A round over all documents",
            [one for one in figures if one.name == "a round"],
            x="way",
            log=True,
        ),
        charts.bars(
            "How old a status is when it is known",
            [one for one in figures if one.name == "age of a status"],
            x="way",
            by="percentile",
            log=True,
        ),
        charts.percentiles(
            "Events: from a change to its commit", {EVENTS: ages_ms}, unit="ms", log=False
        ),
    ]


def _notes(options: PollingOptions, methods: Sequence[PollingMethod]) -> list[str]:
    extrapolated = [method for method in methods if method.extrapolated]
    notes = [
        f"A call of the query service takes {options.call_s:g} s by itself. The calls were actually"
        " made, one after another on each connection.",
        "A polled status is half a round old on average (p50) and a whole round at worst: its age"
        " is computed from the seconds of a round. With events the age is measured from the change"
        " to its commit, as recorded in the target's history. All documents change at once, which"
        " is the worst case.",
        f"A round of polling makes {options.documents:,} calls whether anything has changed or not;"
        " with events there is one message per change.",
    ]
    if extrapolated:
        notes.insert(
            1,
            "Extrapolated, not measured: the seconds of a round of "
            + "; ".join(f"{method.name} (from {method.calls:,} calls)" for method in extrapolated)
            + ".",
        )
    return notes
