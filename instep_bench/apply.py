"""`instep bench apply`: catch-up throughput from Kafka to a database, with the baselines.

All contestants apply the same topic to the same database. Rounds are interleaved. In each cold
round every contestant runs once in a fresh process. Then all are started and warmed up, and in each
warm round every contestant runs once. After every run the table is compared with the state that a
plain model computes from the load.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

import msgspec

from instep import errors, settings
from instep.local import artifacts
from instep_bench import baselines, bench_servers, contest, load, machine, meters, ranking
from instep_bench.baselines import connect
from instep_bench.ranking import RankedRun, Start
from instep_bench.recorder import Recorder
from instep_bench.result import BenchResult

MODULES: Mapping[str, str] = {
    baselines.LOOP: "instep_bench.baselines.loop",
    baselines.SPARK_JDBC: "instep_bench.baselines.spark_jdbc",
}
HOST = "instep_bench.host"
TRANSFORMATION = """
SELECT doc.* FROM (SELECT from_json(
  value, 'doc_id STRING, status STRING, version BIGINT, updated_at TIMESTAMP'
) AS doc FROM records) WHERE doc.status <> 'DRAFT'
"""


class ApplyOptions(msgspec.Struct, frozen=True, kw_only=True):
    targets: tuple[str, ...] = ("postgres", "mariadb", "sqlite")
    events: int = 300_000
    documents: int = 100_000
    partitions: int = 4
    size: int = 150
    history: tuple[bool, ...] = (False, True)
    lines: tuple[bool, ...] = (False,)
    transform: tuple[bool, ...] = (False,)
    engines: tuple[settings.EngineName, ...] = get_args(settings.EngineName)
    stale: float = 0.0
    repeated: float = 0.0
    bad: float = 0.0
    rounds: int = 3
    batch: int | None = None
    against: tuple[str, ...] = tuple(baselines.GUARANTEES)
    bootstrap: str | None = None
    seed: int = 1


def run(options: ApplyOptions, say: Callable[[str], None], command: str) -> BenchResult:
    """Run every round on every target. Every process that is started ends with the benchmark."""
    workload = check(options)
    recorder = Recorder("apply", command)
    _fetch(options)
    ranked: list[RankedRun] = []
    notes: list[str] = []
    databases: dict[str, str] = {}
    labels: list[str] = []
    with bench_servers.BenchServers(options.bootstrap, say) as servers:
        topic = servers.new_topic(options.partitions)
        say(
            f"publishing {options.events:,} events of {options.documents:,} documents"
            f" to {options.partitions} partitions"
        )
        load.publish(workload, servers.bootstrap, topic)
        expected = load.expected_state(workload, options.partitions)
        for target in dict.fromkeys(options.targets):
            database = servers.database(target)
            labels.append(database.label)
            databases |= {database.label: machine.database(database.url)}
            target_contest = _TargetContest(options, servers, database, topic, expected, say)
            ranked += target_contest.run()
            notes += target_contest.notes
            servers.drop(target)
    figures = ranking.figures(ranked, options.events)
    return recorder.close(
        options,
        {"targets": ",".join(labels)},
        {**machine.releases(bootstrap=options.bootstrap), **databases},
        figures=figures,
        tables=[ranking.table(ranked, options.events)],
        plots=ranking.plots(ranked, figures),
        notes=[*ranking.notes(ranked, expected), *notes],
    )


def check(options: ApplyOptions) -> load.Load:
    """Return the requested load. Raise SettingsError if an option is impossible."""
    if not (
        options.targets
        and options.history
        and options.lines
        and options.transform
        and options.engines
    ):
        raise errors.SettingsError(
            "there is nothing to measure",
            "name a target and an engine, and give --history no, yes or no,yes",
        )
    if True in options.transform and options.bad:
        raise errors.SettingsError(
            "Spark gives up a whole batch for a record that cannot be transformed, so bad events"
            " would be most of what --transform measures",
            "omit --bad or --transform",
        )
    for target in options.targets:
        bench_servers.check_target(target)
    for name in options.against:
        if name not in baselines.GUARANTEES:
            known = ", ".join(baselines.GUARANTEES)
            raise errors.SettingsError(
                f"there is no baseline {name!r}{settings.nearest(name, baselines.GUARANTEES)}",
                f"known baselines: {known}",
            )
    for name, number in (
        ("rounds", options.rounds),
        ("partitions", options.partitions),
        ("events per batch", options.batch),
    ):
        if number is not None and number < 1:
            raise errors.SettingsError(f"the number of {name} is {number}", "give at least 1")
    return load.Load(
        events=options.events,
        documents=options.documents,
        size=options.size,
        stale=options.stale,
        repeated=options.repeated,
        bad=options.bad,
        seed=options.seed,
    )


def _fetch(options: ApplyOptions) -> None:
    """Download missing artifacts now, not during a measurement."""
    for bundle in (
        "spark-kafka",
        *(bundle for name in options.against for bundle in baselines.BUNDLES[name]),
    ):
        artifacts.jars(bundle)


class _TargetContest:
    """All rounds of all contestants on one target.

    A baseline that fails has no figure for that round. After a second failure it is left out; the
    others continue.
    """

    def __init__(
        self,
        options: ApplyOptions,
        servers: bench_servers.BenchServers,
        database: bench_servers.TargetDatabase,
        topic: str,
        expected: load.ExpectedState,
        say: Callable[[str], None],
    ) -> None:
        self._options, self._servers, self._database, self._expected, self._say = (
            options,
            servers,
            database,
            expected,
            say,
        )
        self._server_pids: dict[str, meters.Pids] = {
            "broker": servers.broker_pids,
            "database": database.pids,
        }
        self._declared = {
            ranking.NAMES[engine, history] + (ranking.WITH_LINES if lines else ""): (
                database.declare(
                    servers.bootstrap,
                    topic,
                    engine=engine,
                    history=history,
                    lines=lines,
                    batch_rows_max=options.batch,
                )
            )
            for engine in dict.fromkeys(options.engines)
            for history in dict.fromkeys(options.history)
            for lines in dict.fromkeys(options.lines)
        }
        self._declared |= {
            ranking.with_sql(history): database.declare(
                servers.bootstrap,
                topic,
                engine="micro-batch",
                history=history,
                sql=TRANSFORMATION,
                batch_rows_max=options.batch,
            )
            for history in dict.fromkeys(options.history)
            if True in options.transform
        }
        self._declared |= {
            name: database.declare(
                servers.bootstrap,
                topic,
                batch_rows_max=options.batch or baselines.BATCHES.get(name),
            )
            for name in dict.fromkeys(options.against)
        }
        self._folders = 0
        self._failures: list[str] = []
        self.notes: list[str] = []
        if baselines.CONNECT in self._declared and (reason := connect.refusal(database)):
            self._leave_out(baselines.CONNECT, reason)

    def run(self) -> Iterator[RankedRun]:
        rounds = [
            f"round {number} of {self._options.rounds}"
            for number in range(1, self._options.rounds + 1)
        ]
        # Interleaved, so that a disturbance of the machine does not hit only one contestant.
        for which in rounds:
            for name in tuple(self._declared):
                with contextlib.closing(self._new_contestant(name, "cold")) as contestant:
                    yield from self._run(contestant, "cold", which)
        with contextlib.ExitStack() as stack:
            contestants = [
                stack.enter_context(contextlib.closing(self._new_contestant(name, "warm")))
                for name in self._declared
            ]
            for which in (*[""] * ranking.WARM_UPS, *rounds):
                for contestant in contestants:
                    if contestant.name in self._declared:
                        runs = list(self._run(contestant, "warm", which or "warming up"))
                        if which:
                            yield from runs

    def _run(self, contestant: contest.Contestant, start: Start, which: str) -> Iterator[RankedRun]:
        name = contestant.name
        try:
            run = contest.measure(
                contestant, self._declared[name], self._expected, self._server_pids
            )
        except errors.InstepError as error:
            if name not in baselines.GUARANTEES:  # the pipeline itself must not fail
                raise
            self._failures += [name]
            if self._failures.count(name) > 1:
                self._leave_out(name, error.what)
            else:
                self._note(
                    f"{name} has no figure for {start}, {which} on {self._database.label}:"
                    f" {error.what}"
                )
            return
        rate = ranking.rate_of(run, self._options.events)
        wrong = ""
        if run.differences:
            wrong = f", {run.differences:,} documents differ"
        self._say(
            f"{self._database.label}, {start}, {which}: {name}: {rate:,.0f} events/s,"
            f" all after {run.last_commit_s:.1f} s{wrong}"
        )
        yield RankedRun(self._database.label, name, start, run)

    def _leave_out(self, name: str, reason: str) -> None:
        del self._declared[name]
        self._note(f"{name} is left out on {self._database.label}: {reason}")

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._say(text)

    def _new_contestant(self, name: str, start: Start) -> contest.Contestant:
        """Return a contestant that is not started yet."""
        self._folders += 1
        folder = self._servers.folder / f"contestant-{self._database.kind}-{self._folders}"
        if name == baselines.CONNECT:
            return connect.Connect(
                folder, self._servers.bootstrap, self._options.partitions, self._servers.groups
            )
        if name not in baselines.GUARANTEES and start == "cold":
            return contest.CommandContestant(name, folder.with_suffix(".log"))
        return contest.ProgramContestant(
            name, MODULES.get(name, HOST), folder, is_spark=name != baselines.LOOP
        )
