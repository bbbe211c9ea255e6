"""Test the search for refused rows: all other rows are written, in order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep import errors
from instep.pipeline.apply import isolate


@given(
    sizes=st.lists(st.integers(1, 4), max_size=12),
    bad=st.sets(st.integers(0, 47)),
)
def test_exactly_the_refused_items_are_found(sizes: list[int], bad: set[int]) -> None:
    numbers = iter(range(48))
    groups = [[next(numbers) for _ in range(size)] for size in sizes]
    items = [item for group in groups for item in group]
    written: list[int] = []
    refused: list[int] = []

    def attempt(items: Sequence[int]) -> None:
        if bad & set(items):
            raise errors.RowRefused("refused")
        written.extend(items)

    isolate.search(groups, attempt=attempt, refused=lambda item, _: refused.append(item))
    assert written == [item for item in items if item not in bad]
    assert refused == [item for item in items if item in bad]


def test_a_rolled_back_transaction_ends_the_search() -> None:
    def attempt(_some: Sequence[int]) -> None:
        raise errors.TransactionUndone("undone")

    with pytest.raises(errors.TransactionUndone):
        isolate.search([[1], [2]], attempt=attempt, refused=lambda *_: pytest.fail("asked on"))


def test_an_error_that_is_no_refusal_is_raised() -> None:
    def attempt(_some: Sequence[int]) -> None:
        raise errors.PermissionLost("no right")

    with pytest.raises(errors.PermissionLost):
        isolate.search([[1]], attempt=attempt, refused=lambda *_: pytest.fail("not a row"))
