"""From an answer to an event: paths of fields, status, version and time.

Values are data only: nothing of an answer is executed, used as a name or put into a URL.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from instep import settings
from instep.bridge.failures import FailureCode, PollFailed
from instep.document.event import StatusEvent, utc

MISSING = msgspec.UNSET
INTEGER = re.compile(r"-?[0-9]{1,18}")
VERSION_MAX = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Content(msgspec.Struct, frozen=True):
    """What an answer says about a document, and a digest of all of it."""

    status: str
    version: int | None
    at: datetime | None
    fields: dict[str, Any]
    digest: bytes

    def event(self, document: str, version: int | None) -> StatusEvent:
        """Return the event to publish. Without a version in the content it has the given one."""
        if self.version is not None:
            version = self.version
        return StatusEvent(
            document=document,
            status=self.status,
            version=version,
            at=self.at,
            fields=self.fields,
        )


def find(tree: Any, path: str) -> Any:
    """Return the value at a path, or MISSING: names of objects and numbers of lists, with dots."""
    if isinstance(tree, dict) and path in tree:
        return tree[path]
    value = tree
    for step in path.removeprefix("$.").split("."):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif (
            isinstance(value, list)
            and step.isascii()
            and step.isdigit()
            and int(step[:9]) < len(value)
        ):
            value = value[int(step[:9])]
        else:
            return MISSING
    return value


def content(tree: Any, bridge: settings.Bridge) -> Content:
    """Return what an answer says, by the paths of the settings."""
    status = find(tree, bridge.status)
    if isinstance(status, int) and not isinstance(status, bool):
        status = str(status)
    if not isinstance(status, str):
        problem = "has neither text nor an integer"
        if status is MISSING:
            problem = "has nothing"
        raise PollFailed(
            FailureCode.STATUS_MISSING,
            f"the answer {problem} at {bridge.status!r}, the path `status`",
        )
    version: int | None = None
    if bridge.version is not None:
        version = _version(find(tree, bridge.version), bridge)
    at: datetime | None = None
    if bridge.at is not None:
        at = _time(find(tree, bridge.at), bridge)
    found = {name: find(tree, path) for name, path in bridge.fields.items()}
    fields = {name: value for name, value in found.items() if value is not MISSING}
    text = msgspec.json.encode([status, version, at, fields], order="deterministic")
    return Content(status, version, at, fields, hashlib.sha256(text).digest())


def document_id(value: Any) -> str | None:
    """Return an id of a list as text; None if it cannot be one."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None


def _version(value: Any, bridge: settings.Bridge) -> int:
    if isinstance(value, str) and INTEGER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > VERSION_MAX:
        raise PollFailed(
            FailureCode.VERSION_WRONG,
            f"the answer has no integer at {bridge.version!r}, the path `version`",
        )
    return value


def _time(value: Any, bridge: settings.Bridge) -> datetime | None:
    """Return a time in UTC; None if the answer has none."""
    if value is MISSING or value is None:
        return None
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return EPOCH + timedelta(milliseconds=value)
        return utc(msgspec.convert(value, datetime))
    except (msgspec.ValidationError, OverflowError) as error:
        raise PollFailed(
            FailureCode.TIME_WRONG, f"the answer has no time at {bridge.at!r}, the path `at`"
        ) from error
