"""Test the claims about sending on real brokers; `instep lab run` covers the slow ones."""

from __future__ import annotations

import pytest

from instep_lab.claims import send
from instep_lab.clients import defaults, publishing
from instep_lab.verdict import ClaimVerdict
from tests.lab.conftest import Settle


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        pytest.param("send-3", ClaimVerdict.DEPENDS, marks=pytest.mark.long),
        ("send-4", ClaimVerdict.OUTDATED),
        ("send-6", ClaimVerdict.RIGHT),
        ("send-8", ClaimVerdict.RIGHT),
        pytest.param("send-9", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        pytest.param("send-11", ClaimVerdict.DEPENDS, marks=pytest.mark.long),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: ClaimVerdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because


def test_defaults_are_read_from_the_output_of_the_java_classes() -> None:
    page = (
        '<h4><a id="acks"></a></h4><tr><th>Default:</th><td>all</td></tr><h4><a'
        ' id="linger.ms"></a></h4>no default'
    )
    assert defaults.parse(page) == {"acks": "all"}
    assert defaults.parse("nothing of the sort") == {}


def test_librdkafka_reports_only_settings_that_it_has() -> None:
    release, found = defaults.of_librdkafka(["acks", "linger.ms", "no.such.setting"])
    assert release.count(".") == 2
    assert found.keys() == {"acks", "linger.ms"}


def test_the_client_reports_the_settings_that_it_refuses() -> None:
    assert publishing.rejection({"max.in.flight": 5}) is None
    assert "max.in.flight" in str(publishing.rejection({"max.in.flight": 6}))


def test_a_difference_is_clear_only_if_every_round_agrees() -> None:
    assert send._clearly_more([2.0, 9.0], [1.0, 8.0]) is True
    assert send._clearly_more([1.0, 8.0], [2.0, 9.0]) is False
    assert send._clearly_more([1.0, 9.0], [2.0, 8.0]) is None
