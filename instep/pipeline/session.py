"""The Spark session, set up for a quick start and for short micro-batches."""

from __future__ import annotations

import fcntl
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

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from instep import errors, settings, spark_options
from instep.pipeline import jvm
from instep.spark_options import SparkFiles

STOP_TIMEOUT_MS = 2_500
JVM_END_TIMEOUT_S = 5.0
TASK_TRIES_MAX = 4
# Resident tasks do their work in Python: what the JVM does is not worth the optimising compiler.
QUICK_COMPILER = ("-XX:TieredStopAtLevel=1",)
# For queries, ten times the defaults. Code that runs for every record is still fully optimised;
# compiling the rest costs more than it saves.
COMPILER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
# Settings whose values are lists, with their separators.
LISTS = {"spark.jars": ","}
LOCK = "lock"
SOCKET_PATH_BYTES_MAX = 104  # on macOS; Linux allows 108
SOCKET_NAME_BYTES = len("/.01234567-0123-0123-0123-0123456789ab.sock")
LOCKLESS_S_MAX = 24 * 3600
# What the daemon of the Python workers loads before it forks them (see daemon.py).
RESIDENT = "instep.pipeline.resident.pipeline_share"
QUERIES = "instep.pipeline.transformed.worker"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


class RunFolder:
    """The temporary folder of a run: checkpoints, Spark's scratch files and its log.

    It is removed at the end, since checkpoints are only a cache. A lock on a file in it shows that
    the run is alive. A process id would not: in another container it is another process.
    """

    def __init__(self) -> None:
        _sweep()
        try:
            self.path = Path(tempfile.mkdtemp(prefix="instep-run-"))
            self._lock = (self.path / LOCK).open("wb")
            self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise errors.InstepError(
                "cannot create a folder for Spark's temporary files below"
                f" {tempfile.gettempdir()}: {error.strerror}",
                "make that folder writable, or set TMPDIR to one that is; then run the command"
                " again",
            ) from error
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # systemd-tmpfiles leaves a locked folder alone, however old its files are.
        fcntl.flock(self._folder, fcntl.LOCK_EX)
        self.log = self.path / "spark.log"

    def is_lost(self) -> bool:
        """Return whether the folder or its lock file was removed, for example by a cleanup job."""
        try:
            return not os.path.samestat((self.path / LOCK).stat(), os.fstat(self._lock.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            return True

    def remove(self) -> None:
        """Remove the folder and release its locks."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


def open_session(
    spark: settings.Spark, files: SparkFiles, folder: RunFolder, *, verbose: bool = False
) -> SparkSession:
    """Start Spark with SQL, or raise an error that says why it does not start."""
    open_context(spark, files, folder, verbose=verbose)
    return SparkSession.builder.getOrCreate()  # on the active context


def open_context(
    spark: settings.Spark, files: SparkFiles, folder: RunFolder, *, verbose: bool = False
) -> SparkContext:
    """Start Spark without SQL, which takes half a second less."""
    spark_options.check(spark.master, spark.memory)
    spark_options.refuse_silent(spark.master)
    if not verbose:
        logging.getLogger().addFilter(_is_not_py4j)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # The workers' daemon inherits this from the JVM.
    os.environ["INSTEP_PRELOAD"] = ",".join([RESIDENT, *([QUERIES] if files.jars else [])])
    given, options = jvm.without_arguments(spark.conf, folder.path)
    conf = joined(_conf(spark, files, folder, verbose, options), given)
    conf |= {
        "spark.master": with_task_retries(spark.master),
        "spark.app.name": conf.get("spark.app.name", "instep"),
    }
    try:
        with nullcontext() if verbose else _stderr_to(folder.log):
            jvm.launch(conf, folder.path)
            context = SparkContext.getOrCreate(SparkConf().setAll(list(conf.items())))
    except (PySparkException, Py4JError) as error:
        raise _not_started(folder.log, error) from error
    context.setLogLevel("WARN" if verbose else "ERROR")
    if not verbose:
        silence_lost_connections(context._accumulatorServer)
    return context


class Session:
    """A Spark session and its temporary folder. Both are replaced if the folder is lost."""

    def __init__(self, spark: settings.Spark, files: SparkFiles, *, verbose: bool = False) -> None:
        self._settings, self._files, self._verbose = spark, files, verbose
        self.folder = RunFolder()
        self._context: SparkContext | None = None

    @property
    def context(self) -> SparkContext:
        """Return the session's context; start it if necessary."""
        if self._context is None:
            self._context = open_context(
                self._settings, self._files, self.folder, verbose=self._verbose
            )
        return self._context

    def is_lost(self) -> bool:
        """Return whether the folder was removed."""
        return self.folder.is_lost()

    def renew(self) -> None:
        """Replace the folder, the session and the JVM, which knows the path of the old folder."""
        self.stop()
        _end_jvm()
        self.folder.remove()
        self.folder = RunFolder()

    def stop(self) -> None:
        """Stop the session, if there is one."""
        context, self._context = self._context, None
        if context is not None:
            with suppress(Py4JError, OSError):
                _stop(context)


def _stop(context: SparkContext) -> None:
    """Stop the session, or the context if there is no session."""
    session = SparkSession.getActiveSession()
    if session is not None and session.sparkContext is context:
        session.stop()
    else:
        context.stop()


def _end_jvm() -> None:
    """End the JVM of this process, so that the next session starts another."""
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
    """Keep PySpark's accumulator server from printing a traceback when the JVM dies.

    `refuse_dead` reports that.
    """
    report = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | OSError):
            report(request, client_address)

    server.handle_error = handle_error  # type: ignore[method-assign]


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Filter out what py4j logs to the root logger: errors that are raised as exceptions anyway."""
    return "py4j" not in record.pathname


def refuse_dead(context: SparkContext) -> None:
    """Raise if Spark's JVM has ended: every thread would wait for its answers for ever."""
    gateway = context._gateway
    if gateway is not None and gateway.proc.poll() is not None:
        raise errors.SparkGone("Spark's JVM is gone: it was killed, or out of memory")


def _not_started(log: Path, error: Exception) -> errors.InstepError:
    """Return why Spark did not start: the JVM's error, that it was killed, or PySpark's error."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    causes = [
        line.strip()
        for line in lines
        if not line.startswith("\t")
        and ("Exception" in line or "rror" in line)
        # the line after it has the reason
        and not line.endswith("Error initializing SparkContext.")
    ]
    gateway = SparkContext._gateway
    if not causes and (gateway is None or gateway.proc.poll() is not None):
        return errors.SparkGone(
            "Spark's JVM ended while it was starting: it was killed, or out of memory",
            jvm.memory_limit() or "",
        )
    remedy = (
        jvm.memory_limit() or "correct [spark] in the settings; --debug shows Spark's complete log"
    )
    return errors.SettingsError(
        f"Spark could not start: {(causes or str(error).splitlines())[0][:300]}", remedy
    )


@contextmanager
def _stderr_to(file: Path) -> Iterator[None]:
    """Redirect stderr to a file, for the JVM and the workers that are started meanwhile."""
    sys.stderr.flush()
    kept = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _has_room_for_sockets(folder: RunFolder) -> bool:
    """Return whether paths of sockets in the temporary folders are short enough.

    Otherwise Spark has to use ports.
    """
    folders = (folder.path, Path(tempfile.gettempdir()))
    longest = max(len(os.fsencode(folder)) for folder in folders)
    return longest + SOCKET_NAME_BYTES < SOCKET_PATH_BYTES_MAX


def with_slots_for(master: str, users: int) -> str:
    """Multiply the slots of a local master, so that tasks that keep theirs leave some to others."""
    local = re.fullmatch(r"local(?:\[([0-9*]+)(,.*)?\])?", master)
    if not local or users < 2:
        return master
    threads = os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)
    return f"local[{users * threads}{local[2] or ''}]"


def with_task_retries(master: str) -> str:
    """Make a local master retry failed tasks, as every other master does."""
    local = re.fullmatch(r"local(?:\[([0-9*]+)\])?", master)
    return f"local[{local[1] or '1'},{TASK_TRIES_MAX}]" if local else master


def joined(ours: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Join two configurations: given values win, except that lists are appended."""
    lists = {
        name: separator.join((ours[name], given[name]))
        for name, separator in LISTS.items()
        if name in ours and name in given
    }
    return {**ours, **given, **lists}


def _conf(
    spark: settings.Spark,
    files: SparkFiles,
    folder: RunFolder,
    verbose: bool,
    given: Sequence[str] = (),
) -> dict[str, str]:
    options = [
        f"-Dinstep.log={folder.log}",
        "-XX:+UseSerialGC",
        f"-Djava.io.tmpdir={folder.path}",
        *(COMPILER if files.jars else QUICK_COMPILER),
        *_archived(files.archive),
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
        "spark.local.dir": str(folder.path / "local"),
        "spark.sql.warehouse.dir": str(folder.path / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
        "spark.sql.streaming.stopTimeout": str(STOP_TIMEOUT_MS),
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        # The next three shorten a micro-batch most. Python workers exchange data with the JVM over
        # a Unix socket, which costs less than a TCP connection.
        "spark.python.unix.domain.socket.enabled": str(_has_room_for_sockets(folder)).lower(),
        # Write checkpoints without a checksum file beside each. This manager uses the class that
        # `fs.file.impl` names; Spark's default one does not.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing"
            ".FileSystemBasedCheckpointFileManager"
        ),
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    }
    if files.jars:
        conf |= {"spark.jars": ",".join(map(str, files.jars))}
    if spark.master.startswith("local"):
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Other users of this machine must not connect to Spark's ports.
        conf |= {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(32)}
        # Only here: executors on other machines may get instep only after their daemon starts.
        conf |= {"spark.python.daemon.module": "instep.pipeline.daemon"}
    return conf


def _archived(archive: Path | None) -> list[str]:
    """Return the JVM options for the class archive. The JVM ignores one that does not fit."""
    options = ["-Xlog:cds=off", "-Xlog:class+path=off"]
    return options if archive is None else [f"-XX:SharedArchiveFile={archive}", *options]


def _sweep() -> None:
    """Remove the folders of runs that were killed."""
    for folder in Path(tempfile.gettempdir()).glob("instep-run-*"):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Return whether nobody holds the folder's lock.

    A folder without a lock file is new, or was left long ago by an earlier release.
    """
    try:
        with (folder / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except FileNotFoundError:
        return folder.is_dir() and time.time() - folder.stat().st_mtime > LOCKLESS_S_MAX
    except OSError:  # locked by a run, or owned by another user
        return False
