"""The account of a benchmark: when it began and by which command, and in the end its result."""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

from instep.trials import lab
from instep.trials.bench import machine
from instep.trials.bench.result import Result, asked


class Account:
    """Begun with the benchmark, closed with what it came to."""

    def __init__(self, bench: Literal["polling", "apply", "freshness", "scale"], command: str) -> None:
        self._bench, self._command = bench, command
        self._begun_at, self._began = lab.now(), time.monotonic()

    def close(self, options: msgspec.Struct, of_target: dict[str, str], releases: dict[str, str], **came_to: Any) -> Result:
        """The result; the target stands in it by its name, as its URL is nobody else's business."""
        return Result(
            bench=self._bench,
            command=self._command,
            begun_at=self._begun_at,
            seconds=round(time.monotonic() - self._began, 1),
            options={**asked(options), **of_target},
            machine=machine.facts(),
            releases=releases,
            **came_to,
        )
