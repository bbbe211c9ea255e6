"""Test the comparison of two results: differences are reported apart from possible noise."""

from __future__ import annotations

import msgspec
import pytest

from instep_bench.compare import ConditionChange, compare
from instep_bench.result import Figure
from tests.bench import examples


@pytest.mark.parametrize(
    ("a", "b", "word", "ratio"),
    [
        ([100, 110, 120], [200, 220, 240], "faster", 2.0),
        ([200, 220, 240], [100, 110, 120], "slower", 0.5),
        ([100, 110, 120], [115, 130, 150], "within noise", 130 / 110),
        ([100, 110, 120], [120, 130, 150], "within noise", 130 / 110),
        ([100, 110, 120], [120.1, 130, 150], "faster", 130 / 110),
        ([100], [101], "faster", 1.01),
        ([100, 100], [100], "the same", 1.0),
        ([0, 0], [1, 1], "faster", None),
    ],
)
def test_throughput_is_called_faster_slower_or_the_same(
    a: list[float], b: list[float], word: str, ratio: float | None
) -> None:
    [line] = compare(examples.result(examples.speed(a)), examples.result(examples.speed(b))).lines
    assert line.word == word
    assert line.ratio == (pytest.approx(ratio) if ratio is not None else None)
    assert line.noise_known == (min(len(a), len(b)) > 1)


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        ("ms", ("faster", "slower")),
        ("s", ("faster", "slower")),
        ("µs an event", ("faster", "slower")),
        ("MB", ("better", "worse")),
    ],
)
def test_less_is_better_for_times_and_amounts(unit: str, words: tuple[str, str]) -> None:
    low, high = (
        examples.result(Figure(name="n", unit=unit, better="less", values=values))
        for values in ([1.0, 2.0], [3.0, 4.0])
    )
    assert [one.word for one in compare(high, low).lines] == [words[0]]
    assert [one.word for one in compare(low, high).lines] == [words[1]]


def test_figures_are_distinguished_by_their_labels_in_any_order() -> None:
    a = examples.result(examples.speed([1.0], x="1", y="2"), examples.speed([2.0], x="1", y="3"))
    b = examples.result(examples.speed([4.0], y="2", x="1"), examples.memory([5.0]))
    found = compare(a, b)
    assert [(one.labels, one.ratio) for one in found.lines] == [({"x": "1", "y": "2"}, 4.0)]
    assert found.only_a == ["throughput (x=1; y=3)"]
    assert found.only_b == ["peak memory"]


def test_different_conditions_are_listed() -> None:
    a = examples.result(rounds=3, target="postgres")
    b = msgspec.structs.replace(
        examples.result(rounds=5),
        bench="scale",
        machine={"cpu": "a fast one", "cores": "8"},
        releases={"kafka": "4.3.1"},
    )
    assert compare(a, b).differences == [
        ConditionChange("benchmark", "apply", "scale"),
        ConditionChange("machine: cores", "2", "8"),
        ConditionChange("option: rounds", "3", "5"),
        ConditionChange("option: target", "postgres", "not known"),
    ]
    assert compare(a, a).differences == []


def test_the_noise_is_the_widest_range() -> None:
    found = compare(
        examples.result(examples.speed([90.0, 100.0, 140.0]), examples.memory([1.0])),
        examples.result(examples.speed([1.0])),
    )
    assert found.widest_a == pytest.approx(0.5)
    assert found.widest_b is None
