"""Test the disk whose power can be cut: what is lost, what stays, and that nothing is left over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from instep import errors
from instep.waiting import wait_until
from instep_lab import power_cut

needs_root = pytest.mark.skipif(bool(power_cut.missing()), reason=power_cut.missing())
FOREVER = "from instep_lab import power_cut; import sys, time; disk = power_cut.PowerCutDisk(32)"


def mounted() -> str:
    return power_cut.MOUNTS.read_text(encoding="utf-8")


@needs_root
def test_a_power_cut_loses_what_was_not_synced_and_nothing_else() -> None:
    with power_cut.PowerCutDisk(32) as disk:
        synced, unsynced = disk.root / "synced", disk.root / "unsynced"
        synced.write_bytes(b"here")
        disk.sync_file(synced)
        unsynced.write_bytes(b"gone")
        disk.cut()
        with pytest.raises(OSError, match="error"):
            (disk.root / "later").write_bytes(b"refused")
        disk.restore()
        assert synced.read_bytes() == b"here"
        assert not unsynced.exists()


@needs_root
def test_everything_is_there_after_a_sync() -> None:
    with power_cut.PowerCutDisk(32) as disk:
        (disk.root / "file").write_bytes(b"here")
        disk.sync()
        disk.cut()
        disk.restore()
        assert (disk.root / "file").read_bytes() == b"here"


@needs_root
def test_a_closed_disk_leaves_nothing() -> None:
    disk = power_cut.PowerCutDisk(32)
    folder = disk.root.parent
    assert str(disk.root) in mounted()
    disk.close()
    assert str(folder) not in mounted()
    assert not folder.exists()


@needs_root
def test_the_disk_of_a_killed_process_is_unmounted_and_deleted() -> None:
    code = f"{FOREVER}; print(disk.root, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        root = Path(owner.stdout.readline().strip())
        assert str(root) in mounted()
        owner.kill()
    assert wait_until(lambda: not root.parent.exists(), 20)
    assert str(root) not in mounted()


@needs_root
def test_a_disk_that_lost_its_owner_and_its_keeper_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with power_cut.PowerCutDisk(32) as other:
        ended = subprocess.run(
            [sys.executable, "-c", "import os; print(os.getpid())"],
            capture_output=True,
            check=True,
            text=True,
        )
        left = tmp_path / f"{power_cut.PREFIX}{ended.stdout.strip()}-x"
        (left / "disk").mkdir(parents=True)
        image = left / "image"
        with image.open("wb") as file:
            file.truncate(16 << 20)
        subprocess.run(["/usr/sbin/mkfs.ext4", "-q", "-F", str(image)], check=True)
        subprocess.run(["/usr/bin/mount", "-o", "loop", str(image), str(left / "disk")], check=True)
        assert power_cut.remove_leftovers() == [left]
        assert not left.exists()
        assert str(left) not in mounted()
        assert str(other.root) in mounted()


def test_a_machine_without_the_rights_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in power_cut.missing()
    with pytest.raises(errors.MissingPart, match="root"):
        power_cut.PowerCutDisk()


def test_another_system_says_that_it_is_not_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux" in power_cut.missing()
