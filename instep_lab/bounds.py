"""What a number of trials allows to conclude: bounds of a probability with 95 % confidence. Pure.

No loss in five kills does not mean that kills lose nothing: a loss in up to 45 % of kills would
often go unnoticed. So an experiment counts trials, not records, and says what they exclude.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from instep.document.showing import counted

RISK = 0.05  # that the true share lies beyond the bound
STEPS = 60  # halvings of the interval, more than a float can resolve


def upper(hits: int, trials: int) -> float:
    """Return the highest share that this number of hits does not exclude (Clopper and Pearson)."""
    if hits >= trials:
        return 1.0
    return _highest(lambda share: _at_most(hits, trials, share) > RISK)


def lower(hits: int, trials: int) -> float:
    """Return the lowest share that this number of hits does not exclude."""
    return 1.0 - upper(trials - hits, trials)


def describe(hits: int, trials: int, what: str) -> str:
    """Return the hits with the bounds of their share, as in "0 of 30 kills: at most 10 %"."""
    seen = f"{hits} of {counted(trials, what)}"
    if not trials:
        return seen
    highest = f"{math.ceil(upper(hits, trials) * 100)} %"
    lowest = f"{math.floor(lower(hits, trials) * 100)} %"
    if hits == 0:
        return f"{seen}: at most {highest}"
    if hits == trials:
        return f"{seen}: at least {lowest}"
    return f"{seen}: {lowest} to {highest}"


def _at_most(hits: int, trials: int, share: float) -> float:
    """Return the probability of this many hits or fewer if each trial hits with this share."""
    return sum(_exactly(count, trials, share) for count in range(hits + 1))


def _exactly(hits: int, trials: int, share: float) -> float:
    # by logarithms: the number of ways to choose is too large for a float
    ways = math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
    return math.exp(ways + hits * math.log(share) + (trials - hits) * math.log1p(-share))


def _highest(holds: Callable[[float], bool]) -> float:
    """Return the highest share for which a condition holds that holds for all lower ones."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
