"""Test `instep bench` as users run it: in its own process, with hand-made results."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
import typer

from instep_bench import commands as bench_commands
from instep_bench import store
from instep_bench.commands import measuring
from instep_bench.result import recorded_options
from tests.bench import examples
from tests.support import commands
from tests.support.terminals import HOSTILE

BENCHMARKS = ("polling", "publish", "apply", "freshness", "sharing", "scale")

THINGS = ("documents", "events", "partitions", "delays", "masters")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def kept(home: Path) -> list[str]:
    """Return the ids of two stored results. The second one is twice as fast."""
    folder = home / "state" / "bench"
    folder.mkdir(parents=True)
    fast = examples.result(
        examples.speed([200.0, 240.0, 220.0], target="postgres", contestant="instep"), rounds=4
    )
    return [store.keep(one, folder).stem for one in (examples.result(), fast)]


def bench(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = commands.run(
        ["bench", *arguments], cwd=home.parent, env={**os.environ, "INSTEP_HOME": str(home)}
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def refused(home: Path, *arguments: str) -> str:
    done = bench(home, *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done
    return done.stderr


def test_list_shows_stored_results(home: Path, kept: list[str]) -> None:
    (home / "state" / "bench" / "20200101T000000-apply.json").write_text("{", encoding="utf-8")
    done = bench(home, "list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["RESULT", *kept]
    assert "cannot be read" in done.stderr
    assert "2 results in" in done.stderr
    assert [
        one["result"] for one in json.loads(bench(home, "list", "--json").stdout)["results"]
    ] == kept


def test_compare_shows_figures_and_differences(home: Path, kept: list[str]) -> None:
    done = bench(home, "compare", kept[0], "latest")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines.index("different conditions:") < next(
        number for number, line in enumerate(lines) if "FIGURE" in line
    )
    [figure] = [line for line in lines if line.startswith("throughput")]
    assert re.search(r"110 +100 – 120 +220 +200 – 240 +2\.00 +faster$", figure)
    assert "only in A: peak memory (role=jvm)" in lines
    assert lines[-1].startswith(
        "noise: the widest range of a figure's rounds is 18% of its median in A and 18%"
    )
    found = json.loads(
        bench(
            home, "compare", kept[0], str(home / "state" / "bench" / f"{kept[1]}.json"), "--json"
        ).stdout
    )
    assert (found["a"]["result"], found["b"]["result"]) == tuple(kept)
    assert found["lines"][0]["word"] == "faster"
    assert found["differences"] == [{"what": "option: rounds", "a": "3", "b": "4"}]
    assert "within noise" in bench(home, "compare", kept[1], kept[1]).stdout


def test_an_unreadable_result_is_reported(home: Path, kept: list[str]) -> None:
    (home / "state" / "bench" / f"{kept[1]}.json").write_text("{}", encoding="utf-8")
    assert "cannot be read" in refused(home, "compare", kept[0], "latest")
    assert "there is no result 'gone'" in refused(home, "compare", "gone", kept[0])
    assert "cannot be read" in refused(home, "report", kept[1])


def test_report_writes_a_page(home: Path, kept: list[str], tmp_path: Path) -> None:
    assert bench(home, "report").returncode == 0
    file = tmp_path / "bench-report.html"
    assert kept[1] in file.read_text(encoding="utf-8")
    assert bench(home, "report", *kept, "--json").returncode == 0
    assert kept[0] in file.read_text(encoding="utf-8")
    file.write_text("mine", encoding="utf-8")
    assert "--force" in refused(home, "report")
    assert file.read_text(encoding="utf-8") == "mine"
    assert "nowhere" in refused(home, "report", "--out", "nowhere/page.html")


def test_a_benchmark_is_refused_before_it_begins(home: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("mine", encoding="utf-8")
    assert "is not a report" in refused(home, "polling", "--html", "mine.html")
    assert "not a list of numbers" in refused(home, "polling", "--connections", "1,many")
    assert "1 to 500" in refused(home, "polling", "--connections", "none")
    assert "target" in refused(home, "polling", "--target", "postgre")
    assert "neither yes nor no" in refused(home, "apply", "--history", "yes,maybe")
    assert "give at least 120 bytes" in refused(home, "publish", "--size", "10")
    assert "there is no baseline 'lop'" in refused(home, "apply", "--against", "lop")
    assert "longer than 0 seconds" in refused(home, "sharing", "--seconds", "0")
    assert "nothing to vary" in refused(
        home, "scale", *(part for thing in THINGS for part in (f"--{thing}", "none"))
    )


def test_a_result_cannot_control_the_terminal(home: Path) -> None:
    folder = home / "state" / "bench"
    folder.mkdir(parents=True)
    given = examples.result(
        examples.speed([1.0, 2.0], target=HOSTILE), command=HOSTILE, target=HOSTILE
    )
    store.keep(msgspec.structs.replace(given, machine={HOSTILE: HOSTILE}), folder)
    store.keep(examples.result(examples.memory([1.0], role=HOSTILE)), folder)
    first, second = (file.stem for file in store.results(folder))
    for command in (
        ("list",),
        ("list", "--json"),
        ("compare", first, second),
        ("compare", first, first),
        ("report", first),
    ):
        done = bench(home, *command)
        assert done.returncode == 0, done.stderr
        for line in (done.stdout + done.stderr).split("\n"):
            assert line.isprintable(), line


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_help_shows_the_defaults(name: str, tmp_path: Path) -> None:
    """Read defaults from the benchmark's options, which the CLI imports only when needed."""
    text = " ".join(bench(tmp_path / "home", name, "--help").stdout.split())
    text = text.replace("micro- batch", "micro-batch")  # wrapped at its hyphen
    options = vars(importlib.import_module(f"instep_bench.{name}"))[f"{name.capitalize()}Options"]()
    for option, default in recorded_options(options).items():
        if isinstance(default, float):
            default = f"{default:g}"
        if default not in (None, "yes", "no"):
            assert re.search(rf"Default: {re.escape(str(default))}\.", text), option


def test_the_recorded_command_repeats_every_value() -> None:
    arguments = ["--target", "postgres", "--target", "sqlite", "--rounds", "2", "--json"]
    command = typer.main.get_command(bench_commands.app).commands["apply"]  # type: ignore[attr-defined]
    context = command.make_context("apply", arguments)
    assert (
        measuring.command_of(context)
        == "instep bench apply --target postgres --target sqlite --rounds 2"
    )
