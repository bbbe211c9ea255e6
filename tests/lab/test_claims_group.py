"""Test claims about groups on a real broker; `instep lab run` covers those with many members."""

from __future__ import annotations

import pytest

from instep_lab.claims import group, membership
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.verdict import ClaimVerdict
from tests.lab.conftest import Settle

S = 1_000_000_000


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        pytest.param("group-1", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
        pytest.param("group-2", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
        pytest.param("group-4", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
        ("group-5", ClaimVerdict.DEPENDS_ON_CLIENT),
        pytest.param("group-6", ClaimVerdict.OUTDATED, marks=pytest.mark.long),
        pytest.param("group-7", ClaimVerdict.WRONG, marks=pytest.mark.long),
        pytest.param("group-8", ClaimVerdict.RIGHT, marks=pytest.mark.long),
        pytest.param("group-9", ClaimVerdict.DEPENDS_ON_SETTING, marks=pytest.mark.long),
    ],
)
def test_verdict(settle: Settle, claim: str, verdict: ClaimVerdict) -> None:
    result = settle(claim)
    assert result.verdict is verdict, result.judgement.because


def test_the_partition_of_a_group_is_computed_as_by_the_brokers() -> None:
    """Compare with Java's hashCode, of which Kafka takes the absolute value modulo the count."""
    assert membership.offsets_partition("", 4) == 0
    assert membership.offsets_partition("a", 50) == 97 % 50
    # "polygenelubricants".hashCode() is the lowest integer, whose absolute value is taken as 0
    assert membership.offsets_partition("polygenelubricants", 50) == 0
    # two hash codes that Java computed, one of them negative
    assert membership.offsets_partition("hello", 50) == 99_162_322 % 50
    assert membership.offsets_partition("orders", 4) == (-1_008_770_331 & 0x7FFF_FFFF) % 4


def test_the_effects_of_an_event_on_a_group_are_measured() -> None:
    """Check the effects of an event on a group.

    Partition 0 stays with its member. Partition 1 moves to another one, which reads a record again.
    A slow member's pauses do not count.
    """

    def read(at_s: float, member: str, partition: int, number: int) -> ClientOperation:
        return ClientOperation(
            kind=OperationKind.READ,
            at_ns=int(at_s * S),
            group="g",
            member=member,
            key="k",
            partition=partition,
            number=number,
        )

    seen = [
        read(1.0, "one", 0, 1),
        read(1.0, "two", 1, 2),
        read(1.0, "slow", 2, 3),
        ClientOperation(
            kind=OperationKind.REVOKE, at_ns=3 * S, group="g", member="two", partition=1
        ),
        ClientOperation(
            kind=OperationKind.ASSIGN, at_ns=4 * S, group="g", member="one", partition=1
        ),
        ClientOperation(
            kind=OperationKind.ASSIGN, at_ns=4 * S, group="another", member="else", partition=1
        ),
        read(4.5, "one", 1, 2),
        read(5.0, "one", 0, 4),
        read(9.0, "slow", 2, 5),
    ]
    assert group.effect_of(seen, "g", "slow", 2 * S, 10 * S) == group.EventEffect(
        changed=2, repeated=1, stayed_s=4.0, moved_s=3.5, to_slow_s=None
    )
    assert group.effect_of(seen, "g", "slow", 6 * S, 10 * S) == group.EventEffect(
        changed=0, repeated=0, stayed_s=0.0, moved_s=None, to_slow_s=None
    )
    to_slow = [*seen, read(7.0, "slow", 1, 6)]
    assert group.effect_of(to_slow, "g", "slow", 2 * S, 10 * S) == group.EventEffect(
        changed=2, repeated=1, stayed_s=4.0, moved_s=None, to_slow_s=3.5
    )
