"""Whether runs with different seeds come to the same verdicts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from instep_lab.claim import ClaimResult
from instep_lab.verdict import ClaimVerdict


@dataclass(frozen=True, slots=True)
class SeedComparison:
    """The verdicts about a claim, each with its seeds, and the parts whose outcomes differ."""

    claim: str
    verdicts: dict[str, list[int]]
    parts: dict[str, dict[str, list[int]]]

    @property
    def same(self) -> bool:
        """Whether all runs came to the same verdict, which is not INCONCLUSIVE."""
        return len(self.verdicts) == 1 and ClaimVerdict.INCONCLUSIVE not in self.verdicts


def compare(runs: Mapping[int, Mapping[str, ClaimResult]]) -> list[SeedComparison]:
    """Compare runs, which are given by their seeds; return each claim in the order of the runs."""
    claims = dict.fromkeys(claim for results in runs.values() for claim in results)
    return [_compare(claim, runs) for claim in claims]


def _compare(claim: str, runs: Mapping[int, Mapping[str, ClaimResult]]) -> SeedComparison:
    verdicts: dict[str, list[int]] = {}
    parts: dict[str, dict[str, list[int]]] = {}
    for seed, results in runs.items():
        if claim not in results:
            continue
        verdicts.setdefault(results[claim].verdict.value, []).append(seed)
        for part in results[claim].parts:
            outcomes = parts.setdefault(f"{part.role}: {part.title}", {})
            outcomes.setdefault(part.outcome.value, []).append(seed)
    differing = {title: outcomes for title, outcomes in parts.items() if len(outcomes) > 1}
    return SeedComparison(claim, verdicts, differing)
