"""Claims about order come out as they must, on a real broker; test_lab.py settles another."""

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
def test_a_broken_reader_is_noticed(
    settle: Settle, monkeypatch: pytest.MonkeyPatch, bug: str, verdict: ClaimVerdict
) -> None:
    """The claim says that the order holds; a reader that breaks it, or does not read it all, must not pass for that."""
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
        # reading backwards is a fault of the reader's own, and has a control of its own
        monkeypatch.setattr(checkers, "reordered", lambda *_: checkers.Anomalies("reordered", 0, 1))
    result = settle("order-2")
    assert result.verdict is verdict, result.judgement.because
