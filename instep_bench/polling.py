"""The old way and the new one: every document asked for its status in turn, or every change published as an event.

Polling is measured on a sample of real calls to a query service that takes its time over each, and extrapolated to a round over
all documents. By events all documents change their status once a round, and the round ends when the last is in the table.
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
from instep.report.tables import Cell, Plot, ReportTable
from instep_bench import bench_servers, charts, machine
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult, Figure

STATUSES = ("CREATED", "QUEUED", "PRINTING", "PRINTED")
EVENTS = "events"
CALLS_LESS = 10  # with several connections, each makes this many times fewer calls than one alone


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
    """What one round came to: seconds for all documents, and how old a status was when it was known."""

    seconds: float
    p50_s: float
    p99_s: float


class PollingMethod(msgspec.Struct, frozen=True, kw_only=True):
    """One way to learn of the changes, with its rounds."""

    name: str
    calls: int  # that were really made
    calls_a_round: int
    measured_s: float
    rounds: list[Round]

    @property
    def extrapolated(self) -> bool:
        return self.calls < self.calls_a_round * len(self.rounds)


def run(options: PollingOptions, say: Callable[[str], None], command: str) -> BenchResult:
    """Measure both ways; everything that it starts is gone when it ends."""
    check(options)
    recorder = Recorder("polling", command)
    ways = list(_poll(options, say))
    with (
        bench_servers.BenchServers(options.bootstrap, say) as servers,
        contextlib.ExitStack() as stack,
    ):
        place = servers.place(options.target)
        system = _system(options, servers, place, stack)
        by_events, ages_ms = _by_events(options, system, stack, say)
        releases = machine.releases({place.label: place.url}, bootstrap=options.bootstrap)
    ways.append(by_events)
    figures = list(_figures(ways))
    return recorder.close(
        options,
        {"target": place.label},
        releases,
        figures=figures,
        tables=[_table(ways)],
        plots=_plots(figures, ages_ms),
        notes=_notes(options, ways),
    )


def check(options: PollingOptions) -> None:
    """Refuse what cannot be measured."""
    for name in ("documents", "sample", "rounds"):
        if getattr(options, name) < 1:
            raise errors.SettingsError(f"{name} is {getattr(options, name)}", "give at least 1")
    if not 0 <= options.call_s <= 60:
        raise errors.SettingsError(
            f"a call of {options.call_s} s is not to be had", "give 0 to 60 seconds"
        )
    if not options.connections or not all(1 <= count <= 500 for count in options.connections):
        raise errors.SettingsError(
            "connections are 1 to 500 at once, and at least one number of them", "e.g. 1, 10 and 50"
        )
    bench_servers.check_target(options.target)


# --- the old way ---------------------------------------------------------------------------------------


def _poll(options: PollingOptions, say: Callable[[str], None]) -> Iterator[PollingMethod]:
    documents = [f"doc-{number:05}" for number in range(options.documents)]
    random.Random(options.seed).shuffle(documents)  # noqa: S311 - which documents are asked is no secret
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
    """A document's status was last seen between 0 and a whole round ago, each as often: half a round at the median."""
    return Round(round_s, 0.5 * round_s, 0.99 * round_s)


def _calls(options: PollingOptions, connections: int) -> int:
    """Calls of one round's sample: as many on each connection, and no more than there are documents."""
    each = options.sample / options.rounds / (1 if connections == 1 else CALLS_LESS)
    return min(options.documents, max(1, round(each)) * connections)


def _connections(count: int) -> str:
    return "1 connection" if count == 1 else f"{count} connections"


# --- the new way ---------------------------------------------------------------------------------------


def _system(
    options: PollingOptions,
    servers: bench_servers.BenchServers,
    place: bench_servers.TargetDatabase,
    stack: contextlib.ExitStack,
) -> Contracts:
    """The contract system on these servers; on the user's it leaves nothing."""
    system = Contracts(
        servers.folder, servers.bootstrap, place.url, options.documents, prefix="bench"
    )
    if not place.is_ours:
        stack.callback(system.leave_database)
    if options.bootstrap:
        stack.callback(system.leave_cluster)
    system.prepare()
    return system


