"""Test claims about order on a real broker; test_lab.py settles another one."""

from __future__ import annotations

import pytest

from instep_lab.verdict import ClaimVerdict
from tests.lab.conftest import Settle


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        pytest.param("order-3", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        ("order-4", ClaimVerdict.RIGHT),
        pytest.param("order-5", ClaimVerdict.DEPENDS_ON_CLIENT, marks=pytest.mark.long),
        pytest.param("order-6", ClaimVerdict.WRONG, marks=pytest.mark.long),
        pytest.param("order-7", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
        pytest.param("order-8", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        pytest.param("order-9", ClaimVerdict.RIGHT, marks=pytest.mark.long),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: ClaimVerdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because
