"""Start Spark's JVM with its settings in files that only this user can read.

Every user of a machine can see the arguments of every process. PySpark would pass all settings,
including secrets, as arguments.
"""

from __future__ import annotations

import os
import resource
import shlex
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkContext

from instep import errors

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
JVM_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
OPTIONS_FILE = "java.options"
FILES_WANTED = 4096
FILES_MIN = 512  # Spark's jars, the connections of a few pipelines, and the files of a batch


def launch(conf: Mapping[str, str], folder: Path) -> None:
    """Start the JVM, unless this process has one. Its arguments do not contain the settings."""
    if SparkContext._gateway is not None:
        return
    raise_file_limit()
    file = folder / "spark.properties"
    lines = [f"{_escaped(name, is_name=True)}={_escaped(value)}\n" for name, value in conf.items()]
    write_private(file, "".join(lines))
    before = os.environ.get(ARGUMENTS)
    # Without --load-spark-defaults, a properties file would disable spark-defaults.conf.
    os.environ[ARGUMENTS] = (
        f"--load-spark-defaults --properties-file {shlex.quote(str(file))}"
        f" {before or 'pyspark-shell'}"
    )
    try:
        SparkContext._ensure_initialized()
    finally:
        if before is None:
            del os.environ[ARGUMENTS]
        else:
            os.environ[ARGUMENTS] = before
        file.unlink(missing_ok=True)
        (folder / OPTIONS_FILE).unlink(missing_ok=True)


def without_arguments(given: Mapping[str, str], folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return the settings without JVM options, and the option that reads these from a file."""
    options = [given[name] for name in JVM_OPTIONS if given.get(name)]
    rest = {name: value for name, value in given.items() if name not in JVM_OPTIONS}
    if not options:
        return rest, []
    file = folder / OPTIONS_FILE
    write_private(file, "\n".join(options) + "\n")
    return rest, [f"-XX:VMOptionsFile={file}"]


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, from the moment it exists."""
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)


def raise_file_limit() -> None:
    """Raise the limit of open files for this process and the JVM; refuse one that is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = FILES_WANTED if hard == unlimited else min(FILES_WANTED, hard)
    if soft != unlimited and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != unlimited and soft < FILES_MIN:
        raise errors.SettingsError(
            f"this process may open only {soft} files (ulimit -n);"
            f" Spark needs at least {FILES_MIN}",
            f"raise the limit: ulimit -n {FILES_WANTED};"
            f" for a systemd service: LimitNOFILE={FILES_WANTED}",
        )


def memory_limit() -> str | None:
    """Return the remedy if a limit on the address space may keep a JVM from starting, else None."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    return (
        f"a JVM needs more than the {limit // 2**20} MB of address space that `ulimit -v` allows:"
        " ulimit -v unlimited"
    )


def _escaped(text: str, *, is_name: bool = False) -> str:
    """Escape a name or a value for a Java properties file."""
    escaped = (
        text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    )
    if is_name:
        for sign in " :=#!":
            escaped = escaped.replace(sign, f"\\{sign}")
    return f"\\{escaped}" if escaped.startswith(" ") else escaped
