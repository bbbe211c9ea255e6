"""The account of a benchmark: when it began and by which command, and in the end its result."""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

from instep.report import files
from instep_bench import machine
from instep_bench.result import BenchResult, asked


class Recorder:
    """Begun with the benchmark, closed with what it came to."""

    def __init__(
        self, bench: Literal["polling", "apply", "freshness", "scale"], command: str
    ) -> None:
        self._bench, self._command = bench, command
        self._begun_at, self._began = files.now(), time.monotonic()

    def close(
        self,
        options: msgspec.Struct,
        of_target: dict[str, str],
        releases: dict[str, str],
        **came_to: Any,
    ) -> BenchResult:
        """The result; the target stands in it by its name, as its URL is nobody else's business."""
        return BenchResult(
            bench=self._bench,
            command=self._command,
            begun_at=self._begun_at,
            seconds=round(time.monotonic() - self._began, 1),
            options={**asked(options), **of_target},
            machine=machine.facts(),
            releases=releases,
            **came_to,
        )
