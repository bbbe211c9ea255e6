"""Test clients with seeded bugs on a real broker: the checkers catch all of them, and only them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from instep.kafka import offsets
from instep.local.proxy import NetworkFault
from instep_lab import checkers
from instep_lab.claim import Tier
from instep_lab.clients import table
from instep_lab.clients.consuming import CommitMode, Consuming, CrashPoint, Keep, Pool
from instep_lab.clients.publishing import Publishing
from instep_lab.cluster_pool import ClusterPool, LabCluster
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.trial import Scenario, Trial

COUNT = 200
SESSION = {"session.timeout.ms": 1_500, "heartbeat.interval.ms": 500}


@pytest.fixture
def cluster(pool: ClusterPool) -> LabCluster:
    found = pool.of(1)
    assert found is not None
    return found


@pytest.fixture
def trial(cluster: LabCluster, tmp_path: Path) -> Iterator[Trial]:
    new_trial = Trial("bug-1", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=cluster)
    yield new_trial
    cluster.recover()
    new_trial.close()


Consume = Callable[..., list[ClientOperation]]


@pytest.fixture
def crash_and_finish(trial: Trial) -> Consume:
    """Publish, crash a consumer at a point, let another one finish, and return their operations."""

    def run(point: CrashPoint, **given: object) -> list[ClientOperation]:
        scenario, topic = trial.scenario("crash"), trial.topic(1)
        scenario.publish(Publishing(topic=topic, count=COUNT, seed=1))
        plan = msgspec.convert(
            {
                "type": "consume",
                "topic": topic,
                "group": trial.group(),
                "batch": 20,
                "to_end": True,
                "config": SESSION,
                **given,
            },
            Consuming,
        )
        first = msgspec.structs.replace(plan, member="first", dies_at=point, dies_on=90)
        assert scenario.run(first) == -9
        scenario.run(msgspec.structs.replace(plan, member="second"))
        return scenario.history()

    return run


def test_a_commit_before_the_work_is_caught(crash_and_finish: Consume) -> None:
    seen = crash_and_finish(CrashPoint.WORKED, commit=CommitMode.BEFORE)
    assert checkers.lost(seen)
    assert not checkers.repeated(seen)


def test_a_commit_after_the_work_loses_nothing_and_its_repetitions_are_found(
    crash_and_finish: Consume,
) -> None:
    seen = crash_and_finish(CrashPoint.WORKED, commit=CommitMode.SYNC)
    assert not checkers.lost(seen)
    assert checkers.repeated(seen).count == 10


def test_a_missing_flush_is_caught(trial: Trial) -> None:
    found = {}
    for flush in (False, True):
        scenario, topic = trial.scenario(f"flush {flush}"), trial.topic(1)
        # such a program treats what it gave to the client as sent
        plan = Publishing(
            topic=topic, count=COUNT, seed=1, flush=flush, config={"linger.ms": 1_000}
        )
        scenario.run(plan)
        scenario.consume(
            Consuming(topic=topic, group=trial.group(), to_end=True, commit=CommitMode.NEVER)
        )
        tried = {one.record for one in scenario.history() if one.kind is OperationKind.SEND}
        read_records = {one.record for one in scenario.history() if one.kind is OperationKind.READ}
        assert len(tried) == COUNT
        found[flush] = len(tried - read_records)
    assert found == {False: COUNT, True: 0}


def _has_more_than_acknowledged(cluster: LabCluster, topic: str, scenario: Scenario) -> bool:
    return offsets.latest(cluster.kafka, topic, [0])[0] > scenario.acknowledged


def test_retries_without_idempotence_are_caught(trial: Trial, cluster: LabCluster) -> None:
    proxy = next(iter(cluster.proxies.values()))
    for idempotent in (False, True):
        scenario, topic = trial.scenario(f"idempotent {idempotent}"), trial.topic(1)
        config = {"enable.idempotence": idempotent, "socket.timeout.ms": 1_000, "linger.ms": 5}
        with scenario.background(
            Publishing(topic=topic, count=1_000_000, seed=1, per_s=200, config=config),
            cluster.proxied,
        ):
            trial.wait_for_more([scenario], 1)
            proxy.inject(NetworkFault(swallows_answers=True))
            trial.wait(
                partial(_has_more_than_acknowledged, cluster, topic, scenario),
                "records that nobody heard of",
            )
            proxy.cut()
            proxy.clear_fault()
            trial.wait_for_more([scenario], 50)
        scenario.consume(
            Consuming(topic=topic, group=trial.group(), to_end=True, commit=CommitMode.NEVER)
        )
        seen = scenario.history()
        assert not checkers.lost(seen, by=OperationKind.READ)
        assert bool(checkers.repeated(seen, by=OperationKind.READ)) is not idempotent


def test_a_pool_that_ignores_keys_is_caught(trial: Trial) -> None:
    for pool, wrong in ((Pool.BY_RECORD, True), (Pool.BY_KEY, False)):
        scenario, topic = trial.scenario(str(pool)), trial.topic(1)
        scenario.publish(Publishing(topic=topic, count=COUNT, keys=3, seed=1))
        scenario.consume(
            Consuming(
                topic=topic,
                group=trial.group(),
                count=COUNT,
                commit=CommitMode.NEVER,
                pool=pool,
                work_ms=1,
                idle_s=10,
            )
        )
        assert bool(checkers.inverted(scenario.history())) is wrong


def test_reading_aborted_records_is_caught(trial: Trial) -> None:
    for level, wrong in (("read_uncommitted", True), ("read_committed", False)):
        scenario, topic = trial.scenario(level), trial.topic(1)
        config = {"transactional.id": trial.name("transaction")}
        scenario.publish(
            Publishing(
                topic=topic, count=COUNT, seed=1, transaction=20, abort_every=2, config=config
            )
        )
        scenario.consume(
            Consuming(
                topic=topic,
                group=trial.group(),
                to_end=True,
                commit=CommitMode.NEVER,
                config={"isolation.level": level},
            )
        )
        assert bool(checkers.aborted(scenario.history())) is wrong


def test_a_write_without_its_offset_is_caught(
    trial: Trial, crash_and_finish: Consume, tmp_path: Path
) -> None:
    for keep, wrong in ((Keep.TABLE, True), (Keep.UNIQUE, False), (Keep.WITH_OFFSET, False)):
        file = tmp_path / f"{keep.name}.db"
        crash_and_finish(CrashPoint.WORKED, keep=keep, table=str(file), commit=CommitMode.SYNC)
        rows = table.work(file)
        assert len({one.record for one in rows}) == COUNT
        assert bool(checkers.repeated(rows)) is wrong
