"""Test searches with regular expressions that may take for ever."""

from __future__ import annotations

import re

import pytest

from instep import errors
from instep.console import regexes
from instep.kafka.admin import filters
from instep.kafka.admin.tail import TailRecord


def of_value(value: bytes) -> TailRecord:
    return TailRecord("t", 0, 0, 0, "create", b"k", value, ())


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("^C-1", "C-17", True),
        ("^C-1$", "C-17", False),
        ("é+\\Z", "caf\u00e9", True),
        ("\n", "a\nb", True),
        ("", "", True),
    ],
)
def test_a_search_finds_what_python_finds(pattern: str, text: str, expected: bool) -> None:
    with regexes.opened() as opened:
        search = opened.compile(pattern)
        assert [search(text), search(text)] == [expected, expected]


def test_a_large_text_is_searched() -> None:
    with regexes.opened() as opened:
        assert not opened.compile("x")("y" * 3_000_000)


def test_a_search_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with regexes.opened() as opened:
        search = opened.compile("(a+)+$")
        assert not search("b")  # its process has started
        monkeypatch.setattr(regexes, "SEARCH_S", 0.5)
        with pytest.raises(errors.SettingsError, match="takes too long"):
            search("a" * 60 + "b")
        with pytest.raises(errors.SettingsError, match="takes too long"):
            search("b")


def test_many_slow_searches_are_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """End them when all of them together have taken too long."""
    monkeypatch.setattr(regexes, "CPU_S", 1)
    pattern, text = "(a+)+$", "a" * 24 + "b"  # some tenths of a second
    with regexes.opened() as opened:
        search = opened.compile(pattern)
        with pytest.raises(errors.SettingsError, match="takes too long"):
            list(map(search, [text] * 1_000))


def test_many_texts_are_searched() -> None:
    with regexes.opened() as opened:
        search = opened.compile("[0-9]+7$")
        assert sum(search(str(number)) for number in range(10_000)) == 999


def test_a_wrong_expression_starts_no_process() -> None:
    with regexes.opened() as opened, pytest.raises(re.error):
        opened.compile("[")


def test_conditions_search_with_it() -> None:
    with regexes.opened() as opened:
        matches = filters.parse(["status~^FAIL", "value!~x"], opened.compile)
        assert matches(of_value(b'{"status": "FAILED"}'))
        assert not matches(of_value(b'{"status": "FAILED", "x": 1}'))
        assert not matches(of_value(b'{"status": "PRINTED"}'))
