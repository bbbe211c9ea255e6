"""Check [spark] before a JVM is started: Spark itself reports errors late and vaguely."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from instep import errors

MEMORY_LEAST = 450 << 20  # Spark's own minimum
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
CONNECT_TIMEOUT_S = 5.0
_MEMORY = re.compile(r"(\d+)([kmgt])b?", re.IGNORECASE)
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*(\d+))?\])?")
_ELSEWHERE = re.compile(r"spark://\S+|yarn|k8s://\S+|local-cluster\[[\d, ]+\]")
MASTERS = (
    'use "local[*]" (all cores of this machine), "local[2]", "spark://host:7077", "yarn"'
    ' or "k8s://https://host:port"'
)


class SparkFiles(msgspec.Struct, frozen=True):
    """The files that a session uses: the jars of the Kafka connector, and an archive of classes.

    Resident tasks need no connector.
    """

    jars: tuple[Path, ...] = ()
    archive: Path | None = None


def check(master: str, memory: str) -> None:
    """Refuse a master or an amount of memory that Spark would not accept."""
    local = _LOCAL.fullmatch(master)
    if not local and not _ELSEWHERE.fullmatch(master):
        raise errors.SettingsError(
            f"spark.master is {master!r}, which is not a Spark master", MASTERS
        )
    if local and "0" in (local[1], local[2]):
        raise errors.SettingsError(
            f"spark.master is {master!r}: at least one thread is needed", MASTERS
        )
    amount = _MEMORY.fullmatch(memory)
    if not amount:
        raise errors.SettingsError(
            f"spark.memory is {memory!r}, which is not an amount of memory",
            'write e.g. memory = "640m" or "2g"',
        )
    if int(amount[1]) * UNITS[amount[2].lower()] < MEMORY_LEAST:
        raise errors.SettingsError(
            f"spark.memory is {memory!r}, but Spark needs at least 450m",
            'write e.g. memory = "640m"',
        )


def refuse_silent(master: str) -> None:
    """Raise Unreachable if no address of a standalone master accepts connections.

    Spark itself would try for more than a minute.
    """
    if not master.startswith("spark://"):
        return
    failures = [_failure(address) for address in master.removeprefix("spark://").split(",")]
    if all(failures):
        raise errors.Unreachable(
            f"no Spark master answers at {master}: {'; '.join(filter(None, failures))}",
            "start it (sbin/start-master.sh), or correct spark.master; local[*] needs no master",
        )


def _failure(address: str) -> str | None:
    """Return why no connection to host:port is possible; None if it is."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port or 7077
    except ValueError:
        return f"{address} is not host:port"
    try:
        socket.create_connection((host or "", port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return None
