"""The conditions of a measurement: the machine, and the versions of all software involved."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import psutil

import instep
from instep import errors
from instep.local import artifacts, java
from instep.sinks import connecting, target
from instep.sinks import facts as sink_facts

GIB = 1 << 30
UNKNOWN = "unknown"
BLOCK_DEVICES = Path("/sys/dev/block")


def facts() -> dict[str, str]:
    """Return what is known about the machine."""
    return {
        # psutil does not know the processor's name.
        "cpu": cpu_model(_text(Path("/proc/cpuinfo")))
        or platform.processor()
        or platform.machine()
        or UNKNOWN,
        "cores": _cores(),
        "memory": f"{psutil.virtual_memory().total / GIB:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "disk": disk(Path(tempfile.gettempdir())),
    }


def releases(
    databases: Mapping[str, str] | None = None, *, bootstrap: str | None = None
) -> dict[str, str]:
    """Return the version of each component; `databases` maps the name of a target to its URL.

    The version of a user's cluster is not known, so its address is given instead.
    """
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
    """Return the version that a database reports."""
    try:
        with connecting.connection(target.database_url(url)) as opened:
            version = opened.dialect.server_version_info or ()
    except errors.InstepError:
        return UNKNOWN
    return ".".join(str(part) for part in version if isinstance(part, int)) or UNKNOWN


def cpu_model(cpuinfo: str) -> str | None:
    """Return the processor's name from /proc/cpuinfo, if it is given there."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return " ".join(found[1].split()) if found else None


def disk(folder: Path) -> str:
    """Describe the storage of a folder: file system, device, and the kind of disk."""
    kind = sink_facts.file_system(folder) or UNKNOWN
    number = folder.stat().st_dev
    device = (BLOCK_DEVICES / f"{os.major(number)}:{os.minor(number)}").resolve()
    for queue in (device / "queue", device.parent / "queue"):  # a partition uses its disk's queue
        if flag := _text(queue / "rotational").strip():
            rotational = "rotational" if flag == "1" else "not rotational"
            return f"{kind} on {device.name} ({rotational}, according to the kernel)"
    return kind


def _cores() -> str:
    """Return the number of usable cores; in a container they may be fewer than exist."""
    total = os.cpu_count()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    return str(total or UNKNOWN) if usable == total else f"{usable} of {total}"


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
