"""Test `instep overdue`: the list, its filters, its doubts and its exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from instep import cli
from tests.support.cli import settings_text
from tests.support.databases import declare, run_sql
from tests.support.transactions import Open, apply, begun, event

DAY_MS = 86_400_000
START_MS = 1_700_000_000_000  # in 2023: everything is overdue
DUE = {"QUEUED": "1h", "FAILED": "2d"}

Overdue = Callable[..., Result]


@pytest.fixture
def overdue(tmp_path: Path, open_sink: Open, monkeypatch: pytest.MonkeyPatch) -> Overdue:
    """Return the command, in a folder with a pipeline and documents."""
    url = f"sqlite:///{tmp_path}/contracts.db"
    sink = begun(open_sink(declare(url, due=DUE, transitions={"QUEUED": ["FAILED"]})))
    names = {"b": 1, "a": 0, "<c>\x1b[31m": 2}
    records: list[Any] = [
        event(offset, name, 1, "QUEUED", updated_at=START_MS + day * DAY_MS)
        for offset, (name, day) in enumerate(names.items())
    ]
    records += [
        event(3, "b", 2, "FAILED", updated_at=START_MS + 9 * DAY_MS),
        event(4, "a", 2, "PRINTED", updated_at=START_MS + 9 * DAY_MS),  # not allowed: parked
    ]
    apply(sink, records)
    run_sql(url, "INSERT INTO contract_document (doc_no, print_status) VALUES ('old', 'QUEUED')")
    text = settings_text(bootstrap="127.0.0.1:1", topic="print-status", target=url)
    due = '\n[pipelines.contracts.due]\nQUEUED = "1h"\nFAILED = "2d"\n'
    (tmp_path / "instep.toml").write_text(text + due, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli.build_app(["overdue", "status"]), ["overdue", *arguments])

    return run


def test_the_list_has_the_longest_overdue_first(overdue: Overdue) -> None:
    done = overdue()
    assert done.exit_code == 1
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["PIPELINE", "DOCUMENT", "STATUS", "SINCE", "FOR", "LIMIT", "PARKED"]
    assert [line.split()[1:3] for line in lines] == [
        ["a", "QUEUED"],
        ["<c>\\x1b[31m", "QUEUED"],
        ["b", "FAILED"],
    ]
    assert lines[0].endswith("1h     STATUS_UNKNOWN, 1 event waiting")
    assert lines[2].endswith("2d     -")
    assert "of 1 document with such a status the time of its last change is not" in done.stderr
    assert "contracts: never run, so events that change" in done.stderr


def test_filters_and_limits(overdue: Overdue) -> None:
    assert [row["document"] for row in _listed(overdue("--status", "FAILED", "--json"))] == ["b"]
    assert len(_listed(overdue("--older-than", "10d", "--json"))) == 3
    shown = overdue("-n", "1")
    assert (len(shown.stdout.splitlines()), shown.exit_code) == (2, 1)
    assert "contracts: 1 of 3 overdue documents; -n shows more" in shown.stderr
    nothing = overdue("--older-than", "36500d")
    assert (nothing.stdout, nothing.exit_code) == ("", 0)
    assert "contracts: no document is overdue" in nothing.stderr


def test_the_json_has_what_a_page_needs(overdue: Overdue) -> None:
    [pipeline] = json.loads(overdue("--json").stdout)["pipelines"]
    assert (pipeline["total"], pipeline["unknown"], pipeline["due"]) == (3, 1, DUE)
    assert pipeline["statuses"]["QUEUED"] == {"documents": 2, "oldest": "2023-11-14T22:13:20Z"}
    first = pipeline["documents"][0]
    assert (first["parked_reason"], first["waiting"]) == ("STATUS_UNKNOWN", 1)
    assert first["due_at"] == "2023-11-14T23:13:20Z"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--status", "Queued"), "has no limit; did you mean 'QUEUED'?"),
        (("--older-than", "soon"), "'soon' is not an age"),
        (("contract",), "there is no pipeline 'contract'; did you mean 'contracts'?"),
    ],
)
def test_wrong_options_are_explained(
    overdue: Overdue, arguments: tuple[str, ...], message: str
) -> None:
    assert message in str(overdue(*arguments).exception)


def test_a_pipeline_without_limits_says_what_to_declare(overdue: Overdue, tmp_path: Path) -> None:
    file = tmp_path / "instep.toml"
    text = file.read_text(encoding="utf-8").partition("\n[pipelines.contracts.due]")[0]
    file.write_text(text, encoding="utf-8")
    problem = str(overdue().exception)
    assert "has no limits: its settings lack the section due" in problem
    assert '[pipelines.contracts.due] QUEUED = "2h"' in problem


def _listed(done: Result) -> list[dict[str, Any]]:
    return list(json.loads(done.stdout)["pipelines"][0]["documents"])
