"""Test how text from messages is made safe for terminals and shells."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from instep.document import showing

WORDS = (
    "plain",
    "",
    "it's",
    "a b",
    "$(reboot) `x` !",
    "a\nb\r\tc",
    "a\xa0b\u3000c\xadd",
    "\x01\x7f\x85' \\ \x1b[31m",
    "\u202egnp.exe",
    "1\x02234",
    "😀\ufeff",
)


@pytest.mark.parametrize("word", WORDS)
def test_a_word_arrives_in_a_shell_as_it_is(word: str) -> None:
    quoted = showing.shell_word(word)
    assert quoted.isprintable()
    done = subprocess.run(["bash", "-c", f"printf %s {quoted}"], capture_output=True, check=True)
    assert done.stdout.decode() == word


def test_a_word_that_prints_is_quoted_as_usual() -> None:
    assert showing.shell_word("a b") == shlex.quote("a b")
