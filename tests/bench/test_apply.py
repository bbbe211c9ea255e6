"""Test `instep bench apply` on real servers: the tables are correct, differences are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from instep import errors
from instep.local.broker import LocalCluster
from instep_bench import apply, baselines, bench_servers, contest, load, ranking
from instep_bench.baselines import connect

PARTITIONS = 2
LOAD = load.Load(events=6_000, documents=2_000, stale=0.1, repeated=0.02, bad=0.01)


class Field:
    """A load in a topic, and a database that belongs to the user."""

    def __init__(self, servers: bench_servers.BenchServers, url: str) -> None:
        self.servers, self.url = servers, url
        self.topic = servers.new_topic(PARTITIONS)
        load.publish(LOAD, servers.bootstrap, self.topic)
        self.expected = load.expected_state(LOAD, PARTITIONS)

    def hold(self, contestant: contest.Contestant) -> contest.ContestRun:
        declared = self.servers.database(self.url).declare(self.servers.bootstrap, self.topic)
        return contest.measure(contestant, declared, self.expected, {})


@pytest.fixture(scope="module")
def field(broker: LocalCluster, shared_database: Callable[[str], str]) -> Iterator[Field]:
    url = shared_database("postgres")
    with bench_servers.BenchServers(broker.bootstrap, lambda _: None) as servers:
        yield Field(servers, url)
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()


@pytest.mark.parametrize(
    "name", [baselines.LOOP, pytest.param(baselines.SPARK_JDBC, marks=pytest.mark.long)]
)
def test_a_guarded_baseline_applies_everything(field: Field, tmp_path: Path, name: str) -> None:
    with closing(
        contest.ProgramContestant(name, apply.MODULES[name], tmp_path / "baseline", is_spark=False)
    ) as baseline:
        held = field.hold(baseline)
    assert held.differences == 0
    assert 0 < held.first_row_s <= held.last_commit_s
    assert held.usage["process"].cpu_s > 0


@pytest.mark.long
def test_stale_rows_of_kafka_connect_are_counted(field: Field, tmp_path: Path) -> None:
    last = {}
    for sent in load.records(LOAD):
        if sent.kind != "bad":
            last[sent.key.decode()] = sent.number // LOAD.documents + 1
    outdated = sum(row.version != last[name] for name, row in field.expected.rows.items())
    with closing(
        connect.Connect(
            tmp_path / "connect", field.servers.bootstrap, PARTITIONS, field.servers.groups
        )
    ) as baseline:
        first, again = field.hold(baseline), field.hold(baseline)
    assert first.differences == again.differences >= outdated > 0


def test_the_pipeline_is_measured_cold_and_warm_beside_a_baseline_that_fails_once(
    broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "WARM_UPS", 0)
    messages: list[str] = []
    measure = contest.measure
    failed: list[int] = []

    def fail_once(contestant: contest.Contestant, *rest: Any) -> contest.ContestRun:
        if contestant.name == "loop" and not failed:
            failed.append(1)
            raise errors.InstepError("it lost its connection")
        return measure(contestant, *rest)

    monkeypatch.setattr(contest, "measure", fail_once)
    options = apply.ApplyOptions(
        targets=("sqlite",),
        events=1_200,
        documents=300,
        partitions=PARTITIONS,
        history=(True,),
        lines=(True,),
        engines=("resident",),
        stale=0.05,
        bad=0.01,
        rounds=1,
        against=("loop",),
        bootstrap=broker.bootstrap,
    )
    result = apply.run(options, messages.append, "instep bench apply")
    ours = [one for one in result.figures if one.labels["contestant"] != "loop"]
    found = {(one.name, one.labels["start"], one.labels.get("role")): one for one in ours}
    for start in ("cold", "warm"):
        assert found["differences", start, None].values == [0.0]
        assert found["throughput", start, None].median > 0
        assert {"driver", "jvm", "workers"} <= {role for _, kind, role in found if kind == start}
    assert [row[:3] for row in result.tables[0].rows] == [
        ["sqlite", "instep with history and lines", "cold"],
        ["sqlite", "instep with history and lines", "warm"],
        ["sqlite", "loop", "warm"],
    ]
    assert (
        "loop has no figure for cold, round 1 of 1 on sqlite: it lost its connection"
        in result.notes
    )
    assert any("round 1 of 1" in line for line in messages)
    assert result.releases["sqlite"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_pipeline_with_sql_is_measured_beside_one_without() -> None:
    options = apply.ApplyOptions(
        targets=("sqlite",),
        events=1_200,
        documents=300,
        history=(False,),
        transform=(True,),
        engines=("resident",),
        rounds=1,
        against=(),
    )
    result = apply.run(options, lambda _: None, "instep bench apply")
    names = [row[1] for row in result.tables[0].rows]
    assert names == ["instep", "instep with SQL", "instep", "instep with SQL"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"targets": ("oracle",)},
        {"targets": ()},
        {"targets": ("oracle://host/db",)},
        {"history": ()},
        {"against": ("flink",)},
        {"rounds": 0},
        {"partitions": 0},
        {"batch": 0},
        {"events": 10, "documents": 11},
        {"stale": 1.5},
        {"bad": -0.1},
        {"bad": 0.1, "transform": (True,)},
    ],
    ids=str,
)
def test_invalid_options_are_refused_before_anything_starts(
    wrong: dict[str, object],
) -> None:
    with pytest.raises(errors.SettingsError):
        apply.run(apply.ApplyOptions(**wrong), lambda _: None, "instep bench apply")  # type: ignore[arg-type]
