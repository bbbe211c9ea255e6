"""Test the comparison of runs with different seeds, and the command that makes them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from instep_lab import seeds, store
from instep_lab.verdict import PartOutcome, Role, VerdictPart
from tests.lab import labs
from tests.support import commands

PROGRAM = """
from instep.cli import main
from instep_lab.claim import experiment
for name, last in (("luck-1", 2), ("luck-2", 9)):
    experiment(name, statement="a", method="b.", advice="c.", brokers=0)(
        lambda trial, last=last: trial.statement("it is so", trial.seed <= last, str(trial.seed))
    )
main()
"""


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "INSTEP_HOME": str(home)}
    return commands.run(["lab", *arguments], cwd=home.parent, env=environment, program=PROGRAM)


def part(outcome: PartOutcome) -> VerdictPart:
    return VerdictPart(Role.STATEMENT, "it is so", outcome, "seen", client="Java")


def test_a_claim_with_another_verdict_for_one_seed_is_found_with_the_parts_that_differ() -> None:
    right, wrong = (
        labs.result_of("a-1", [part(outcome)]) for outcome in (PartOutcome.PASS, PartOutcome.FAIL)
    )
    always = labs.result_of("a-2", [part(PartOutcome.PASS)])
    runs = {1: {"a-1": right, "a-2": always}, 2: {"a-1": wrong, "a-2": always}, 3: {"a-1": right}}
    luck, same = seeds.compare(runs)
    assert luck == seeds.SeedComparison(
        "a-1",
        {"right": [1, 3], "wrong": [2]},
        {"statement: Java: it is so": {"PASS": [1, 3], "FAIL": [2]}},
    )
    assert not luck.same
    assert (same.verdicts, same.parts, same.same) == ({"right": [1, 2]}, {}, True)


def test_a_claim_that_is_never_decided_is_not_the_same() -> None:
    undecided = labs.result_of("a-1", [part(PartOutcome.INCONCLUSIVE)])
    [found] = seeds.compare({1: {"a-1": undecided}, 2: {"a-1": undecided}})
    assert found.verdicts == {"INCONCLUSIVE": [1, 2]}
    assert not found.same


@pytest.mark.long
def test_runs_with_several_seeds_report_what_differs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = run(home, "run", "luck", "--seeds", "3")
    assert done.returncode == 1, done.stderr
    assert "luck-1: right with seed 1, 2; wrong with seed 3" in done.stdout
    assert "    statement: it is so: PASS with seed 1, 2; FAIL with seed 3" in done.stdout
    assert "luck-2" not in done.stdout
    assert re.search(r"run 3 of 3, seed 3: \d+T\d+-quick-3$", done.stderr, re.MULTILINE)
    assert "3 runs: 1 claim with the same verdict in each, 1 without" in done.stderr
    kept = store.runs(home / "state" / "lab")
    assert [store.read_run(one).seed for one in kept] == [1, 2, 3]


@pytest.mark.long
def test_the_same_verdicts_are_no_failure(tmp_path: Path) -> None:
    done = run(tmp_path / "home", "run", "luck", "--seeds", "2", "--seed", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert [(one["claim"], one["same"]) for one in json.loads(done.stdout)["claims"]] == [
        ("luck-1", True),
        ("luck-2", True),
    ]


def test_a_resumed_run_has_one_seed(tmp_path: Path) -> None:
    done = run(tmp_path / "home", "run", "--resume", "--seeds", "2")
    assert done.returncode == 2
    assert "already has its claims" in done.stderr
