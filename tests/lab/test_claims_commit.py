"""Test claims about commits on a real broker; the others run the same code with other crashes."""

from __future__ import annotations

import pytest

from instep_lab.clients import committed_offsets
from instep_lab.verdict import ClaimVerdict, PartOutcome, Role
from tests.lab.conftest import Settle


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        pytest.param("commit-1", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        ("commit-7", ClaimVerdict.RIGHT),
        ("commit-8", ClaimVerdict.RIGHT),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: ClaimVerdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because


def test_asynchronous_commits_are_faster_and_librdkafka_retries_them(settle: Settle) -> None:
    result = settle("commit-5")
    statements = {
        part.statement: part.outcome for part in result.parts if part.role is Role.STATEMENT
    }
    assert statements == {
        "asynchronous commit is faster": PartOutcome.PASS,
        "a commit without a response is not retried": PartOutcome.FAIL,
        "an older commit overtakes a newer one": PartOutcome.PASS,
    }, result.judgement.because


def test_side_effects_beside_a_unique_row_are_repeated(settle: Settle) -> None:
    result = settle("commit-9")
    assert all(part.outcome is PartOutcome.PASS for part in result.parts), result.judgement.because


def test_keys_of_the_offsets_topic_are_decoded() -> None:
    group, topic = b"my-group", "thème".encode()
    key = (
        b"\x00\x01"
        + len(group).to_bytes(2, "big")
        + group
        + len(topic).to_bytes(2, "big")
        + topic
        + (7).to_bytes(4, "big")
    )
    assert committed_offsets.decode_key(key) == ("my-group", "thème", 7)
    assert committed_offsets.decode_key(b"\x00\x02" + key[2:]) is None
    assert committed_offsets.decode_key(b"") is None
