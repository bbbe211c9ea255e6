"""Records when a benchmark began and with which command, and builds its result."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from instep.report import files
from instep_bench import machine
from instep_bench.result import BenchName, BenchResult, recorded_options


class Recorder:
    """Created at the start of a benchmark; closed with its measurements."""

    def __init__(self, bench: BenchName, command: str) -> None:
        self._bench, self._command = bench, command
        self._begun_at, self._began = files.now(), time.monotonic()

    def close(
        self,
        options: msgspec.Struct,
        of_target: dict[str, str],
        releases: dict[str, str],
        **outcome: Any,
    ) -> BenchResult:
        """Return the result. It contains the name of the target instead of its URL."""
        return BenchResult(
            bench=self._bench,
            command=self._command,
            begun_at=self._begun_at,
            seconds=round(time.monotonic() - self._began, 1),
            options={**recorded_options(options), **of_target},
            machine=machine.facts(),
            releases=releases,
            **outcome,
        )
