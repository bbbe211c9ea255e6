"""Find the Java for brokers and Spark, in JAVA_HOME or on the PATH, and check its version."""

from __future__ import annotations

import functools
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

from instep import errors

VERSION_MIN = 17
REMEDY = (
    "install Java 17 or newer: Debian and Ubuntu `apt install openjdk-17-jre-headless`, macOS"
    " `brew install openjdk@17`; or set JAVA_HOME to an installed one"
)


def find() -> Path:
    """Return the java program. It is checked once per process."""
    return find_version()[0]


def find_version() -> tuple[Path, int]:
    """Return the java program and its feature version."""
    return _find(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


def parse_version(text: str) -> int | None:
    """Return the feature version from `java -version`: 17 of "17.0.15", 8 of "1.8.0_442"."""
    match = re.search(r'version "(?:1\.)?(\d+)', text) or re.search(
        r"^(?:openjdk|java) (?:1\.)?(\d+)", text, re.MULTILINE
    )
    return int(match[1]) if match else None


@functools.cache
def _find(java_home: str, path: str) -> tuple[Path, int]:
    program = Path(java_home, "bin", "java") if java_home else None
    if program and not os.access(program, os.X_OK):
        raise errors.MissingPart(
            f"Java is missing: JAVA_HOME is {java_home}, which has no bin/java", REMEDY
        )
    if program is None:
        found = shutil.which("java", path=path)
        if found is None:
            raise errors.MissingPart(
                "Java is missing: no `java` on the PATH, and JAVA_HOME is not set", REMEDY
            )
        program = Path(found)
    try:
        run = subprocess.run(
            [program, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise errors.MissingPart(
            f"Java is missing: {program} cannot be run: {error}", REMEDY
        ) from error
    shown = run.stderr + run.stdout
    version = parse_version(shown)
    if run.returncode != 0 or version is None:
        output = " ".join(shown.split())[:200] or f"nothing, exit status {run.returncode}"
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            raise errors.MissingPart(
                f"Java cannot start within {limit // 2**20} MB of address space (ulimit -v):"
                f" {program} printed {output!r}",
                "raise the limit: ulimit -v unlimited",
            )
        raise errors.MissingPart(
            f"Java does not work: {program} -version printed {output!r}", REMEDY
        )
    if version < VERSION_MIN:
        raise errors.MissingPart(
            f"Java {VERSION_MIN} or newer is needed; {program} is Java {version}", REMEDY
        )
    return program, version
