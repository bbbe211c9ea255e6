"""A run with all that it came to, claim by claim: read once, and shown in several ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from instep.document.showing import plain_json
from instep_lab import claim, store
from instep_lab.claim import Claim, ClaimResult

NOT_RUN = "not run"
GONE = "this release does not know the claim"


@dataclass(frozen=True, slots=True)
class Section:
    """One claim of a run. `result` is None while it was not run, `claim` when this release does not know it."""

    id: str
    claim: Claim | None
    result: ClaimResult | None
    settings: Mapping[str, Any]
    timeline: tuple[Mapping[str, Any], ...]

    @property
    def told(self) -> str:
        return self.claim.told if self.claim else GONE

    @property
    def verdict(self) -> str:
        return self.result.verdict.value if self.result else NOT_RUN

    @property
    def because(self) -> str:
        return self.result.judgement.because if self.result else ""

    @property
    def command(self) -> str:
        return self.result.command if self.result else f"instep lab run {self.id}"


@dataclass(frozen=True, slots=True)
class LabReport:
    """A run, with a section for each claim that was asked for, in that order."""

    run: store.LabRun
    sections: tuple[Section, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many of each verdict, those that settle something first."""
        found = Counter(section.verdict for section in self.sections)
        return {word: found[word] for word in VERDICTS if found[word]}

    @property
    def facts(self) -> dict[str, str]:
        """On what the run ran, and what it was asked for."""
        asked = {
            "run": self.run.id,
            "begun": self.run.begun_at,
            "tier": self.run.tier.value,
            "seed": str(self.run.seed),
            "cluster": self.run.cluster or "brokers of the lab's own",
            "command": self.run.command,
        }
        return {**asked, **self.run.machine, **self.run.releases}


VERDICTS = ("right", "wrong", "depends", "was right", "INCONCLUSIVE", NOT_RUN)


def gather(run: Path, known: Mapping[str, Claim]) -> LabReport:
    """Read a run's folder."""
    asked, results = store.read_run(run), store.read_results(run)
    return LabReport(
        asked,
        tuple(
            _section(run, id_, known.get(id_), results.get(id_))
            for id_ in dict.fromkeys(asked.claims)
        ),
    )


def chosen(report: LabReport, known: Mapping[str, Claim], id_: str) -> list[Section]:
    """The sections of a claim or of a family; of one that was not asked for, that it was not run."""
    found = [
        section for section in report.sections if id_ in (section.id, section.id.partition("-")[0])
    ]
    return found or [Section(one.id, one, None, {}, ()) for one in claim.chosen(known, [id_])]


def settings(section: Section) -> list[tuple[str, str]]:
    """Each case with what a client of it was started with, as JSON in a line; what was not set is left out."""
    clients = (
        (case, one)
        for case, value in section.settings.items()
        for one in (value if isinstance(value, list) else [value])
    )
    return [(case, plain_json(msgspec.json.encode(_set(one)).decode())) for case, one in clients]


def moments(section: Section) -> list[str]:
    """The timeline, a line each: what was noted, in the order in which it was."""
    return ["  ".join(_noted(value) for value in step.values()) for step in section.timeline]


def _section(run: Path, id_: str, known: Claim | None, result: ClaimResult | None) -> Section:
    folder = run / id_
    return Section(
        id_, known, result, store.read_settings(folder), tuple(store.read_timeline(folder))
    )


def _set(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _set(one) for key, one in value.items() if one not in (None, "", {}, [])}
    return value


def _noted(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
