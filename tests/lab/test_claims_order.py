"""Test claims about order on a real broker; test_lab.py settles another one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import Message

from instep_lab import checkers
from instep_lab.clients import consuming
from instep_lab.verdict import ClaimVerdict
from tests.lab.conftest import Settle


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("order-3", ClaimVerdict.RIGHT),
        ("order-4", ClaimVerdict.RIGHT),
        pytest.param("order-5", ClaimVerdict.DEPENDS, marks=pytest.mark.long),
        ("order-6", ClaimVerdict.WRONG),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: ClaimVerdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because


@pytest.mark.parametrize(
    ("bug", "verdict"),
    [
        ("drops", ClaimVerdict.INCONCLUSIVE),
        ("repeats", ClaimVerdict.INCONCLUSIVE),
        ("swaps", ClaimVerdict.WRONG),
    ],
)
def test_a_reader_with_a_bug_does_not_count_as_proof(
    settle: Settle, monkeypatch: pytest.MonkeyPatch, bug: str, verdict: ClaimVerdict
) -> None:
    """Reject a reader that breaks the order or does not read everything.

    The claim says that the order holds, so such a reader must not count as proof.
    """
    handle = consuming._Reader._handle

    def broken(self: consuming._Reader, batch: Sequence[Message]) -> None:
        match bug:
            case "drops":
                batch = batch[1:]
            case "repeats":
                batch = [*batch, batch[-1]]
            case _:
                batch = list(reversed(batch))
        handle(self, batch)

    monkeypatch.setattr(consuming._Reader, "_handle", broken)
    if bug == "swaps":
        # reading backwards is a fault of the reader itself, and has its own control
        monkeypatch.setattr(checkers, "reordered", lambda *_: checkers.Anomalies("reordered", 0, 1))
    result = settle("order-2")
    assert result.verdict is verdict, result.judgement.because
