"""On what was measured: the machine, and the releases of everything that took part."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import instep
from instep import errors
from instep.local import artifacts, java
from instep.sinks import inspection, target

GIB = 1 << 30
UNKNOWN = "unknown"
BLOCK_DEVICES = Path("/sys/dev/block")
MOUNTS = Path("/proc/self/mounts")


def facts() -> dict[str, str]:
    """Return what is known about the machine."""
    return {
        "cpu": cpu_model(_text(Path("/proc/cpuinfo")))
        or platform.processor()
        or platform.machine()
        or UNKNOWN,
        "cores": _cores(),
        "memory": memory(_text(Path("/proc/meminfo"))),
        "kernel": f"{platform.system()} {platform.release()}",
        "disk": disk(Path(tempfile.gettempdir())),
    }


def releases(
    databases: Mapping[str, str] | None = None, *, bootstrap: str | None = None
) -> dict[str, str]:
    """What took part, with its release; `databases` are URLs by the name of their target. A cluster of the user's has its own."""
    found = {
        "instep": instep.__version__,
        "python": platform.python_version(),
        "java": _java(),
        "kafka": f"that of {bootstrap}" if bootstrap else artifacts.KAFKA_VERSION,
        "spark": _installed("pyspark"),
        "confluent-kafka": _installed("confluent-kafka"),
    }
    return {**found, **{name: database(url) for name, url in (databases or {}).items()}}


def database(url: str) -> str:
    """Return the release that a database reports."""
    try:
        with inspection.connection(target.database_url(url)) as opened:
            version = opened.dialect.server_version_info or ()
    except errors.InstepError:
        return UNKNOWN
    return ".".join(str(part) for part in version if isinstance(part, int)) or UNKNOWN


def cpu_model(cpuinfo: str) -> str | None:
    """The processor's name in /proc/cpuinfo, which not every kind of processor has there."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return " ".join(found[1].split()) if found else None


def memory(meminfo: str) -> str:
    found = re.search(r"^MemTotal:\s*(\d+) kB$", meminfo, re.MULTILINE)
    return f"{int(found[1]) * 1024 / GIB:.1f} GiB" if found else UNKNOWN


def disk(folder: Path) -> str:
    """What lies below a folder: the file system, its device, and what kind of disk the kernel takes that for."""
    kind = file_system(_text(MOUNTS), folder.resolve())
    number = folder.stat().st_dev
    device = (BLOCK_DEVICES / f"{os.major(number)}:{os.minor(number)}").resolve()
    for queue in (device / "queue", device.parent / "queue"):  # a partition has its disk's
        if turns := _text(queue / "rotational").strip():
            return f"{kind} on {device.name} ({'rotational' if turns == '1' else 'not rotational'}, the kernel says)"
    return kind


def file_system(mounts: str, folder: Path) -> str:
    """The kind of file system that a folder lies on: that of the nearest mount above it."""
    lines = [line.split() for line in mounts.splitlines()]
    above = [line for line in lines if len(line) > 2 and folder.is_relative_to(line[1])]
    return max(above, key=lambda line: len(line[1]))[2] if above else UNKNOWN


def _cores() -> str:
    """Those that this process may use, which in a container may be fewer than there are."""
    there = os.cpu_count()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    return str(there or UNKNOWN) if usable == there else f"{usable} of {there}"


def _java() -> str:
    try:
        return str(java.find_version()[1])
    except errors.MissingPart:
        return "none"


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
