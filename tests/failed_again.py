"""Run the tests that failed last once more, one after another: `make retest`.

Four workers share two cores in `make test`. What fails there only because a time-out passed on a
busy machine passes here; everything else fails again.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

KEPT = Path(".pytest_cache/v/cache/lastfailed")
GROUP = re.compile(r"@[^\]@]*$")  # added to a test's name when workers share the tests


def names(kept: Iterable[str]) -> list[str]:
    """Return the names of tests as pytest takes them: without their groups."""
    return [GROUP.sub("", name) for name in kept]


def main() -> int:
    """Return pytest's exit status; 1 if no failed tests are known."""
    failed = names(json.loads(KEPT.read_text(encoding="utf-8"))) if KEPT.exists() else []
    if not failed:
        sys.stderr.write("no failed tests are known: run make test\n")
        return 1
    sys.stderr.write("".join(f"again: {name}\n" for name in failed))
    return int(pytest.main([*failed, "-m", "not long", "-p", "no:cacheprovider"]))


if __name__ == "__main__":
    sys.exit(main())
