"""Progress in words: what the log of a run says about one job."""

from __future__ import annotations

from instep.pipeline.progress import Progress


def flow(done: Progress, verb: str) -> str:
    """Return rate, lag and freshness; `verb` is what happens to records, e.g. "applied"."""
    middle, tail = done.freshness_s(0.5), done.freshness_s(0.99)
    freshness = _idle(done, verb)
    if middle is not None:
        freshness = f"freshness p50 ≤ {_seconds(middle)}, p99 ≤ {_seconds(tail)}"
    return f"{done.rate():,.0f} {verb}/s, lag {lag(done)}, {freshness}"


def lag(done: Progress) -> str:
    """Return the lag, and how much of it waits behind an open transaction."""
    if done.lag is None:
        return "not known yet"
    if done.held_back:
        return f"{done.lag:,} ({done.held_back:,} behind an open transaction)"
    return f"{done.lag:,}"


def _idle(done: Progress, verb: str) -> str:
    """Return why there is no freshness to show."""
    if (done.lag or 0) > done.held_back:
        return f"no events {verb} yet"
    return "no recent events"


def _seconds(value: float | None) -> str:
    if value is None:
        return "?"
    if value == float("inf"):
        return "over 300 s"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:g} s"
