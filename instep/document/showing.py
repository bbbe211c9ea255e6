"""Text from a message as a terminal may show it: it can colour, move and hide nothing there."""

from __future__ import annotations


def plain(text: str) -> str:
    """What does not print, line breaks and overrides of the direction included, is shown as its escape."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def counted(count: int, noun: str) -> str:
    """So many of them."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def plain_json(text: str) -> str:
    """The same for JSON, which stays what it is: only what does not print is written in JSON's own escapes."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
