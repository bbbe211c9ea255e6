"""Test that the published page is of the experiments of this code, in whatever history it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from instep_lab import source_tree
from instep_lab.report.contents import LabReport

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=lab", "-c", "user.email=lab@example.org")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@needs_git
def test_the_tree_is_that_of_git(tmp_path: Path) -> None:
    # in git's order, a.py comes before a/, and that before a0.py
    for name in ("a.py", "a/b.py", "a/c/d.java", "a0.py", "z.html", "__pycache__/a.pyc"):
        file = tmp_path / "lab" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"of {name}\n", encoding="utf-8")
    (tmp_path / ".gitignore").write_text("__pycache__\n", encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    found = source_tree.files(tmp_path / "lab")
    assert "a/c/d.java" in found
    assert source_tree.tree(found) == git(tmp_path, "rev-parse", "HEAD:lab")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("claims/order.py", ["claims/order.py"]),
        ("clients/java/LabClient.java", ["clients/java/LabClient.java"]),
        ("report/markdown.py", []),
        ("chooser.py", []),
    ],
)
def test_only_files_that_an_experiment_may_use_are_named(changed: str, named: list[str]) -> None:
    now = source_tree.files()
    assert changed in now
    assert source_tree.changed_experiments({**now, changed: "0" * 40}, now) == named
    without = {path: id_ for path, id_ in now.items() if path != changed}
    assert source_tree.changed_experiments(without, now) == named
    assert source_tree.changed_experiments(now, without) == named


def test_no_experiment_imports_what_is_said_to_be_none() -> None:
    listing = (
        "import sys, instep_lab.claims; print(*(m for m in sys.modules if m[:10] == 'instep_lab'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    paths = [f"{name.replace('.', '/')}.py".partition("/")[2] for name in done.stdout.split()]
    assert "claims/order.py" in paths
    assert [path for path in paths if source_tree.is_no_experiment(path)] == []


def test_the_published_run_is_of_this_code(published: LabReport) -> None:
    """Run the lab again and publish it after a change of an experiment."""
    assert published.run.files, "the run does not say of which files it is"
    assert source_tree.changed_experiments(published.run.files, source_tree.files()) == []
