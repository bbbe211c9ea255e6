"""Test claims about topics, on a real broker."""

from __future__ import annotations

import pytest

from instep_lab.verdict import ClaimVerdict
from tests.lab.conftest import Settle


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("topic-1", ClaimVerdict.RIGHT),
        ("topic-2", ClaimVerdict.RIGHT),
        ("topic-4", ClaimVerdict.RIGHT),
        ("topic-5", ClaimVerdict.RIGHT),
        ("topic-8", ClaimVerdict.RIGHT),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: ClaimVerdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because
