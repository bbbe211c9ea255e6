"""Test how commands end: message, remedy, no traceback, and the same status under --debug."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from instep import errors
from instep.cli import exit_status
from tests.support.cli import instep, settings_text

WRONG = [
    (("run", "nobody"), 2),
    (("explain", "NOBODY"), 2),
    (("init",), 2),
    (("settings", "--no-such-option"), 2),
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Write settings whose target URL has an invalid port."""
    text = settings_text(bootstrap="127.0.0.1:1", topic="t").replace(
        "sqlite:///contracts.db", "postgresql://u:hush@h:port/d"
    )
    (tmp_path / "instep.toml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("arguments", "status"), WRONG)
def test_debug_changes_no_exit_status(place: Path, arguments: tuple[str, ...], status: int) -> None:
    plain, debugged = instep(place, *arguments), instep(place, "--debug", *arguments)
    assert (plain.returncode, debugged.returncode) == (status, status)
    assert "Traceback" not in plain.stderr
    assert debugged.stderr.endswith(plain.stderr)
    assert "hush" not in plain.stderr + debugged.stderr


def test_a_full_disk_behind_the_output_is_reported(place: Path) -> None:
    with Path("/dev/full").open("w") as full:
        for arguments in (("settings",), ("settings", "--json"), ("explain",), ("--help",)):
            command = [sys.executable, "-m", "instep", *arguments]
            done = subprocess.run(
                command, cwd=place, stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
            assert done.returncode == 1, (arguments, done.stderr)
            assert done.stderr.startswith("instep: no space left to write the output"), (
                arguments,
                done.stderr,
            )
            assert len(done.stderr.splitlines()) == 2, done.stderr


def test_messages_that_cannot_be_written_change_nothing(place: Path) -> None:
    """Write to a standard error that is a log on a full disk, or closed."""
    command = [sys.executable, "-m", "instep"]
    with Path("/dev/full").open("w") as full:
        assert (
            subprocess.run(
                [*command, "run", "nobody"], cwd=place, stderr=full, check=False
            ).returncode
            == 2
        )
        done = subprocess.run(
            [*command, "settings", "--json"],
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=full,
            check=False,
        )
    assert done.returncode == 0
    assert json.loads(done.stdout)["settings"]["kafka.bootstrap"] == "127.0.0.1:1"
    closed = subprocess.run(
        f"{sys.executable} -m instep run nobody 2>&-", shell=True, cwd=place, check=False
    )
    assert closed.returncode == 2


class Py4JNetworkError(Exception):
    """The name of py4j's error when its JVM is killed."""

    __module__ = "py4j.protocol"


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (errors.Fenced("taken over"), errors.Fenced, "taken over"),
        (Py4JNetworkError("Answer from Java side is empty"), errors.SparkGone, "JVM has ended"),
        (
            OSError(28, "No space left on device", "/data/x"),
            errors.InstepError,
            "no space left to write /data/x",
        ),
        (MemoryError(), errors.InstepError, "out of memory"),
        (
            ValueError("no connection to postgresql://u:hu@sh@h/d"),
            errors.InstepError,
            "unexpected error: ValueError",
        ),
    ],
)
def test_every_exception_becomes_a_message_with_a_remedy(
    raised: Exception,
    kind: type[errors.InstepError],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def command() -> None:
        raise raised

    assert exit_status.status_of(command) == kind.exit_status
    shown = capsys.readouterr().err
    assert shown.startswith("instep: ")
    assert words in shown
    assert len(shown.splitlines()) == 2
    assert "sh@h" not in shown


INTERRUPTED = """
import signal, sqlalchemy
from instep.cli import _exit_on_signal, exit_status

exit_status.prepare_process()
signal.signal(signal.SIGTERM, _exit_on_signal)
engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.pool.NullPool)
engine.dialect.do_close = lambda _connection: signal.raise_signal(signal.SIGTERM)
with engine.connect():
    pass
"""


def test_a_signal_while_a_connection_is_closed_prints_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")
