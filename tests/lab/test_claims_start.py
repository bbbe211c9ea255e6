"""Test claims about where a group starts, on a real broker."""

from __future__ import annotations

import pytest

from instep_lab.verdict import ClaimVerdict
from tests.lab.conftest import Settle


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("start-1", ClaimVerdict.DEPENDS),
        ("start-2", ClaimVerdict.DEPENDS),
        ("start-4", ClaimVerdict.WRONG),
        ("start-5", ClaimVerdict.RIGHT),
        ("start-7", ClaimVerdict.RIGHT),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: ClaimVerdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because
