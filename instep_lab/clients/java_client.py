"""The lab's client with Kafka's Java library: compiled once, then run in a process or a host.

`java/LabClient.java` reads the same plans and writes the same history as the clients in Python.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from instep import errors
from instep.local import artifacts, java, paths
from instep_lab.clients.library import Library
from instep_lab.clients.publishing import Publishing

SOURCE = Path(__file__).parent / "java" / "LabClient.java"
MAIN = "LabClient"
CONNECTION = "INSTEP_LAB_CONNECTION"  # the variable with the connection settings, as JSON
NEEDED = ("kafka-clients-", "jackson-", "slf4j-api-", "lz4-java-", "snappy-java-", "zstd-jni-")
OPTIONS = ("-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")
# It lives for seconds: Java's optimising compiler would never pay off, except for rates.
SHORT_LIVED = "-XX:TieredStopAtLevel=1"
COMPILE_TIMEOUT_S = 120
REMEDY = (
    "install a JDK, which can compile: Debian and Ubuntu `apt install openjdk-17-jdk-headless`,"
    " macOS `brew install openjdk@17`; or set JAVA_HOME to an installed one"
)


def command(*more_options: str, optimised: bool = False) -> list[str]:
    """Return the command that runs the client, without its arguments."""
    folder, jars = _compiled(), _jars()
    class_path = os.pathsep.join(map(str, (folder, *jars)))
    options = OPTIONS if optimised else (SHORT_LIVED, *OPTIONS)
    return [str(java.find()), *options, *more_options, "-cp", class_path, MAIN]


def rejection(config: Mapping[str, Any]) -> str | None:
    """Return why the producer rejects these settings; None if it accepts them."""
    plan = Publishing(topic="none", count=0, config=dict(config), library=Library.JAVA)
    with tempfile.TemporaryDirectory(prefix="instep-lab-") as folder:
        plan_file = Path(folder) / "plan.json"
        plan_file.write_bytes(msgspec.json.encode(plan))
        ended = subprocess.run(
            [*command(), plan_file, Path(folder) / "history.jsonl"],
            env={**os.environ, CONNECTION: json.dumps({"bootstrap.servers": "127.0.0.1:1"})},
            capture_output=True,
            text=True,
            check=False,
            timeout=COMPILE_TIMEOUT_S,
        )
    rejected = re.search(r"ConfigException: (.*)", ended.stderr)
    if rejected:
        return rejected[1]
    if ended.returncode != 0:
        raise errors.InstepError(f"the lab's Java client failed: {ended.stderr.strip()[-300:]}")
    return None


def release() -> str:
    """Return the release of the Java library."""
    for jar in _jars():
        if named := re.fullmatch(r"kafka-clients-(.+)\.jar", jar.name):
            return named[1]
    raise errors.InstepError("no Kafka client among the jars")


def _jars() -> list[Path]:
    return [jar for jar in artifacts.jars("kafka") if jar.name.startswith(NEEDED)]


def _compiled() -> Path:
    """Return the folder with the compiled classes; compile them if the source has changed."""
    program, version = java.find_version()
    digest = hashlib.sha256(SOURCE.read_bytes())
    digest.update(f"{version} {release()}".encode())
    cache = paths.cache()
    folder = cache / f"lab-client-{digest.hexdigest()[:12]}"
    if folder.exists():
        return folder
    with paths.locked(cache / "lab-client.lock"), paths.explained(cache):
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix=".lab-client.", dir=cache) as work:
                _compile(program, Path(work) / "classes")
                shutil.move(Path(work) / "classes", folder)
    return folder


def _compile(program: Path, folder: Path) -> None:
    class_path = os.pathsep.join(map(str, _jars()))
    compiler = [str(program), "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    done = subprocess.run(
        [*compiler, "-nowarn", "-d", str(folder), "-cp", class_path, str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=COMPILE_TIMEOUT_S,
    )
    if done.returncode == 0:
        return
    shown = f"{done.stderr}{done.stdout}".strip()
    if "jdk.compiler not found" in shown:
        raise errors.MissingPart(f"{program} cannot compile the lab's Java client", REMEDY)
    raise errors.InstepError(f"the lab's Java client does not compile: {shown[:500]}")
