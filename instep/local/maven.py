"""Fetch jars from Maven Central over HTTPS.

The lock names each module, so nothing has to be resolved and no JVM is needed. A separate process
fetches, under a keeper, so that the waiting process can be interrupted or killed at any time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
import time
import urllib.request
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

import instep
from instep import errors
from instep.local import keeper_client, paths
from instep.waiting import retrying

# The environment variable that names a repository other than Maven Central.
REPOSITORY = "INSTEP_MAVEN_REPOSITORY"
ROOT = re.compile(rb"https://[\x21-\x7e]+/maven2(?=/)")
THREADS = 4
TIMEOUT_S = 30.0
TRIES = 3
CHUNK_BYTES = 1 << 18
TICK_S = 0.1
FULL_DISK_BYTES = 1 << 20
PROGRAM = (
    "import sys; sys.path.insert(0, {root!r});"
    " from instep.local import maven; maven.main(sys.argv[1:])"
)


def retrieve(
    keeper: keeper_client.KeeperClient, work: Path, name: str, modules: Sequence[str]
) -> list[Path]:
    """Fetch the jars of these modules (ORG:NAME:REVISION) to work/jars."""
    folder, log = work / "jars", work / "fetch.log"
    folder.mkdir()
    program = PROGRAM.format(root=str(Path(instep.__file__).parent.parent))
    keeper.launch(
        [sys.executable, "-I", "-S", "-c", program, repository(), str(folder), *modules], log=log
    )
    progress = DownloadProgress(f"fetching {name}")
    try:
        while (status := keeper.poll()) is None:
            progress.show(_fetched(folder), _total(folder))
            time.sleep(TICK_S)
    finally:
        progress.end()
    if status != 0:
        raise refusal(name, log.read_text(encoding="utf-8", errors="replace"), work)
    progress.done(_fetched(folder))
    return sorted(folder.glob("*.jar"))


def repository() -> str:
    """Return the address of the repository.

    The environment may name it; otherwise it is Maven Central's, as in the Ivy inside pyspark.
    """
    if named := os.environ.get(REPOSITORY):
        return named.rstrip("/")
    spark = importlib.util.find_spec("pyspark")
    for folder in (spark.submodule_search_locations or []) if spark else []:
        for jar in Path(folder).glob("jars/ivy-*.jar"):
            with zipfile.ZipFile(jar) as opened:
                code = opened.read("org/apache/ivy/plugins/resolver/IBiblioResolver.class")
            if address := ROOT.search(code):
                return address[0].decode()
    raise errors.MissingPart(
        "the address of Maven Central is unknown, because pyspark, which contains it, is missing",
        f"install pyspark, or name a Maven repository: export {REPOSITORY}=https://HOST/PATH",
    )


def refusal(name: str, log: str, work: Path) -> errors.InstepError:
    """Return the error for a failed fetch; the last line of its log says why."""
    # On a full disk, even the log may not say so.
    if paths.tells_full_disk(log) or shutil.disk_usage(work).free < FULL_DISK_BYTES:
        return errors.InstepError(
            f"no space left below {work.parent} to fetch {name}",
            "free some space, or set INSTEP_HOME",
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    reason = lines[-1] if lines else "no reason was given"
    return errors.MissingPart(
        f"{name} could not be fetched from Maven Central: {reason}",
        "check the network (behind a proxy: export https_proxy=http://HOST:PORT),"
        " then run the command again",
    )


def _fetched(folder: Path) -> int:
    total = 0
    for file in folder.iterdir():
        if file.suffix in (".jar", ".part"):
            try:
                total += file.stat().st_size
            except FileNotFoundError:  # renamed just now
                continue
    return total


def _total(folder: Path) -> int | None:
    """Return the total size of all jars, once it is known."""
    try:
        return int(json.loads((folder / "total.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


class DownloadProgress:
    """Megabytes fetched: a progress bar on a terminal, else a line at the start and the end."""

    def __init__(self, what: str) -> None:
        # the process that fetches imports this module without site-packages
        from instep import terminal

        self._what = what
        self._line = terminal.ProgressLine(sys.stderr)
        self._started = time.monotonic()
        if not terminal.is_live(sys.stderr):
            self._write(f"{what} …")

    def show(self, fetched: int, total: int | None) -> None:
        """Show how much has been fetched."""
        self._line.update(self._what, fetched / 1e6, total / 1e6 if total else None, "MB")

    def done(self, fetched: int) -> None:
        """Print how much was fetched and how long it took."""
        seconds = time.monotonic() - self._started
        self._write(f"{self._what}: {fetched / 1e6:.0f} MB in {seconds:.0f} s")

    def end(self) -> None:
        """Remove the progress bar."""
        self._line.clear()

    def _write(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


# --- the process that fetches ---------------------------------------------------------------------


def main(arguments: Sequence[str]) -> None:
    """Fetch modules into a folder. An error is the last line of stderr, with exit status 1."""
    root, folder, modules = arguments[0], Path(arguments[1]), arguments[2:]
    addresses = [_address(root, module) for module in modules]
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            sizes = pool.map(_size, addresses)
            jars = [pool.submit(_fetch_with_retries, address, folder) for address in addresses]
            (folder / "total.json").write_text(json.dumps(sum(sizes)), encoding="utf-8")
            for jar in jars:
                jar.result()
    except (OSError, HTTPException) as failure:
        sys.stderr.write(f"{failure}\n")
        sys.exit(1)


def _address(root: str, module: str) -> str:
    org, artifact, revision = module.split(":")
    return f"{root}/{org.replace('.', '/')}/{artifact}/{revision}/{artifact}-{revision}.jar"


def _size(address: str) -> int:
    request = urllib.request.Request(address, method="HEAD")  # noqa: S310
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        return int(answer.headers.get("Content-Length") or 0)


def _fetch_with_retries(address: str, folder: Path) -> None:
    def may_retry(error: Exception) -> bool:
        # Another try helps neither a full disk nor a missing file.
        is_absent = isinstance(error, HTTPError) and error.code < 500
        is_passing = isinstance(error, (OSError, HTTPException))
        return is_passing and not is_absent and not paths.is_full(error)

    retrying(lambda: _fetch(address, folder), may_retry, tries_max=TRIES, pause_s=1.0)


def _fetch(address: str, folder: Path) -> None:
    file = folder / address.rpartition("/")[2]
    part = file.with_suffix(".part")
    with (
        urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer,  # noqa: S310
        part.open("wb") as opened,
    ):
        size = int(answer.headers.get("Content-Length") or 0)
        while chunk := answer.read(CHUNK_BYTES):
            opened.write(chunk)
    if size and part.stat().st_size != size:
        raise ConnectionError(f"the connection ended within {file.name}")
    part.rename(file)
