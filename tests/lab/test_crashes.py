"""Test consumers that end within a batch, and what the lab does when a session ends too early."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from instep_lab import members
from instep_lab.claim import Tier
from instep_lab.claims import crashes
from instep_lab.clients import committed_offsets
from instep_lab.clients.consuming import CommitMode
from instep_lab.clients.library import Library
from instep_lab.cluster_pool import ClusterPool
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.trial import Scenario, Trial

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


def _assigned(*partitions: int, member: str = crashes.FIRST) -> list[ClientOperation]:
    return [
        ClientOperation(kind=OperationKind.ASSIGN, group="g", member=member, partition=partition)
        for partition in partitions
    ]


def test_a_consumer_that_got_a_partition_twice_had_lost_its_session() -> None:
    crashes.refuse_lost_session([*_assigned(0, 1), *_assigned(0, 1, member=crashes.SECOND)])
    with pytest.raises(crashes.SessionLost, match="the first consumer lost its session"):
        crashes.refuse_lost_session(_assigned(0, 1, 0))


@pytest.mark.parametrize(
    ("lost", "names"),
    [
        (0, ["probe"]),
        (1, ["probe", "probe, attempt 2"]),
        (3, ["probe", "probe, attempt 2", "probe, attempt 3"]),
    ],
)
def test_a_scenario_is_repeated_if_a_session_was_lost(
    tmp_path: Path, lost: int, names: list[str]
) -> None:
    trial = Trial("probe", run=tmp_path, tier=Tier.QUICK, seed=1, cluster=None)
    tried: list[str] = []

    def attempt(scenario: Scenario) -> int:
        tried.append(scenario.name)
        crashes.refuse_lost_session(_assigned(*[0] * (1 + (len(tried) <= lost))))
        return len(tried)

    if lost < crashes.ATTEMPTS_MAX:
        assert crashes.undisturbed(trial, "probe", attempt) == lost + 1
    else:
        with pytest.raises(crashes.SessionLost):
            crashes.undisturbed(trial, "probe", attempt)
    assert tried == names
    trial.close()


def test_only_a_consumer_that_is_to_die_has_a_short_session(trial: Trial) -> None:
    plan = crashes.plan(trial)
    assert plan.config["session.timeout.ms"] == members.SESSION_MS
    assert crashes.mortal(trial, plan).config["session.timeout.ms"] < 2_000
    topic, scenario = trial.topic(1), trial.scenario("teams")
    for expires, session_ms in ((True, members.SHORT_SESSION_MS), (False, members.SESSION_MS)):
        team = members.Team(trial, scenario, topic, members.RANGE, expires=expires)
        assert team._new_plan().config["session.timeout.ms"] == session_ms
