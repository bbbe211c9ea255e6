"""Test vet, doctor and the shell's completion as users run them: in their own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from instep.local.broker import LocalCluster
from tests.support.cli import instep, prepare_folder
from tests.support.waiting import wait_until


@pytest.fixture
def place(tmp_path: Path, broker: LocalCluster) -> Path:
    """Make a folder with a settings file, and the topic that it names."""
    prepare_folder(tmp_path, broker.bootstrap)
    return tmp_path


ACCEPTED = """
[vet.accept]
TOPIC_SINGLE_REPLICA = "a test"
"""


def complete(folder: Path, line: str, **environment: str) -> list[str]:
    """Return what the shell offers for the last word of a line.

    It calls the program by its name.
    """
    position = str(line.count(" "))
    variables = {
        "COMP_WORDS": line,
        "COMP_CWORD": position,
        "_INSTEP_COMPLETE": "complete_bash",
        **environment,
    }
    program = Path(sys.executable).with_name("instep")
    done = subprocess.run(
        [program],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_vet_prints_text_and_json_and_judges_a_snapshot_offline(place: Path) -> None:
    assert instep(place, "init").returncode == 0
    first = instep(place, "vet", "--snapshot", "found.json")
    assert first.returncode == 1
    assert "ERROR     TOPIC_SINGLE_REPLICA" in first.stdout
    assert (
        "contracts does not keep exactly-once. With these settings, status events can be lost when"
        in first.stdout
    )
    again = instep(place, "vet", "--snapshot", "found.json", INSTEP__KAFKA__BOOTSTRAP="127.0.0.1:1")
    assert again.stdout == first.stdout
    assert "no server was contacted" in again.stderr
    with (place / "instep.toml").open("a", encoding="utf-8") as file:
        file.write(ACCEPTED)
    accepted = instep(place, "vet", "--json")
    assert accepted.returncode == 0, accepted.stdout
    verdict = json.loads(accepted.stdout)
    assert "a test" in {one["accepted"] for one in verdict["findings"]}
    assert verdict["outcomes"][0]["pipeline"] == "contracts"


def test_vet_judges_settings_that_declare_only_a_relay(
    tmp_path: Path, broker: LocalCluster
) -> None:
    (tmp_path / "instep.toml").write_text(
        f"[kafka]\nbootstrap = {broker.bootstrap!r}\n"
        "[relays.shop]\nsource = 'sqlite:///shop.db'\ntopic = 'no-such-topic'\n",
        encoding="utf-8",
    )
    done = instep(tmp_path, "vet", "--relay", "shop")
    assert done.returncode == 1
    assert "ERROR     RELAY_SOURCE_UNREACHABLE  the source of relay shop" in done.stdout
    assert "relay shop does not keep exactly-once. With these settings, " in done.stdout
    assert "the relay is delayed or stopped now (RELAY_SOURCE_UNREACHABLE)" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("vet", "explain", "TOPIC_SINGEL_REPLICA"), "did you mean 'TOPIC_SINGLE_REPLICA'"),
        (("vet", "--pipeline", "contract"), "did you mean 'contracts'"),
        (("vet", "--relay", "shop"), "there is no relay 'shop'"),
        (("vet", "--snapshot", "instep.toml"), "instep.toml is not a snapshot"),
    ],
)
def test_bad_input_gives_one_clear_error(
    place: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = instep(place, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_shell_completes_live_names(place: Path) -> None:
    topic = next(
        line.split('"')[1]
        for line in (place / "instep.toml").read_text().splitlines()
        if line.startswith("topic")
    )
    # completion does not wait for a cluster that does not answer at once: it offers nothing then
    wait_until(
        lambda: complete(place, f"instep topics describe {topic[:-1]}") == [topic],
        "the name of the topic",
    )
    assert complete(place, "instep run ") == ["contracts"]
    assert complete(place, "instep vet explain TOPIC_SINGLE") == ["TOPIC_SINGLE_REPLICA"]
    assert complete(place, "instep peek x", INSTEP__KAFKA__BOOTSTRAP="127.0.0.1:1") == []
    (place / "instep.toml").write_text("nonsense", encoding="utf-8")
    assert complete(place, "instep run ") == []


def test_the_doctor_reports_problems(place: Path) -> None:
    done = instep(place, "doctor", "--json")
    assert done.returncode == 1
    wrong = [one for one in json.loads(done.stdout)["checks"] if one["state"] == "wrong"]
    assert [one["part"] for one in wrong] == ["database of contracts"]
    assert wrong[0]["fix"]