def _by_events(
    options: PollingOptions,
    system: Contracts,
    stack: contextlib.ExitStack,
    say: Callable[[str], None],
) -> tuple[PollingMethod, list[float]]:
    """Rounds in which every document changes its status once, and all ages in ms."""
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
                running, lambda: system.done(sink) >= system.events, "applying events", look_s=0.005
            )
            seconds = time.monotonic() - began
            if number == 0:
                continue  # Spark's first batches compile what the others only run
            found = system.freshness_ms(sink, version, since)
            ages_ms += found
            rounds.append(
                Round(seconds, *(charts.percentile(found, percent) / 1000 for percent in (50, 99)))
            )
            say(f"by events: {len(system.documents):,} changes in {seconds:.2f} s")
    running.stop()
    if differences := system.differences(sink):
        raise errors.InstepError(
            f"{differences:,} documents differ from what was published: the figures would mean nothing"
        )
    way = PollingMethod(
        name=EVENTS,
        calls=options.documents * options.rounds,
        calls_a_round=options.documents,
        measured_s=sum(one.seconds for one in rounds),
        rounds=rounds,
    )
    return way, ages_ms


# --- what came out -------------------------------------------------------------------------------------


def _figures(ways: Sequence[PollingMethod]) -> Iterator[Figure]:
    for way in ways:
        how = {"way": way.name, "seconds are": "extrapolated" if way.extrapolated else "measured"}
        yield Figure(
            name="a round",
            unit="s",
            better="less",
            labels=how,
            values=[one.seconds for one in way.rounds],
        )
    for way in ways:
        for percentile, values in (
            ("p50", [one.p50_s for one in way.rounds]),
            ("p99", [one.p99_s for one in way.rounds]),
        ):
            labels = {"way": way.name, "percentile": percentile}
            yield Figure(
                name="age of a status", unit="s", better="less", labels=labels, values=values
            )
    for way in ways:
        kind, count = _kind(way), float(way.calls_a_round)
        yield Figure(
            name="sent a round", unit=kind, better="less", labels={"way": way.name}, values=[count]
        )


def _kind(way: PollingMethod) -> str:
    return "messages" if way.name == EVENTS else "calls"


def _table(ways: Sequence[PollingMethod]) -> ReportTable:
    rows: list[list[Cell]] = []
    for way in ways:
        seconds = [one.seconds for one in way.rounds]
        kind = _kind(way)
        how = (
            f"extrapolated from {way.calls:,} {kind}"
            if way.extrapolated
            else f"measured, {way.calls:,} {kind}"
        )
        rows.append(
            [
                way.name,
                how,
                round(way.measured_s, 2),
                min(seconds),
                max(seconds),
                f"{way.calls_a_round:,} {kind}",
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
    return ReportTable("A round: every document's status is known", columns, rows)


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
            "By events: from a change to its commit", {EVENTS: ages_ms}, unit="ms", log=False
        ),
    ]


def _notes(options: PollingOptions, ways: Sequence[PollingMethod]) -> list[str]:
    extrapolated = [way for way in ways if way.extrapolated]
    notes = [
        f"A call of the query service takes {options.call_s:g} s by itself; the calls were really made, one after another on each"
        " connection.",
        "A polled status is on average half a round old (p50), at worst a whole one: its age is computed from a round's seconds."
        " By events the age is measured, from the change to its commit, as the target's history has it; all documents change at"
        " once, which is the worst case.",
        f"A round of polling makes {options.documents:,} calls whether anything has changed or not; by events there is one"
        " message a change.",
    ]
    if extrapolated:
        notes.insert(
            1,
            "Extrapolated, not measured: the seconds of a round of "
            + "; ".join(f"{way.name} (from {way.calls:,} calls)" for way in extrapolated)
            + ".",
        )
    return notes
