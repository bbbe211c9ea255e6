"""Make text from a message safe for a terminal: it cannot colour, move or hide anything."""

from __future__ import annotations

import shlex


def plain(text: str) -> str:
    """Escape what does not print, including line breaks and changes of the text direction."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def shell_word(text: str) -> str:
    """Quote text as one word of a command for a shell, so that it arrives exactly as it is.

    What does not print is written in its bytes, which all common shells read in $'…'.
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_in_shell, text)) + "'"


def _in_shell(one: str) -> str:
    if one.isprintable():
        return f"\\{one}" if one in "\\'" else one
    return "".join(f"\\{byte:03o}" for byte in one.encode("utf-8", "surrogatepass"))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural if needed."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def plain_json(text: str) -> str:
    """Escape what does not print in JSON text, with JSON's own escapes."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
