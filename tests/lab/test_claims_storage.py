"""Test claims about storage, on real brokers and on a disk whose power can be cut."""

from __future__ import annotations

import pytest

from instep_lab import power_cut
from instep_lab.verdict import ClaimVerdict
from tests.lab.conftest import Settle

needs_power_cut = pytest.mark.skipif(bool(power_cut.missing()), reason=power_cut.missing())


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        pytest.param(
            "storage-1",
            ClaimVerdict.DEPENDS_ON_SETTING,
            marks=[pytest.mark.long, needs_power_cut],
        ),
        pytest.param(
            "storage-2",
            ClaimVerdict.DEPENDS_ON_SETTING,
            marks=[pytest.mark.long, needs_power_cut],
        ),
        ("storage-3", ClaimVerdict.WRONG),
        pytest.param("storage-4", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
        pytest.param("storage-5", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: ClaimVerdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because


@pytest.mark.parametrize("claim", ["storage-1", "storage-2"])
def test_without_the_rights_to_mount_the_claim_says_what_is_missing(
    settle: Settle, claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power_cut, "missing", lambda: "a power cut needs loop devices")
    result = settle(claim)
    assert result.verdict is ClaimVerdict.INCONCLUSIVE
    assert "needs loop devices" in result.judgement.because
