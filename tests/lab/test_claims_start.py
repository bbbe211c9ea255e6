"""Test claims about where a group starts, on a real broker."""

from __future__ import annotations

import pytest

from instep_lab.verdict import ClaimVerdict
from tests.lab.conftest import Settle

LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        pytest.param("start-1", ClaimVerdict.DEPENDS_ON_CLIENT, marks=LONG),
        ("start-2", ClaimVerdict.DEPENDS_ON_SETTING),
        pytest.param("start-3", ClaimVerdict.DEPENDS_ON_SETTING, marks=LONG),
        pytest.param("start-4", ClaimVerdict.DEPENDS_ON_SETTING, marks=LONG),
        pytest.param("start-5", ClaimVerdict.RIGHT, marks=LONG),
        pytest.param("start-6", ClaimVerdict.RIGHT, marks=LONG),
        pytest.param("start-7", ClaimVerdict.RIGHT, marks=LONG),
        pytest.param("start-8", ClaimVerdict.DEPENDS_ON_CLIENT, marks=LONG),
        pytest.param("start-9", ClaimVerdict.DEPENDS_ON_CLIENT, marks=LONG),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: ClaimVerdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because
