"""Test claims about groups on a real broker; `instep lab run` covers those with many members."""

from __future__ import annotations

import pytest

from instep_lab.claims import group
from instep_lab.history import ClientOperation, OperationKind
from instep_lab.verdict import ClaimVerdict
from tests.lab.conftest import Settle

S = 1_000_000_000


@pytest.mark.parametrize("claim", ["group-1", pytest.param("group-2", marks=pytest.mark.long)])
def test_verdict(settle: Settle, claim: str) -> None:
    result = settle(claim)
    assert result.verdict is ClaimVerdict.DEPENDS, result.judgement.because


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
        changed=2, repeated=1, stayed_s=4.0, moved_s=3.5
    )
    assert group.effect_of(seen, "g", "slow", 6 * S, 10 * S) == group.EventEffect(
        changed=0, repeated=0, stayed_s=0.0, moved_s=None
    )
