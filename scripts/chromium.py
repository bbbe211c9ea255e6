"""A headless Chromium for tests and pictures, from Debian's packages, without root.

apt resolves and verifies the packages as it would for an installation; they are unpacked into the
user's cache instead. INSTEP_TEST_CHROMIUM names another executable.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from instep import errors
from instep.local import paths
from instep_bench import chromium
from instep_bench.chromium import MARK, PACKAGE, Chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EXECUTABLE = "INSTEP_TEST_CHROMIUM"
PLAN = ("apt-get", "install", "--print-uris", "-y", "--no-install-recommends")
TIMEOUT_S = 300.0


def find() -> Chromium:
    """Return Chromium; unpack it into the cache if it is not there. Raise MissingPart if not."""
    if named := os.environ.get(EXECUTABLE):
        return chromium.at(Path(named))
    return chromium.unpacked(chromium.kept() or _fetch())


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium, and close it at the end."""
    with chromium.opened(find()) as opened:
        yield opened


def _fetch() -> Path:
    """Download and unpack the packages that an installation would add to this machine."""
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise errors.MissingPart(
                f"Chromium can only be fetched with Debian's {program}",
                f"install Chromium, and name it: export {EXECUTABLE}=PATH",
            )
    cache = paths.cache()
    with paths.locked(cache / f"{PACKAGE}.lock"):
        if kept := chromium.kept():  # by another process, meanwhile
            return kept
        plan = _run([*PLAN, PACKAGE], cache)
        # 'URI' NAME_VERSION_ARCHITECTURE.deb SIZE DIGEST
        files = [line.split()[1] for line in plan.splitlines() if line.startswith("'")]
        digest = hashlib.sha256("\n".join(sorted(files)).encode()).hexdigest()[:12]
        with tempfile.TemporaryDirectory(prefix=f".{PACKAGE}.", dir=cache) as temporary:
            work, complete = Path(temporary), Path(temporary) / "complete"
            complete.mkdir()
            chosen = [_versioned(file) for file in files]
            _run(["apt-get", "download", *(chosen or [PACKAGE])], work)
            for package in sorted(work.glob("*.deb")):
                _run(["dpkg", "-x", str(package), str(complete)], work)
            (complete / MARK).touch()
            folder = cache / f"{PACKAGE}-{digest}"
            complete.rename(folder)
        return folder


def _versioned(file: str) -> str:
    """Return NAME=VERSION of a package's file name, in which apt escapes colons."""
    name, version, _ = file.split("_")
    return f"{name}={version.replace('%3a', ':').replace('%7e', '~')}"


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise errors.MissingPart(
            f"Chromium could not be fetched: {command[0]} took more than {TIMEOUT_S:.0f} s",
            "check the network, then try again",
        ) from late
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise errors.MissingPart(
            f"Chromium could not be fetched: {last}",
            f"check apt and the network, or name another: export {EXECUTABLE}=PATH",
        )
    return done.stdout
