"""Claims about order come out as they must, on a real broker; test_lab.py settles another."""

from __future__ import annotations

import pytest

from instep.trials.verdict import Verdict
from tests.trials.conftest import Settle


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("order-3", Verdict.RIGHT),
        ("order-4", Verdict.RIGHT),
        ("order-5", Verdict.RIGHT),
        ("order-6", Verdict.WRONG),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: Verdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because
