"""What [spark] says, checked before a JVM is started: Spark itself answers late, or in words of its own."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

from instep import errors

MEMORY_LEAST = 450 << 20  # what Spark itself asks for
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
CONNECT_TIMEOUT_S = 5.0
_MEMORY = re.compile(r"(\d+)([kmgt])b?", re.IGNORECASE)
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*(\d+))?\])?")
_ELSEWHERE = re.compile(r"spark://\S+|yarn|k8s://\S+|local-cluster\[[\d, ]+\]")
MASTERS = 'use "local[*]" (all cores of this machine), "local[2]", "spark://host:7077", "yarn" or "k8s://https://host:port"'


def check(master: str, memory: str) -> None:
    """Refuse a master or an amount of memory that Spark would not take."""
    local = _LOCAL.fullmatch(master)
    if not local and not _ELSEWHERE.fullmatch(master):
        raise errors.SettingsError(f"spark.master is {master!r}, which is no Spark master", MASTERS)
    if local and "0" in (local[1], local[2]):
        raise errors.SettingsError(
            f"spark.master is {master!r}: at least one thread is needed", MASTERS
        )
    amount = _MEMORY.fullmatch(memory)
    if not amount:
        raise errors.SettingsError(
            f"spark.memory is {memory!r}, which is no amount of memory",
            'write e.g. memory = "640m" or "2g"',
        )
    if int(amount[1]) * UNITS[amount[2].lower()] < MEMORY_LEAST:
        raise errors.SettingsError(
            f"spark.memory is {memory!r}, and Spark needs 450m at least",
            'write e.g. memory = "640m"',
        )


def refuse_silent(master: str) -> None:
    """Raise when nobody listens at any address of a standalone master; Spark would try for more than a minute."""
    if not master.startswith("spark://"):
        return
    failures = [_failure(address) for address in master.removeprefix("spark://").split(",")]
    if all(failures):
        raise errors.Unreachable(
            f"no Spark master answers at {master}: {'; '.join(filter(None, failures))}",
            "start it (sbin/start-master.sh), or correct spark.master; local[*] needs none",
        )


def _failure(address: str) -> str | None:
    """Why no connection can be made to host:port; None when one can."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port or 7077
    except ValueError:
        return f"{address} is no host:port"
    try:
        socket.create_connection((host or "", port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return None
