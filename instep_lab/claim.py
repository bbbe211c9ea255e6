"""A claim: what teams are told about Kafka, and the experiment that settles it.

Experiments are functions below `claims/`, one file per family, made known by `@settles`. Each gets a `Trial`, on which it
runs clients and faults and puts down what it saw: parts of the verdict, tables and plots.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from instep import errors
from instep.report.tables import Plot, ReportTable
from instep_lab.verdict import ClaimVerdict, Judgement, VerdictPart

if TYPE_CHECKING:
    from instep_lab.trial import Trial

Experiment: TypeAlias = "Callable[[Trial], None]"


class Tier(enum.StrEnum):
    QUICK = "quick"
    FULL = "full"


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one claim in one run; kept as verdict.json. Until the experiment has ended it says INCONCLUSIVE."""

    claim: str
    tier: Tier
    seed: int
    judgement: Judgement
    parts: list[VerdictPart] = []
    tables: list[ReportTable] = []
    plots: list[Plot] = []
    command: str
    begun_at: str
    seconds: float = 0.0
    ended: bool = False

    @property
    def verdict(self) -> ClaimVerdict:
        return self.judgement.verdict


@dataclass(frozen=True, slots=True)
class Claim:
    """What is told, how it is settled, and what to do. `rules` are those of `instep vet` that look after it."""

    id: str
    told: str
    ran: str
    advice: str
    rules: tuple[str, ...]
    brokers: int
    harmless: bool
    until: str | None
    experiment: Experiment

    @property
    def family(self) -> str:
        return self.id.partition("-")[0]


KNOWN: dict[str, Claim] = {}


def settles(
    id_: str,
    *,
    told: str,
    ran: str,
    advice: str,
    rules: tuple[str, ...] = (),
    brokers: int = 1,
    harmless: bool = True,
    until: str | None = None,
) -> Callable[[Experiment], Experiment]:
    """Make the experiment known under its claim's id.

    `brokers` is how many it needs: 0 for none, 3 for a cluster. Harmless is one that does to a cluster what any client may do, so
    that it can run on a cluster of the user's: no fault but to our own clients, and no setting but of our own topics.
    """

    def register(experiment: Experiment) -> Experiment:
        KNOWN[id_] = Claim(id_, told, ran, advice, rules, brokers, harmless, until, experiment)
        return experiment

    return register


def chosen(known: Mapping[str, Claim], ids: list[str]) -> list[Claim]:
    """The claims that are meant: all, by id, or by family ("order" is all of order-1 to order-6), in the order of the list."""
    families = {claim.family for claim in known.values()}
    for id_ in ids:
        if id_ not in known and id_ not in families:
            near = difflib.get_close_matches(id_, [*known, *families], n=3, cutoff=0.4)
            raise errors.SettingsError(
                f"there is no claim {id_!r}",
                f"near: {', '.join(near)}" if near else "instep lab list shows all of them",
            )
    return [claim for claim in known.values() if not ids or claim.id in ids or claim.family in ids]
