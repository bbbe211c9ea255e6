"""How a command ends: every error becomes a message with a remedy and an exit status, here only.

`--debug` adds the traceback and changes nothing else.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from instep import errors, masking
from instep.cli.options import GLOBAL
from instep.cli.output import say

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NOT_APPLIED_STATUS = 5  # the record that was awaited is parked, dead or unread
HELD_BACK_STATUS = 4  # nothing differs, but records wait behind an open transaction
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
SPARK_MODULES = ("py4j", "pyspark")


def status_of(command: Callable[[], object]) -> int:
    """Run a command, print its error if there is one, and return the exit status."""
    try:
        status = _run(command)
    except Exception as error:  # noqa: BLE001 - users always get a message, not a traceback
        status = _report(explain(error), error)
    try:
        # Output is buffered, so a full disk or a closed pipe may only show here.
        sys.stdout.flush()
    except OSError as error:
        status = status or _report(explain(error), error)
        _discard_output()
    return status


def explain(error: Exception) -> errors.InstepError:
    """Return any error as an InstepError with a remedy."""
    if isinstance(error, errors.InstepError):
        return error
    # Python turns bytes of an argument that are not UTF-8 into lone surrogates, which fail when
    # they are encoded for Kafka or a database.
    if isinstance(error, UnicodeEncodeError) and any(
        error.object in argument for argument in sys.argv
    ):
        return errors.SettingsError(
            f"{error.object!r} is not UTF-8",
            "ids and texts must be UTF-8: check the encoding of the terminal (locale)",
        )
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return errors.InstepError(
            f"no space left to write {error.filename or 'the output'}: {error.strerror}",
            "free some space there, or write somewhere else, then run the command again",
        )
    if isinstance(error, MemoryError):
        return errors.InstepError(
            "this process is out of memory",
            "stop other programs, or raise `ulimit -v`, then run the command again",
        )
    # By name: Spark need not be installed, and importing it takes long.
    if type(error).__module__.partition(".")[0] in SPARK_MODULES:
        return errors.SparkGone(f"Spark's JVM has ended or no longer answers: {_message(error)}")
    return errors.InstepError(f"unexpected error: {type(error).__name__}: {_message(error)}")


def prepare_process() -> None:
    """Let only messages reach the terminal.

    Threads, finalizers and libraries that log the exit of a signal print no tracebacks, and a
    stderr that cannot be written to is ignored.
    """
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_StandardError()),
        encoding="utf-8",
        errors="backslashreplace",  # a lone surrogate must not raise
        line_buffering=True,
        write_through=True,
    )
    threading.excepthook = _thread_hook
    sys.unraisablehook = _unraisable_hook
    if logging.lastResort is not None:
        logging.lastResort.addFilter(_is_no_exit)


def _run(command: Callable[[], object]) -> int:
    try:
        command()
    except SystemExit as exited:
        # As the interpreter does: any other object than None means failure.
        if isinstance(exited.code, int):
            return exited.code
        return int(exited.code is not None)
    return 0


def _report(error: errors.InstepError, cause: Exception) -> int:
    if GLOBAL.debug:
        say(masking.masked_text("".join(traceback.format_exception(cause)).rstrip()))
    say(f"instep: {masking.masked_text(str(error))}")
    return error.exit_status


def _message(error: Exception) -> str:
    # Errors of the JVM contain its stack trace.
    return " ".join(str(error).split())[:400] or "no details"


def _thread_hook(arguments: threading.ExceptHookArgs) -> None:
    if GLOBAL.debug:
        threading.__excepthook__(arguments)


def _unraisable_hook(arguments: Any) -> None:
    if GLOBAL.debug:
        sys.__unraisablehook__(arguments)


def _is_no_exit(record: logging.LogRecord) -> bool:
    """Tell whether a record is about anything else than the exit that a signal asked for.

    SQLAlchemy logs whatever is raised while it closes a connection, and raises it again.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], SystemExit)) or GLOBAL.debug


def _discard_output() -> None:
    """Discard what is still buffered, so that the interpreter does not try to write it at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


class _StandardError(io.RawIOBase):
    """A stderr that drops what cannot be written: a full log must not end a pipeline."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def isatty(self) -> bool:
        return os.isatty(2)

    def write(self, data: ReadableBuffer) -> int:
        try:
            return os.write(2, data)
        except OSError:
            return memoryview(data).nbytes  # fewer would make the writer try again
