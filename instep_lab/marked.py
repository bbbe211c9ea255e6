"""The part of a page that is written by a program: between two marks, which are comments."""

from __future__ import annotations

from instep import errors


def replace(page: str, begin: str, part: str, end: str) -> str:
    """Return the page with another part between its marks."""
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise errors.InstepError(
            f"the page has no part between {begin} and {end}", "add the two lines to the page"
        )
    return f"{before}{begin}\n{part}\n{end}{after}"
