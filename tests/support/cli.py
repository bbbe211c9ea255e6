"""`instep` commands as the tests run them, and a settings file with one pipeline."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from instep import cli, errors
from tests.support import commands, databases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = """
[kafka]
bootstrap = "{bootstrap}"

[pipelines.contracts]
topic = "{topic}"
engine = "{engine}"
target = "{target}"
table = "contract_document"
key = "doc_no"

[pipelines.contracts.event]
document = "doc_id"
status = "status"
order = "version"
at = "updated_at"

[pipelines.contracts.columns]
print_status = "status"
print_version = "version"
printed_at = "updated_at"
"""
EVENTS = "\n".join(
    json.dumps(
        {
            "doc_id": f"d{number}",
            "status": "PRINTED",
            "version": 1,
            "updated_at": "2026-11-01T08:00:00Z",
        }
    )
    for number in range(20)
)


def settings_text(*, bootstrap: str, topic: str, target: str = "sqlite:///contracts.db") -> str:
    """Return a settings file with one pipeline."""
    engine = databases.BASE.get("engine", "resident")
    return _SETTINGS.format(bootstrap=bootstrap, topic=topic, target=target, engine=engine)


def instep(
    folder: Path, *arguments: str, given: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in its own process."""
    return commands.run(arguments, cwd=folder, env={**os.environ, **environment}, given=given)


def instep_in_session(
    folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> Result:
    """Run a command within this process, in a Spark session that lives on.

    A command in its own process starts a JVM, whose first query takes most of the command's time.
    """
    with monkeypatch.context() as patched:
        patched.chdir(folder)
        patched.setattr("instep.pipeline.session.open_session", lambda *_, **__: spark)
        patched.setattr("pyspark.sql.SparkSession.stop", lambda _: None)
        return CliRunner().invoke(cli.build_app(), arguments, catch_exceptions=False)


def prepare_folder(folder: Path, bootstrap: str) -> None:
    """Write the settings file, and create its topic with two partitions."""
    topic = f"cli-{uuid.uuid4().hex[:8]}"
    text = settings_text(bootstrap=bootstrap, topic=topic)
    (folder / "instep.toml").write_text(text, encoding="utf-8")
    assert instep(folder, "topics", "create", topic, "-p", "2", "--execute").returncode == 0


def reported(place: Path, *arguments: str) -> Any:
    """Return the JSON output of a command that succeeds."""
    done = instep(place, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(place: Path, *arguments: str) -> str:
    """Return the message of a command that exits with status 2."""
    done = instep(place, *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    return done.stderr


def refused_in_process(place: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """Return the error of a command that runs within this process: for many small mistakes."""
    monkeypatch.chdir(place)
    done = CliRunner().invoke(cli.build_app(), arguments)
    assert isinstance(done.exception, errors.SettingsError), done
    return str(done.exception)
