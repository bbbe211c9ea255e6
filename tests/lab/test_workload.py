"""Test that workloads are repeatable, number each key without gaps, and can be parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep_lab import workload
from instep_lab.workload import WorkloadRecord


@given(
    seed=st.integers(),
    count=st.integers(0, 300),
    keys=st.integers(1, 20),
    first=st.integers(0, 1_000),
)
def test_the_numbers_of_a_key_increase_by_one(seed: int, count: int, keys: int, first: int) -> None:
    drawn = list(workload.records(seed, count, keys, first=first))
    assert len(drawn) == count
    assert drawn == list(workload.records(seed, count, keys, first=first))
    for key in {one.key for one in drawn}:
        numbers = [one.number for one in drawn if one.key == key]
        assert numbers == list(range(first, first + len(numbers)))


@given(
    key=st.text(alphabet=st.characters(exclude_characters="|", exclude_categories=["Cs"])),
    number=st.integers(0),
    size=st.integers(0, 500),
)
def test_a_value_identifies_its_record(key: str, number: int, size: int) -> None:
    value = WorkloadRecord(key, number, size).value
    assert workload.parse(value) == (key, number)
    assert len(value) >= size


@pytest.mark.parametrize("value", [b"", b"hello", b"k1#2", b"k1|", b"k1#x|", b"#|"])
def test_a_value_of_another_sender_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match=r"was not sent by this workload|invalid literal"):
        workload.parse(value)
