"""Claims about commits come out as they must, on a real broker; the others run the same code with other crashes."""

from __future__ import annotations

import pytest

from instep.trials.clients import stored
from instep.trials.verdict import Verdict
from tests.trials.conftest import Settle


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("commit-1", Verdict.RIGHT),
        ("commit-5", Verdict.DEPENDS),
        ("commit-7", Verdict.RIGHT),
        ("commit-8", Verdict.RIGHT),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: Verdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because


def test_keys_of_the_offsets_topic() -> None:
    group, topic = b"my-group", "thème".encode()
    key = b"\x00\x01" + len(group).to_bytes(2, "big") + group + len(topic).to_bytes(2, "big") + topic + (7).to_bytes(4, "big")
    assert stored.decode_key(key) == ("my-group", "thème", 7)
    assert stored.decode_key(b"\x00\x02" + key[2:]) is None
    assert stored.decode_key(b"") is None
