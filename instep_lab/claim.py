"""A claim about Kafka and the experiment that tests it.

Experiments are functions below `claims/`, one file per family, registered by `@experiment`. Each
gets a `Trial`, with which it runs clients, injects faults and records its observations: the parts
of the verdict, tables and plots.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from instep import errors, settings
from instep.report.tables import Plot, ReportTable
from instep_lab.verdict import ClaimVerdict, Judgement, VerdictPart

if TYPE_CHECKING:
    from instep_lab.trial import Trial

Experiment: TypeAlias = "Callable[[Trial], None]"


class Tier(enum.StrEnum):
    QUICK = "quick"
    FULL = "full"


class ClaimTexts(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim says, how it is tested, and what follows.

    `why` explains the result, and `sources` names the documents behind it, by their ids in
    `sources.py`. `scope` says since or until which release and under which settings the verdict
    holds. `rules` names the rules of `instep vet` that check for the problem.
    """

    statement: str
    method: str
    advice: str
    why: str = ""
    scope: str = ""
    sources: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


class AnomalyExample(msgspec.Struct, frozen=True):
    """One record that shows an anomaly, with the operations around it, one per line."""

    title: str
    operations: list[str]


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one claim in one run, stored as verdict.json.

    The verdict is INCONCLUSIVE until the experiment has ended. The texts and the commit are those
    of the code that ran, so that a report never shows new words beside old numbers.
    """

    claim: str
    tier: Tier
    seed: int
    judgement: Judgement
    parts: list[VerdictPart] = []
    tables: list[ReportTable] = []
    plots: list[Plot] = []
    examples: list[AnomalyExample] = []
    texts: ClaimTexts | None = None
    command: str
    begun_at: str
    commit: str | None = None
    seconds: float = 0.0
    ended: bool = False

    @property
    def verdict(self) -> ClaimVerdict:
        return self.judgement.verdict


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim with its texts and its experiment.

    `before` is the release that made an outdated claim wrong. Nothing else may run beside a
    claim that is `alone`, because it measures speed or time.
    """

    id: str
    texts: ClaimTexts
    brokers: int
    harmless: bool
    before: str | None
    experiment: Experiment
    alone: bool = False

    @property
    def family(self) -> str:
        return self.id.partition("-")[0]

    @property
    def statement(self) -> str:
        return self.texts.statement


REGISTERED: dict[str, Claim] = {}


def experiment(
    id_: str,
    *,
    statement: str,
    method: str,
    advice: str,
    why: str = "",
    scope: str = "",
    sources: tuple[str, ...] = (),
    rules: tuple[str, ...] = (),
    brokers: int = 1,
    harmless: bool = True,
    before: str | None = None,
    alone: bool = False,
) -> Callable[[Experiment], Experiment]:
    """Register the decorated function as the experiment of a claim.

    `brokers` is the number of brokers it needs: 0 for none, 3 for a cluster. A harmless experiment
    does nothing that an ordinary client may not do, so that it can run on the user's cluster: it
    injects faults only into its own clients and changes settings only of its own topics. An
    experiment that compares rates, or reports times, runs `alone`.
    """
    texts = ClaimTexts(
        statement=statement,
        method=method,
        advice=advice,
        why=why,
        scope=scope,
        sources=sources,
        rules=rules,
    )

    def register(function: Experiment) -> Experiment:
        REGISTERED[id_] = Claim(id_, texts, brokers, harmless, before, function, alone)
        return function

    return register


def select(known: Mapping[str, Claim], ids: list[str]) -> list[Claim]:
    """Return the claims with these ids or families, in the order of the list; all without ids.

    The family "order" stands for all claims order-N.
    """
    families = {claim.family for claim in known.values()}
    for id_ in ids:
        if id_ not in known and id_ not in families:
            near = settings.nearest(id_, [*known, *families], count=3, cutoff=0.4)
            raise errors.SettingsError(f"unknown claim {id_!r}{near}", "list all: instep lab list")
    return [claim for claim in known.values() if not ids or claim.id in ids or claim.family in ids]
