"""The Spark session, set up for short micro-batches."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import socketserver
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from instep import errors, settings, spark_options
from instep.pipeline import jvm

STOP_TIMEOUT_MS = 2_500
JVM_END_TIMEOUT_S = 5.0
TASK_TRIES_MAX = 4
# ten times the defaults: what runs for every record is compiled to the utmost all the same, the rest costs more than it gives
COMPILER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
LISTS = {"spark.driver.extraClassPath": os.pathsep}
LOCK = "lock"
SOCKET_PATH_BYTES_MAX = 104  # of macOS; Linux takes 108
SOCKET_NAME_BYTES = len("/.01234567-0123-0123-0123-0123456789ab.sock")
LOCKLESS_S_MAX = 24 * 3600
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


class RunFolder:
    """A run's temporary folder: checkpoints, Spark's scratch files and its log. A checkpoint is a cache, so none is kept.

    A lock on a file in it says that the run lives. A process id would not: in another container it is another process.
    """

    def __init__(self) -> None:
        _sweep()
        try:
            self.path = Path(tempfile.mkdtemp(prefix="instep-run-"))
            self._lock = (self.path / LOCK).open("wb")
            self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise errors.InstepError(
                f"no folder can be made below {tempfile.gettempdir()} for Spark's temporary files: {error.strerror}",
                "make that folder writable, or set TMPDIR to one that is; then run the command again",
            ) from error
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        fcntl.flock(
            self._folder, fcntl.LOCK_EX
        )  # systemd-tmpfiles leaves a locked folder alone, however old its files are
        self.log = self.path / "spark.log"

    def is_lost(self) -> bool:
        """Return whether the folder or its lock file was removed, for example by a cleaner of temporary files."""
        try:
            return not os.path.samestat((self.path / LOCK).stat(), os.fstat(self._lock.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            return True

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


def open_session(
    spark: settings.Spark, jars: Sequence[Path], place: RunFolder, *, verbose: bool = False
) -> SparkSession:
    """Start Spark, or raise what keeps it from starting."""
    spark_options.check(spark.master, spark.memory)
    spark_options.refuse_silent(spark.master)
    if not verbose:
        logging.getLogger().addFilter(_is_news)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    given, options = jvm.without_arguments(spark.conf, place.path)
    conf = joined(_conf(spark, jars, place, verbose, options), given)
    conf |= {
        "spark.master": retrying(spark.master),
        "spark.app.name": conf.get("spark.app.name", "instep"),
    }
    builder = SparkSession.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        with nullcontext() if verbose else _stderr_to(place.log):
            jvm.launch(conf, place.path)
            session = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise _not_started(place.log, error) from error
    session.sparkContext.setLogLevel("WARN" if verbose else "ERROR")
    if not verbose:
        silence_lost_connections(session.sparkContext._accumulatorServer)
    return session


class Session:
    """A Spark session and the temporary folder that it needs. Both are replaced together when the folder is lost."""

    def __init__(
        self, spark: settings.Spark, jars: Sequence[Path], *, verbose: bool = False
    ) -> None:
        self._settings, self._jars, self._verbose = spark, jars, verbose
        self.place = RunFolder()
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            self._spark = open_session(
                self._settings, self._jars, self.place, verbose=self._verbose
            )
        return self._spark

    def is_lost(self) -> bool:
        return self.place.is_lost()

    def renew(self) -> None:
        """Replace the folder and Spark. The JVM is replaced too: it was started with the path of the old folder."""
        self.stop()
        _end_jvm()
        self.place.remove()
        self.place = RunFolder()

    def stop(self) -> None:
        spark, self._spark = self._spark, None
        if spark is not None:
            with suppress(Py4JError, OSError):
                spark.stop()


def _end_jvm() -> None:
    """End this process's JVM, so that the next session starts another."""
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with its standard input
    try:
        gateway.proc.wait(JVM_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


def silence_lost_connections(server: socketserver.BaseServer) -> None:
    """Make PySpark's server for task counters print no traceback when the JVM dies: `refuse_dead` reports that."""
    report = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | OSError):
            report(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign]


def _is_news(record: logging.LogRecord) -> bool:
    """py4j logs, to the root logger, tracebacks of errors that reach us as exceptions anyway."""
    return "py4j" not in record.pathname


def refuse_dead(session: SparkSession) -> None:
    """Raise when Spark's JVM is gone: every thread would wait for answers that nobody gives."""
    gateway = session.sparkContext._gateway
    if gateway is not None and gateway.proc.poll() is not None:
        raise errors.SparkGone("Spark's JVM is gone: killed, or out of memory")


