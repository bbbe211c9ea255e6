"""Test `instep lab` as users run it: in its own process, with hand-made runs and claims."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from instep.report.tables import Plot, ReportTable, Series
from instep_lab import chooser, store
from instep_lab import commands as lab_commands
from instep_lab.verdict import PartOutcome, Role, VerdictPart
from tests.lab import labs
from tests.support import commands
from tests.support.terminals import HOSTILE

# the command line, with additional claims
PROGRAM = """
from instep.cli import main
from instep_lab.claim import experiment
for number in (1, 2, 3):
    experiment(f"probe-{number}", statement="acks=all loses no records",
            method="kill -9 of the leader", advice="Use acks=all.",
            rules=("TOPIC_SINGLE_REPLICA",), brokers=3, harmless=False)(lambda trial: None)
experiment("sound-1", statement="a" * 100, method="nothing", advice="None.")(lambda trial: None)
main()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def kept(home: Path) -> Path:
    """Return the folder of runs, with one run in it."""
    folder = home / "state" / "lab"
    labs.a_run(folder)
    return folder


def lab(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "INSTEP_HOME": str(home)}
    done = commands.run(["lab", *arguments], cwd=home.parent, env=environment, program=PROGRAM)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def refused(home: Path, *arguments: str, status: int = 2) -> str:
    done = lab(home, *arguments)
    assert (done.returncode, done.stdout) == (status, ""), done
    assert 1 <= len(done.stderr.splitlines()) <= 2, done.stderr
    return done.stderr


def test_commands_work_before_any_run(home: Path) -> None:
    listed = lab(home, "list")
    assert listed.returncode == 0
    assert "instep lab run" in listed.stderr
    assert "probe-1" in listed.stdout
    assert "instep lab run" in refused(home, "show")
    assert "no lab runs" in refused(home, "report")
    assert "no lab runs" in refused(home, "show", "probe-1", "--run", labs.ID)
    runs = lab(home, "runs")
    assert (runs.returncode, runs.stdout) == (0, "")
    assert runs.stderr.startswith("0 runs in ")
    assert json.loads(lab(home, "runs", "--json").stdout)["runs"] == []


def test_list_shows_claims_and_verdicts(home: Path, kept: Path) -> None:
    lines = {
        line.split()[0]: line.split()
        for line in lab(home, "list", "probe", "sound-1").stdout.splitlines()
    }
    assert lines["CLAIM"] == ["CLAIM", "VERDICT", "BROKERS", "HARMLESS", "STATEMENT", "RULES"]
    assert lines["probe-1"] == [
        "probe-1",
        "right",
        "3",
        "no",
        "acks=all",
        "loses",
        "no",
        "records",
        "TOPIC_SINGLE_REPLICA",
    ]
    assert lines["probe-2"][1] == "INCONCLUSIVE"
    assert lines["probe-3"][1:3] == ["not", "run"]
    assert lines["sound-1"][1:6] == ["not", "run", "1", "yes", "a" * 100]
    short = next(
        line for line in lab(home, "list").stdout.splitlines() if line.startswith("sound-1")
    )
    assert short.split()[-1] == "a" * 71 + "…"
    found = json.loads(lab(home, "list", "probe-1", "--json").stdout)
    assert found["run"] == labs.ID
    [claim] = found["claims"]
    assert (claim["verdict"], claim["rules"], claim["harmless"]) == (
        "right",
        ["TOPIC_SINGLE_REPLICA"],
        False,
    )
    assert "did you mean 'probe-" in refused(home, "list", "prob-1")


def test_show_prints_the_run(home: Path, kept: Path) -> None:
    done = lab(home, "show")
    assert done.returncode == 0
    for words in ("quick", "4.3.1", labs.ID, "instep lab run --seed 7", "probe-3  not run"):
        assert words in done.stdout, words
    assert "3 claims: 1 right, 1 INCONCLUSIVE, 1 not run" in done.stderr
    found = json.loads(lab(home, "show", "--run", labs.ID, "--json").stdout)
    assert [(one["id"], one["verdict"]) for one in found["claims"]] == [
        ("probe-1", "right"),
        ("probe-2", "INCONCLUSIVE"),
        ("probe-3", "not run"),
    ]


