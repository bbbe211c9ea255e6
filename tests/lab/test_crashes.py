"""Test consumers that end within a batch, and what the lab does when a session ends too early."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from instep_lab.claim import Tier
from instep_lab.claims import crashes
from instep_lab.clients import committed_offsets
from instep_lab.clients.consuming import CommitMode
from instep_lab.clients.library import Library
from instep_lab.cluster_pool import ClusterPool
from instep_lab.history import OperationKind
from instep_lab.trial import Trial

FAILS_ON = 2 * crashes.BATCH + 5


@pytest.fixture
def trial(pool: ClusterPool, tmp_path: Path) -> Iterator[Trial]:
    new_trial = Trial("probe", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=pool.of(1))
    yield new_trial
    new_trial.close()


@pytest.mark.parametrize("library", [Library.JAVA, Library.LIBRDKAFKA])
def test_a_consumer_whose_work_fails_closes_within_its_batch(
    trial: Trial, library: Library
) -> None:
    scenario = trial.scenario("closed")
    plan = crashes.plan(trial, library=library, commit=CommitMode.AUTO, fails_on=FAILS_ON)
    crashes.publish(trial, scenario, plan.topic)
    scenario.consume(plan)
    operations = scenario.history()
    assert sum(one.kind is OperationKind.WORK for one in operations) == FAILS_ON - 1
    assert [one.note for one in operations if one.kind is OperationKind.FAULT] == ["fails"]
    assert not any(one.kind is OperationKind.END for one in operations), "it did not end by itself"
    place = plan.group, plan.topic, 0
    assert committed_offsets.position(trial.cluster.connection, *place) == 3 * crashes.BATCH
