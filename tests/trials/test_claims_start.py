"""Claims about where a group starts come out as they must, on a real broker."""

from __future__ import annotations

import pytest

from instep.trials.verdict import Verdict
from tests.trials.conftest import Settle


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("start-1", Verdict.DEPENDS),
        ("start-2", Verdict.DEPENDS),
        ("start-4", Verdict.WRONG),
        ("start-5", Verdict.RIGHT),
        ("start-7", Verdict.RIGHT),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: Verdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because
