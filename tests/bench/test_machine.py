"""Test the machine's description: what the system does not report is unknown, never an error."""

from __future__ import annotations

from pathlib import Path

from instep import __version__
from instep_bench import machine


def test_machine_and_versions_are_described() -> None:
    found = machine.facts()
    assert set(found) == {"cpu", "cores", "memory", "kernel", "disk"}
    assert all(found.values())
    releases = machine.releases(bootstrap="broker1:9092")
    assert releases["instep"] == __version__
    assert releases["kafka"] == "that of broker1:9092"
    assert {"python", "java", "spark"} <= releases.keys()


def test_what_is_not_known_is_unknown() -> None:
    assert machine.cpu_model("") is None
    assert machine.cpu_model("model name\t: A  B\nmodel name\t: C\n") == "A B"
    assert machine.database("sqlite:////nowhere/x.db") == "unknown"


def test_the_version_of_a_database_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    assert machine.database(f"sqlite:///{tmp_path}/x.db").startswith("3.")
