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
        pytest.param("topic-4", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        pytest.param("topic-5", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        pytest.param("topic-7", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        ("topic-8", ClaimVerdict.RIGHT),
        pytest.param("topic-9", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        pytest.param("topic-10", ClaimVerdict.WRONG, marks=pytest.mark.long),
        pytest.param("topic-11", ClaimVerdict.WRONG, marks=pytest.mark.long),
        pytest.param("topic-12", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
        pytest.param("topic-13", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: ClaimVerdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because
