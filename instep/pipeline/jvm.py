"""Starting Spark's JVM with its settings in files that only this user can read.

Every user of a machine sees the arguments of every process, for as long as it runs. PySpark would pass each setting as an
argument, secrets among them.
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
FILES_LEAST = 512  # Spark's jars, the connections of a few pipelines, and the files of a batch


def launch(conf: Mapping[str, str], folder: Path) -> None:
    """Start the JVM, unless this process has one; the settings do not stand in its arguments."""
    if SparkContext._gateway is not None:
        return
    raise_file_limit()
    file = folder / "spark.properties"
    write_private(
        file,
        "".join(
            f"{_escaped(name, is_name=True)}={_escaped(value)}\n" for name, value in conf.items()
        ),
    )
    before = os.environ.get(ARGUMENTS)
    # spark-defaults.conf holds as well, as it does without a file of one's own
    os.environ[ARGUMENTS] = (
        f"--load-spark-defaults --properties-file {shlex.quote(str(file))} {before or 'pyspark-shell'}"
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
    """The settings that a user gave, without options for the JVM; and the option that lets the JVM read those from a file."""
    options = [given[name] for name in JVM_OPTIONS if given.get(name)]
    rest = {name: value for name, value in given.items() if name not in JVM_OPTIONS}
    if not options:
        return rest, []
    file = folder / OPTIONS_FILE
    write_private(file, "\n".join(options) + "\n")
    return rest, [f"-XX:VMOptionsFile={file}"]


def write_private(file: Path, text: str) -> None:
    """Write a file that nobody but its owner can read, at any time."""
    file.unlink(missing_ok=True)
    with os.fdopen(
        os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as opened:
        opened.write(text)


def raise_file_limit() -> None:
    """Let this process and the JVM open as many files as the machine allows them; refuse a limit that is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = FILES_WANTED if hard == unlimited else min(FILES_WANTED, hard)
    if soft != unlimited and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != unlimited and soft < FILES_LEAST:
        raise errors.SettingsError(
            f"this process may open only {soft} files (ulimit -n), and Spark needs {FILES_LEAST} at least",
            f"raise the limit: ulimit -n {FILES_WANTED}; for a service of systemd: LimitNOFILE={FILES_WANTED}",
        )


def memory_limit() -> str | None:
    """The remedy where a limit on the address space may keep a JVM from starting; None where there is no such limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    return f"a JVM needs more than the {limit // 2**20} MB of address space that `ulimit -v` allows: ulimit -v unlimited"


def _escaped(text: str, *, is_name: bool = False) -> str:
    """A name or a value as Java's properties files write it."""
    escaped = (
        text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    )
    if is_name:
        for sign in " :=#!":
            escaped = escaped.replace(sign, f"\\{sign}")
    return f"\\{escaped}" if escaped.startswith(" ") else escaped
