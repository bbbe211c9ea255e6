"""Waiting for a condition, never for a fixed time."""

from __future__ import annotations

from collections.abc import Callable

from instep import waiting


def wait_until(
    reached: Callable[[], bool], what: str = "the condition", patience_s: float = 90.0
) -> None:
    """Return once the condition is met. Fail if that takes too long."""
    assert waiting.wait_until(reached, patience_s), f"waited {patience_s:.0f} s for {what}"
