"""Claims about topics come out as they must, on a real broker."""

from __future__ import annotations

import pytest

from instep.trials.verdict import Verdict
from tests.trials.conftest import Settle


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("topic-1", Verdict.RIGHT),
        ("topic-2", Verdict.RIGHT),
        ("topic-4", Verdict.RIGHT),
        ("topic-5", Verdict.RIGHT),
        ("topic-8", Verdict.RIGHT),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: Verdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because
