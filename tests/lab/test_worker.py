"""Test the second process of a run: which claims it takes, and what happens if it fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from instep_lab import claims, lab, store, worker
from instep_lab.claim import Claim, ClaimTexts, Tier
from instep_lab.cluster_pool import ClusterPool
from instep_lab.trial import Trial
from instep_lab.verdict import ClaimVerdict
from instep_lab.worker import ClaimWorker, TakenClaims


@pytest.fixture
def tested() -> list[str]:
    return []


@pytest.fixture
def claim_of(tested: list[str]) -> Callable[..., Claim]:
    def experiment(trial: Trial) -> None:
        tested.append(trial.claim)
        trial.statement("it is so", True, "seen")

    def new(id_: str, *, brokers: int = 0, alone: bool = False) -> Claim:
        texts = ClaimTexts(statement="statement", method="method", advice="advice")
        return Claim(id_, texts, brokers, True, None, experiment, alone)

    return new


@pytest.fixture
def taken(tmp_path: Path) -> TakenClaims:
    folder = tmp_path / "taken"
    folder.mkdir()
    return TakenClaims(folder)


def test_a_claim_is_taken_once(taken: TakenClaims, claim_of: Callable[..., Claim]) -> None:
    one, other = claim_of("a-1"), claim_of("a-2")
    assert taken.take(one)
    assert not taken.take(one)
    assert list(taken.take_each([one, other])) == [other]
    assert taken.count == 2


def test_the_second_process_takes_what_is_free_small_and_not_measured(
    tmp_path: Path, tested: list[str], taken: TakenClaims, claim_of: Callable[..., Claim]
) -> None:
    ended, begun, free = claim_of("a-1"), claim_of("a-2"), claim_of("a-3")
    large, alone = claim_of("a-4", brokers=3), claim_of("a-5", alone=True)
    known = {one.id: one for one in (ended, begun, free, large, alone)}
    run = lab.prepare(known, [], tier=Tier.QUICK, seed=1, into=tmp_path)
    lab.Lab(run, {"a-1": ended}, say=lambda _: None)._test(
        ended, 1, ClusterPool(None, lambda _: None)
    )
    taken.take(begun)
    lab.Lab(run, known, say=lambda _: None).assist(taken)
    assert tested == ["a-1", "a-3"]


def test_it_runs_as_a_process_and_its_lines_are_shown(tmp_path: Path, taken: TakenClaims) -> None:
    run = lab.prepare(claims.ALL, ["send-4"], tier=Tier.QUICK, seed=1, into=tmp_path)
    lines: list[str] = []
    with ClaimWorker(run, taken, tmp_path / "worker.log") as second:
        assert second.wait(lines.append) == 0, lines
    assert lines[0] == f"[1/1] send-4: {claims.ALL['send-4'].statement}"
    assert store.read_results(run)["send-4"].verdict is ClaimVerdict.OUTDATED


def test_claims_that_measure_run_last_and_a_failed_second_process_is_replaced(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tested: list[str],
    claim_of: Callable[..., Claim],
) -> None:
    monkeypatch.setattr(worker, "MODULE", "instep_lab.no_such_module")
    monkeypatch.setattr(lab, "_has_room_for_two", lambda _: True)
    known = {id_: claim_of(id_, alone=id_ == "a-1") for id_ in ("a-1", "a-2", "a-3")}
    run = lab.prepare(known, [], tier=Tier.QUICK, seed=1, into=tmp_path)
    lines: list[str] = []
    results = lab.Lab(run, known, say=lines.append, two_at_once=True).run()
    assert tested == ["a-2", "a-3", "a-1"]
    assert {one.verdict for one in results.values()} == {ClaimVerdict.RIGHT}
    assert any("No module named instep_lab.no_such_module" in line for line in lines)
    assert "the second process of the lab ended with 1; its claims run here" in lines