def test_show_prints_a_claim(home: Path, kept: Path) -> None:
    done = lab(home, "show", "probe-1")
    assert (done.returncode, done.stderr) == (0, "")
    for words in (
        *(
            "probe-1: right",
            "kill -9 of the leader",
            "statement  acks=all loses no records",
            "0 of 20,000 lost",
            "unknown",
            "Use acks=all.",
        ),
        *(
            "TOPIC_SINGLE_REPLICA",
            'acks=all: {"acks":"all","linger.ms":5}',
            "1.500  kill -9  4711",
            "batch.size",
        ),
        "repeat     instep lab run probe-1 --seed 7",
    ):
        assert words in done.stdout, words
    assert "did not end" in lab(home, "show", "probe-2").stdout
    assert "not run" in lab(home, "show", "probe-3", "--run", str(kept / labs.ID)).stdout
    assert "sound-1: not run" in lab(home, "show", "sound-1").stdout
    assert lab(home, "show", "probe").stdout.count("repeat ") == 3
    [found] = json.loads(lab(home, "show", "probe-1", "--json").stdout)["claims"]
    assert found["result"]["parts"][0]["outcome"] == "PASS"
    assert found["timeline"] == [{"at_s": 1.5, "fault": "kill -9", "pid": 4711}]
    assert "did you mean 'probe-" in refused(home, "show", "probe-9")
    assert "no run 'gone'" in refused(home, "show", "--run", "gone")


def test_report_writes_a_page(home: Path, kept: Path, tmp_path: Path) -> None:
    done = lab(home, "report")
    file = tmp_path / "lab-report.html"
    assert (done.returncode, done.stdout) == (0, "")
    assert str(file) in done.stderr
    assert "probe-3" in file.read_text(encoding="utf-8")
    assert lab(home, "report", "--run", labs.ID).returncode == 0
    mine = tmp_path / "mine.html"
    mine.write_text("mine", encoding="utf-8")
    assert "--force" in refused(home, "report", "--out", "mine.html")
    assert mine.read_text(encoding="utf-8") == "mine"
    assert lab(home, "report", "--out", "mine.html", "--force").returncode == 0
    assert mine.read_bytes() == file.read_bytes()
    printed = json.loads(lab(home, "report", "--json").stdout)
    assert (printed["file"], printed["run"]) == (str(file), labs.ID)
    assert sum(printed["counts"].values()) == 3


