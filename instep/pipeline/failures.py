"""An error on its way from a task to the driver.

Between the two lies the JVM, which hands on text only. A task therefore raises its error as one line of our own making,
and the driver makes the typed error from it again.
"""

from __future__ import annotations

import json
import re

from instep import errors

MARK = "instep-error:"
_LINE = re.compile(re.escape(MARK) + r"(\{.*\})")


class TaskFailed(Exception):
    """What a task raises: one of our errors, written so that it survives the way through the JVM."""

    def __init__(self, error: errors.InstepError) -> None:
        super().__init__(
            MARK
            + json.dumps({"type": type(error).__name__, "what": error.what, "remedy": error.remedy})
        )


def read(text: str) -> errors.InstepError | None:
    """The error that a task raised, found in what Spark says; None when there is none of ours in it."""
    found = _LINE.search(text)
    if found is None:
        return None
    try:
        facts = json.loads(found[1])
    except json.JSONDecodeError:
        return None
    kind = getattr(errors, facts["type"], errors.InstepError)
    error: errors.InstepError = kind(facts["what"], facts["remedy"])
    return error
