"""Why a document could not be asked, or its answer not be used, by code."""

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
    NOT_JSON = "NOT_JSON"
    STATUS_MISSING = "STATUS_MISSING"
    VERSION_WRONG = "VERSION_WRONG"
    TIME_WRONG = "TIME_WRONG"
    UNDELIVERED = "UNDELIVERED"


REMEDIES: Mapping[FailureCode, str] = {
    FailureCode.UNREACHABLE: "see whether the service runs, and whether `url` is right",
    FailureCode.TIMEOUT: "raise timeout_s, or lower rate_per_s and concurrency",
    FailureCode.BUSY: "lower rate_per_s if this happens often",
    FailureCode.SERVER_ERROR: "ask the source's team; the bridge keeps asking",
    FailureCode.LOGIN_REFUSED: "correct the login in `headers`, or have the right granted",
    FailureCode.FORBIDDEN: "have the source's team grant the right to read this document",
    FailureCode.UNEXPECTED: "open the document's URL by hand, and correct `url`",
    FailureCode.REDIRECT_REFUSED: "if the new address is right, write it into `url`",
    FailureCode.ID_REFUSED: "remove it from the list of ids",
    FailureCode.BODY_TOO_LARGE: "raise body_bytes_max if the answer is right",
    FailureCode.NOT_JSON: "see what the service answers for this document",
    FailureCode.STATUS_MISSING: "correct the path `status`, or ask the source's team",
    FailureCode.VERSION_WRONG: "correct the path `version`, or remove it",
    FailureCode.TIME_WRONG: "correct the path `at`, or remove it",
    FailureCode.UNDELIVERED: "see whether the broker accepts records: instep doctor",
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


class AskFailed(Exception):
    """A document could not be asked, or its answer cannot be used."""

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
