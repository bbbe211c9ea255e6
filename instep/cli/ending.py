"""How a command ends: the one place where an error becomes a message with a remedy, and an exit status.

`--debug` adds the traceback and changes nothing else.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from instep import errors, masking
from instep.cli.shared import GIVEN, say

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
SPARK_MODULES = ("py4j", "pyspark")


def status_of(command: Callable[[], object]) -> int:
    """Run a command to its end; print what went wrong, and return the exit status."""
    try:
        status = _run(command)
    except Exception as error:  # noqa: BLE001 - whatever it is, people get a message, not a traceback
        status = _report(explain(error), error)
    try:
        sys.stdout.flush()
    except OSError as error:
        status = status or _report(explain(error), error)
        _discard_output()
    return status


def explain(error: Exception) -> errors.InstepError:
    """Any error as one of ours, with a remedy."""
    if isinstance(error, errors.InstepError):
        return error
    if isinstance(error, UnicodeEncodeError) and any(
        error.object in argument for argument in sys.argv
    ):
        return errors.SettingsError(
            f"{error.object!r} is not UTF-8",
            "ids and texts are UTF-8; check the encoding of the terminal (locale)",
        )
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return errors.InstepError(
            f"no space left to write {error.filename or 'the output'}: {error.strerror}",
            "free some space there, or write to another place; then run the command again",
        )
    if isinstance(error, MemoryError):
        return errors.InstepError(
            "this process has no memory left",
            "end other programs, or raise `ulimit -v`; then run again",
        )
    if type(error).__module__.partition(".")[0] in SPARK_MODULES:
        return errors.SparkGone(
            f"Spark's JVM is gone, or does not answer any more: {_words(error)}"
        )
    return errors.InstepError(f"unexpected error: {type(error).__name__}: {_words(error)}")


def prepare_process() -> None:
    """Let nothing but messages reach the terminal: also from threads, finalizers and a standard error that takes no more."""
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_StandardError()),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=True,
        write_through=True,
    )
    threading.excepthook = _thread_failed
    sys.unraisablehook = _not_raised


def _run(command: Callable[[], object]) -> int:
    try:
        command()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _report(ours: errors.InstepError, cause: Exception) -> int:
    if GIVEN.debug:
        say(masking.masked_text("".join(traceback.format_exception(cause)).rstrip()))
    say(f"instep: {masking.masked_text(str(ours))}")
    return ours.exit_status


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or "no details"


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if GIVEN.debug:
        threading.__excepthook__(failed)


def _not_raised(failed: Any) -> None:
    if GIVEN.debug:
        sys.__unraisablehook__(failed)


def _discard_output() -> None:
    """What is still buffered cannot be written: the interpreter must not try it again when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class _StandardError(io.RawIOBase):
    """Standard error that drops what cannot be written: a full log must not end a pipeline."""

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
            return memoryview(data).nbytes
