"""Why a document could not be polled, or its response not be used, by code."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class FailureCode(enum.StrEnum):
    """The code of a failure, with which a document is reported."""

    UNREACHABLE = "UNREACHABLE"
    TIMEOUT = "TIMEOUT"
    BUSY = "BUSY"
    SERVER_ERROR = "SERVER_ERROR"
    LOGIN_REFUSED = "LOGIN_REFUSED"
    FORBIDDEN = "FORBIDDEN"
    UNEXPECTED = "UNEXPECTED"
    REDIRECT_REFUSED = "REDIRECT_REFUSED"
    ID_REFUSED = "ID_REFUSED"
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    ANSWER_NOT_JSON = "ANSWER_NOT_JSON"
    STATUS_MISSING = "STATUS_MISSING"
    VERSION_WRONG = "VERSION_WRONG"
    TIME_WRONG = "TIME_WRONG"
    UNDELIVERED = "UNDELIVERED"


REMEDIES: Mapping[FailureCode, str] = {
    FailureCode.UNREACHABLE: "check that the service is running and that `url` is correct",
    FailureCode.TIMEOUT: "raise timeout_s, or lower rate_per_s and concurrency",
    FailureCode.BUSY: "lower rate_per_s if this happens often",
    FailureCode.SERVER_ERROR: "ask the source's team; the bridge keeps polling",
    FailureCode.LOGIN_REFUSED: "correct the login in `headers`, or have permission granted",
    FailureCode.FORBIDDEN: "have the source's team grant permission to read this document",
    FailureCode.UNEXPECTED: "open the document's URL by hand, and correct `url`",
    FailureCode.REDIRECT_REFUSED: "if the new address is correct, write it into `url`",
    FailureCode.ID_REFUSED: "remove it from the list of ids",
    FailureCode.BODY_TOO_LARGE: "raise body_bytes_max if the response is correct",
    FailureCode.ANSWER_NOT_JSON: "see what the service answers for this document",
    FailureCode.STATUS_MISSING: "correct the path `status`, or ask the source's team",
    FailureCode.VERSION_WRONG: "correct the path `version`, or remove it",
    FailureCode.TIME_WRONG: "correct the path `at`, or remove it",
    FailureCode.UNDELIVERED: "check that the broker accepts records: instep doctor",
}

# What happened, in sentences; `instep explain` adds what the bridge does and the remedy.
EXPLANATIONS: Mapping[FailureCode, str] = {
    FailureCode.UNREACHABLE: "There was no connection to the query service, or it did not answer"
    " with valid HTTP. The name may not resolve, the port may be closed, or the certificate is not"
    " trusted; the detail says which.",
    FailureCode.TIMEOUT: "The query service did not answer completely within `timeout_s`.",
    FailureCode.BUSY: "The query service asked for a pause: HTTP 408, 425 or 429. If it sent"
    " Retry-After, all requests pause for that time, for at most five minutes.",
    FailureCode.SERVER_ERROR: "The query service failed: HTTP 5xx.",
    FailureCode.LOGIN_REFUSED: "The query service, or a proxy before it, does not accept the login:"
    " HTTP 401 or 407. A token may have expired.",
    FailureCode.FORBIDDEN: "The login is accepted, but may not read this document: HTTP 403.",
    FailureCode.UNEXPECTED: "The answer is none that the bridge can use, for example HTTP 400. A"
    " document that does not exist (HTTP 404 or 410) is no failure: see `missing`.",
    FailureCode.REDIRECT_REFUSED: "A redirect, or the link to the next page of a list, leads to"
    " another server, or there are too many redirects. The bridge does not follow it, because it"
    " would send the login there.",
    FailureCode.ID_REFUSED: "The id cannot be part of a URL or the key of a record: it is empty,"
    " too long, or `.` or `..` in a path.",
    FailureCode.BODY_TOO_LARGE: "The answer has more than `body_bytes_max` bytes, compressed or"
    " not. The bridge stopped reading it.",
    FailureCode.ANSWER_NOT_JSON: "The answer is not JSON, is incomplete, or has a compression that"
    " the bridge does not know. Often it is a page for people: a login or an error.",
    FailureCode.STATUS_MISSING: "The answer has neither text nor an integer at the path `status`.",
    FailureCode.VERSION_WRONG: "The answer has no integer at the path `version`, or one that is out"
    " of range.",
    FailureCode.TIME_WRONG: "The answer has no time at the path `at`: epoch milliseconds or"
    " ISO 8601.",
    FailureCode.UNDELIVERED: "The source's answer was good, but the broker did not accept the"
    " record. The change is published when the document is polled again.",
}

# The source itself seems to be in trouble, and not one document: another attempt may succeed.
RETRIED = frozenset(
    {
        FailureCode.UNREACHABLE,
        FailureCode.TIMEOUT,
        FailureCode.BUSY,
        FailureCode.SERVER_ERROR,
        FailureCode.LOGIN_REFUSED,
    }
)


class PollFailed(Exception):
    """A document could not be polled, or its response cannot be used."""

    def __init__(
        self, code: FailureCode, detail: str, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s

    @property
    def is_retried(self) -> bool:
        """Return whether another attempt soon may succeed."""
        return self.code in RETRIED

    def __str__(self) -> str:
        return f"{self.code.value}: {self.detail}; {REMEDIES[self.code]}"


def page(code: FailureCode) -> str:
    """Return the page of a code, which `instep explain` prints and the site contains."""
    behaviour = (
        "The document is not published, and is polled again later, less often each time. Other"
        " documents are not affected."
    )
    if code in RETRIED:
        behaviour = (
            "The bridge sends up to four requests, with a growing pause. If this happens several"
            " times in a row, all requests pause, for up to a minute, until the source answers"
            " again. A document that still fails is not published, and is polled again later."
        )
    remedy = REMEDIES[code]
    return (
        f"# {code.value}\n\n{EXPLANATIONS[code]}\n\n## What the bridge does\n\n{behaviour}\n\n"
        "## How to investigate\n\n    instep poll NAME --once --json\n\n"
        f"## What to do\n\n{remedy[:1].upper()}{remedy[1:]}.\n"
    )
