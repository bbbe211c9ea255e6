"""The counts that tasks report: records, verdicts, dead letters, and a histogram of freshness."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence

from instep.document.guard import Verdict
from instep.pipeline.apply import batch
from instep.pipeline.apply.batch import BatchOutcome

FRESHNESS_BOUNDS_S = (
    0.005,
    0.01,
    0.015,
    0.025,
    0.05,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
BUCKETS = tuple(f"bucket_{number}" for number in range(len(FRESHNESS_BOUNDS_S) + 1))
NAMES = ("records", *(verdict.value for verdict in Verdict), "dead", "freshness_us", *BUCKETS)


def counts(outcome: BatchOutcome) -> dict[str, int]:
    """Return the counts of a transaction by name."""
    ranked = sorted(outcome.freshness_us)
    ends = [
        0,
        *(bisect_right(ranked, bound * 1_000_000) for bound in FRESHNESS_BOUNDS_S),
        len(ranked),
    ]
    buckets = [end - start for start, end in itertools.pairwise(ends)]
    totals = [
        outcome.records,
        *(outcome.verdicts[verdict] for verdict in Verdict),
        outcome.dead,
        sum(outcome.freshness_us),
    ]
    return dict(zip(NAMES, (*totals, *buckets), strict=True))


def total(outcomes: Sequence[BatchOutcome]) -> dict[str, int]:
    """Return the counts of several transactions together."""
    if not outcomes:
        return dict.fromkeys(NAMES, 0)
    return counts(batch.merged(outcomes))