@pytest.mark.parametrize(
    "out", ["nowhere/page.html", ".", "", "x" * 300, "lab-report.html/page.html", "/proc/page.html"]
)
def test_a_report_that_cannot_be_written_is_refused(
    home: Path, kept: Path, tmp_path: Path, out: str
) -> None:
    (tmp_path / "lab-report.html").write_text("mine", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    assert "--out" in refused(home, "report", "--out", out)
    assert sorted(tmp_path.iterdir()) == before


def test_runs_are_listed(home: Path, kept: Path) -> None:
    labs.a_run(kept, "20261102T080000-quick-7")
    (kept / "20261102T080000-quick-7" / "run.json").write_text("{", encoding="utf-8")
    done = lab(home, "runs")
    assert done.returncode == 0
    first, second = [line.split() for line in done.stdout.splitlines()[1:]]
    assert first == [labs.ID, "2026-11-01T08:00:00Z", "quick", "7", "3", "1", "1", "own"]
    assert second == ["20261102T080000-quick-7", *["unknown"] * 7]
    assert "run.json cannot be read" in done.stderr
    found = json.loads(lab(home, "runs", "--json").stdout)["runs"]
    assert [one["decided"] for one in found] == [1, None]


@pytest.mark.parametrize(
    "name", ["run.json", "probe-1/verdict.json", "probe-1/settings.json", "probe-1/timeline.jsonl"]
)
def test_a_damaged_run_is_reported(home: Path, kept: Path, name: str) -> None:
    (kept / labs.ID / name).write_bytes(b"\xff{\n")
    for command in (("show",), ("show", "probe-1"), ("report",)):
        assert f"{name} cannot be read" in refused(home, *command, status=1)
    listed = lab(home, "list", "probe-1")
    assert listed.returncode == 0
    assert "probe-1" in listed.stdout


def test_a_run_cannot_control_the_terminal(home: Path, kept: Path) -> None:
    run = store.begin(
        kept, labs.run_of("probe-1", HOSTILE.replace("/", ""), id_="20261103T080000-quick-7")
    )
    parts = [VerdictPart(Role.STATEMENT, HOSTILE, PartOutcome.PASS, HOSTILE)]
    table, plot = (
        ReportTable(HOSTILE, [HOSTILE], [[HOSTILE]]),
        Plot(HOSTILE, HOSTILE, HOSTILE, [Series(HOSTILE, [(HOSTILE, 1.0)])]),
    )
    store.write_result(run, labs.result_of("probe-1", parts, tables=[table], plots=[plot]))
    store.write_settings(run / "probe-1", {HOSTILE: HOSTILE})
    (run / "probe-1" / "timeline.jsonl").write_text(
        json.dumps({HOSTILE: HOSTILE}) + "\n", encoding="utf-8"
    )
    for command in (
        ("show",),
        ("show", "probe-1"),
        ("show", "probe-1", "--json"),
        ("list",),
        ("runs",),
        ("report",),
    ):
        done = lab(home, *command)
        assert done.returncode == 0, done.stderr
        for line in (done.stdout + done.stderr).split("\n"):
            assert line.isprintable(), line


ANSWERS = ("--loss", "no", "--repeats", "yes", "--order", "key", "--away", "days")


def test_choose_prints_settings_with_their_claims(home: Path) -> None:
    home.mkdir()
    done = lab(home, "choose", *ANSWERS, "--client", "java")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    at = lines.index("acks=all")
    assert lines[at - 1].endswith("(send-1, send-2)")
    for line in ("auto.offset.reset=earliest", "min.insync.replicas=2", "retention.ms=1209600000"):
        assert line in lines
    assert "note:" not in done.stderr
    found = json.loads(lab(home, "choose", *ANSWERS, "--client", "librdkafka", "--json").stdout)
    assert found["answers"]["client"] == "librdkafka"
    assert "partitioner" in [one["name"] for one in found["settings"]]


def test_choose_reports_contradictory_and_wrong_answers(home: Path) -> None:
    home.mkdir()
    answers = ("--loss", "some", "--repeats", "no", "--order", "none", "--away", "hours")
    assert (
        "note: You allow loss, but no repeats"
        in lab(home, "choose", *answers, "--client", "java").stderr
    )
    assert "use --client with one of: java, librdkafka" in refused(home, "choose", *ANSWERS)
    wrong = refused(home, "choose", *ANSWERS, "--client", "perl")
    assert "Which client? 'perl' is not an answer" in wrong


def test_choose_asks_on_a_terminal_until_it_has_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["perhaps", " some "])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "prompt", lambda *_, **__: next(typed))
    assert lab_commands._ask(chooser.QUESTIONS[0]) == "some"
    shown = capsys.readouterr().err
    assert "May records be lost?" in shown
    assert "'perhaps' is not an answer" in shown


def test_the_shell_completes_claims_and_runs(home: Path, kept: Path) -> None:
    def completed(words: str) -> list[str]:
        environment = {
            "INSTEP_HOME": str(home),
            "_INSTEP_COMPLETE": "complete_bash",
            "COMP_CWORD": str(words.count(" ")),
        }
        program = PROGRAM.replace("main()", "import sys; sys.argv = ['instep', 'lab']; main()")
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **environment, "COMP_WORDS": words},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout.split()

    assert completed("instep lab show probe-") == ["probe-1", "probe-2", "probe-3"]
    assert completed("instep lab show --run 2026") == [labs.ID]
    assert "report" in completed("instep lab r")
