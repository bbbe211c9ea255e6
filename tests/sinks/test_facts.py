"""Test facts about a target that need no server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from instep.sinks import facts

MOUNTS = [
    SimpleNamespace(mountpoint="/", fstype="overlay"),
    SimpleNamespace(mountpoint="/", fstype="ext4"),  # hides the mount before it
    SimpleNamespace(mountpoint="/x", fstype="tmpfs"),
    SimpleNamespace(mountpoint="/x/disk", fstype="xfs"),
]


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/home/me", "ext4"),
        ("/x", "tmpfs"),
        ("/x/disk/a", "xfs"),
        ("/x/disks", "tmpfs"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(
    folder: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: MOUNTS)  # noqa: A006
    assert facts.file_system(Path(folder)) == kind


def test_a_file_system_that_is_not_reported_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [])  # noqa: A006
    assert facts.file_system(Path("/")) is None
