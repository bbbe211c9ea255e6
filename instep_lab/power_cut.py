"""A disk whose power can be cut: what was not synced is lost, as if the machine had died.

It is an ext4 file system in a file, mounted through a loop device. An ioctl of ext4 shuts the file
system down without writing anything: the page cache and the journal in memory are lost, and what
was synced is there after the next mount. This needs root on Linux, for the mount.

A keeper unmounts the disk when this process ends, however that happens. If the keeper is killed
too, the next disk finds the mount by its name and removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from instep import errors
from instep.local import keeper_client, processes

PREFIX = "instep-power-cut-"
PROGRAMS = ("mkfs.ext4", "mount", "umount", "sync")
SBIN = "/usr/sbin:/sbin"  # where these are, which is not on every user's PATH
MOUNTS = Path("/proc/mounts")
# _IOR('X', 125, __u32) of the kernel: EXT4_IOC_SHUTDOWN
SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
NO_LOG_FLUSH = struct.pack("I", 2)
# The keeper's child: when the owner has ended it gets SIGTERM, and unmounts.
WAIT = "trap 'umount -l \"$0\" 2>/dev/null; exit 0' TERM; while :; do sleep 3600 & wait $!; done"


def missing() -> str:
    """Return what this machine lacks for a power cut; an empty text if it lacks nothing."""
    if sys.platform != "linux":
        return "a power cut needs Linux, for ext4 and loop devices"
    lacking = [name for name in PROGRAMS if _program(name) is None]
    if os.geteuid() != 0:
        lacking.append("the rights of root, to mount a file system")
    if not Path("/dev/loop-control").exists():
        lacking.append("loop devices (no /dev/loop-control)")
    return f"a power cut needs {', '.join(lacking)}" if lacking else ""


class PowerCutDisk:
    """A file system in a file, in a temporary folder. `root` is where it is mounted."""

    def __init__(self, size_mb: int = 512) -> None:
        if lacking := missing():
            raise errors.MissingPart(lacking, "run it as root on Linux, outside a container")
        remove_leftovers()
        self._work = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self.root = self._work / "disk"
        self._image = self._work / "image"
        self._keeper = keeper_client.KeeperClient(
            temporary=self._work, end_signal=signal.SIGTERM, end_timeout_s=10.0
        )
        try:
            self.root.mkdir()
            with self._image.open("wb") as file:
                file.truncate(size_mb << 20)
            _run("mkfs.ext4", "-q", "-F", str(self._image))
            self._keeper.launch(["/bin/sh", "-c", WAIT, str(self.root)], log=self._work / "log")
            self._mount()
        except BaseException:
            self.close()
            raise

    def sync(self) -> None:
        """Write everything to the disk, as the operating system does after half a minute."""
        _run("sync", "-f", str(self.root))

    def sync_file(self, file: Path) -> None:
        """Write one file and its entry in the folder to the disk, as a careful program does."""
        for path in (file, file.parent):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def cut(self) -> None:
        """Cut the power: from now on nothing is written, and every access fails."""
        # imported here: the module exists on Unix only
        import fcntl

        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def restore(self) -> None:
        """Mount the disk again, with what was synced. Nothing may have files on it open."""
        _run("umount", str(self.root))
        self._mount()

    def close(self) -> None:
        """Unmount and delete the disk."""
        if _is_mounted(self.root):
            with contextlib.suppress(errors.InstepError):
                _run("umount", "-l", str(self.root))
        self._keeper.close()
        shutil.rmtree(self._work, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mount(self) -> None:
        # The loop device is freed with the mount.
        _run("mount", "-o", "loop", str(self._image), str(self.root))


def remove_leftovers() -> list[Path]:
    """Unmount and delete the disks of processes that were killed together with their keepers."""
    removed = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if not owner.isdigit() or processes.alive(int(owner)):
            continue
        if _is_mounted(folder / "disk"):
            _run("umount", "-l", str(folder / "disk"))
        shutil.rmtree(folder, ignore_errors=True)
        removed.append(folder)
    return removed


def _is_mounted(folder: Path) -> bool:
    # The kernel writes a blank in a path as \040.
    name = str(folder).replace(" ", "\\040")
    return any(line.split()[1] == name for line in MOUNTS.read_text("utf-8").splitlines())


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}")


def _run(name: str, *arguments: str) -> None:
    program = _program(name) or name
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise errors.InstepError(
            f"{name} failed: {(done.stderr or done.stdout).strip() or done.returncode}",
            "the machine may not allow loop devices, as in a container",
        )
