"""Test the machine's description: what the system does not report is unknown, never an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from instep import __version__
from instep_bench import machine

MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
broken
/dev/vdb /tmp/disk xfs rw 0 0
"""


def test_this_machine() -> None:
    found = machine.facts()
    assert set(found) == {"cpu", "cores", "memory", "kernel", "disk"}
    assert all(found.values())
    releases = machine.releases(bootstrap="broker1:9092")
    assert releases["instep"] == __version__
    assert releases["kafka"] == "that of broker1:9092"
    assert {"python", "java", "spark"} <= releases.keys()


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/home/me", "ext4"),
        ("/tmp", "tmpfs"),
        ("/tmp/disk/a", "xfs"),
        ("/tmp/disks", "tmpfs"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(folder: str, kind: str) -> None:
    assert machine.file_system(MOUNTS, Path(folder)) == kind


def test_what_is_not_known_is_unknown() -> None:
    assert machine.file_system("", Path("/")) == "unknown"
    assert machine.memory("") == "unknown"
    assert machine.memory("MemTotal:       24641520 kB\n") == "23.5 GiB"
    assert machine.cpu_model("") is None
    assert machine.cpu_model("model name\t: A  B\nmodel name\t: C\n") == "A B"
    assert machine.database("sqlite:////nowhere/x.db") == "unknown"


def test_a_databases_release(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    assert machine.database(f"sqlite:///{tmp_path}/x.db").startswith("3.")
