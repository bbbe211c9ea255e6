"""Carry an error from a micro-batch task to the driver.

Between the two is the JVM, which passes on text only. A task therefore raises its error as one line
of JSON, from which the driver rebuilds the typed error.
"""

from __future__ import annotations

import json
import re
import tempfile

from instep import errors

MARK = "instep-error:"
_LINE = re.compile(re.escape(MARK) + r"(\{.*\})")


class TaskFailed(Exception):
    """An error of instep, encoded so that it survives the way through the JVM."""

    def __init__(self, error: errors.InstepError) -> None:
        facts = {"type": type(error).__name__, "what": error.what, "remedy": error.remedy}
        super().__init__(MARK + json.dumps(facts))


def read(text: str) -> errors.InstepError | None:
    """Return the error that a task raised, from Spark's message; None if it contains none."""
    line = _LINE.search(text)
    if line is None:
        return None
    try:
        facts = json.loads(line[1])
    except json.JSONDecodeError:
        return None
    kind = getattr(errors, facts["type"], errors.InstepError)
    error: errors.InstepError = kind(facts["what"], facts["remedy"])
    return error


def unexplained(failure: BaseException) -> errors.InstepError:
    """Return an error for a failure of Spark, with the readable part of its message."""
    message = str(failure)
    if "No space left on device" in message:
        return errors.InstepError(
            f"no space left for Spark's temporary files below {tempfile.gettempdir()}",
            "free some space there, or set TMPDIR to a folder on another disk",
        )
    # The query's plan or the JVM's stack follows.
    readable = re.split(r"=== Streaming Query ===|\n\s*at \S+\(", message)[0]
    return errors.InstepError(
        f"the flow failed: {type(failure).__name__}: {' '.join(readable.split())[:400]}",
        "run with --debug to see Spark's log",
    )