def _not_started(log: Path, error: Exception) -> errors.InstepError:
    """Why Spark did not start: what the JVM gave as its reason, else that it was killed, else what PySpark says."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    causes = [
        line.strip()
        for line in lines
        if not line.startswith("\t") and ("Exception" in line or "rror" in line)
    ]
    gateway = SparkContext._gateway
    if not causes and (gateway is None or gateway.proc.poll() is not None):
        return errors.SparkGone(
            "Spark's JVM ended while it was starting: killed, or out of memory",
            jvm.memory_limit() or "",
        )
    remedy = (
        jvm.memory_limit()
        or "correct [spark] in the settings; with --debug Spark's whole log is shown"
    )
    return errors.SettingsError(
        f"Spark could not start: {(causes or str(error).splitlines())[0][:300]}", remedy
    )


@contextmanager
def _stderr_to(file: Path) -> Iterator[None]:
    """Let what is started now, the JVM and its workers, write to the log what it would write to the terminal."""
    sys.stderr.flush()
    kept = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _has_room_for_sockets(place: RunFolder) -> bool:
    """Whether the path of a socket in a temporary folder is short enough for the system. Otherwise Spark uses ports."""
    folders = (place.path, Path(tempfile.gettempdir()))
    return (
        max(len(os.fsencode(folder)) for folder in folders) + SOCKET_NAME_BYTES
        < SOCKET_PATH_BYTES_MAX
    )


def retrying(master: str) -> str:
    """A local master tries a failed task again, as every other master does."""
    local = re.fullmatch(r"local(?:\[([0-9*]+)\])?", master)
    return f"local[{local[1] or '1'},{TASK_TRIES_MAX}]" if local else master


def joined(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """What the settings say goes before what we say, and with it where a value is a list."""
    both = {
        name: between.join((ours[name], given[name]))
        for name, between in LISTS.items()
        if name in ours and name in given
    }
    return {**ours, **given, **both}


def _conf(
    spark: settings.Spark,
    jars: Sequence[Path],
    place: RunFolder,
    verbose: bool,
    given: Sequence[str] = (),
) -> dict[str, str]:
    options = [
        f"-Dinstep.log={place.log}",
        "-XX:+UseSerialGC",
        f"-Djava.io.tmpdir={place.path}",
        *COMPILER,
        *_archived(jars),
    ]
    options += given
    if not verbose:
        options.append(f"-Dlog4j2.configurationFile={LOG_SETTINGS}")
    conf = {
        "spark.driver.memory": spark.memory,
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.task.maxFailures": str(TASK_TRIES_MAX),
        "spark.scheduler.mode": "FAIR",
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|keystore",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(place.path / "local"),
        "spark.sql.warehouse.dir": str(place.path / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
        "spark.sql.streaming.stopTimeout": str(STOP_TIMEOUT_MS),
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        # the three that shorten a micro-batch most
        "spark.python.unix.domain.socket.enabled": "true"
        if _has_room_for_sockets(place)
        else "false",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    }
    if spark.master.startswith("local"):
        # on the class path from the start, where the archive of classes has them too
        conf |= {"spark.driver.extraClassPath": os.pathsep.join(map(str, jars))}
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # its ports take nobody else on this machine
        conf |= {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(32)}
        conf |= {
            "spark.python.daemon.module": "instep.pipeline.daemon"
        }  # executors elsewhere may be sent instep only later
    else:
        conf |= {"spark.jars": ",".join(map(str, jars))}
    return conf


def _archived(jars: Sequence[Path]) -> list[str]:
    """The archive of this Spark's classes that may lie beside the jars; one that does not fit is passed over by the JVM."""
    home = hashlib.sha256(str(Path(pyspark.__file__).parent).encode()).hexdigest()[:12]
    found = [
        archive for jar in jars[:1] if (archive := jar.with_name(f"classes-{home}.jsa")).exists()
    ]
    return [f"-XX:SharedArchiveFile={archive}" for archive in found] + [
        "-Xlog:cds=off",
        "-Xlog:class+path=off",
    ]


def _sweep() -> None:
    """Remove the folders of runs that were killed."""
    for folder in Path(tempfile.gettempdir()).glob("instep-run-*"):
        if _is_left_behind(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_left_behind(folder: Path) -> bool:
    """Whether nobody holds the folder's lock. One without a lock was made just now, or long ago by an earlier release."""
    try:
        with (folder / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        return folder.is_dir() and time.time() - folder.stat().st_mtime > LOCKLESS_S_MAX
    except OSError:  # held by a run, or another user's
        return False
