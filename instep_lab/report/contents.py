"""The contents of a report: a run with the results of its claims."""

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
NO_LONGER_KNOWN = "this release does not have the claim"


@dataclass(frozen=True, slots=True)
class Section:
    """One claim of a run.

    `result` is None if it has not run, `claim` is None if this release does not have it.
    """

    id: str
    claim: Claim | None
    result: ClaimResult | None
    settings: Mapping[str, Any]
    timeline: tuple[Mapping[str, Any], ...]

    @property
    def statement(self) -> str:
        if self.claim is None:
            return NO_LONGER_KNOWN
        return self.claim.statement

    @property
    def verdict(self) -> str:
        if self.result is None:
            return NOT_RUN
        return self.result.verdict.value

    @property
    def because(self) -> str:
        if self.result is None:
            return ""
        return self.result.judgement.because

    @property
    def command(self) -> str:
        if self.result is None:
            return f"instep lab run {self.id}"
        return self.result.command


@dataclass(frozen=True, slots=True)
class LabReport:
    """A run, with one section for each requested claim, in the order of the request."""

    run: store.LabRun
    sections: tuple[Section, ...]

    @property
    def counts(self) -> dict[str, int]:
        """The number of claims with each verdict, in the order of VERDICTS."""
        totals = Counter(section.verdict for section in self.sections)
        return {word: totals[word] for word in VERDICTS if totals[word]}

    @property
    def facts(self) -> dict[str, str]:
        """The request of the run, and the machine and releases it ran on."""
        request = {
            "run": self.run.id,
            "begun": self.run.begun_at,
            "tier": self.run.tier.value,
            "seed": str(self.run.seed),
            "cluster": self.run.cluster or "brokers started by the lab",
            "command": self.run.command,
        }
        return {**request, **self.run.machine, **self.run.releases}


VERDICTS = ("right", "wrong", "depends", "was right", "INCONCLUSIVE", NOT_RUN)


def gather(run: Path, known: Mapping[str, Claim]) -> LabReport:
    """Read the folder of a run."""
    request, results = store.read_run(run), store.read_results(run)
    return LabReport(
        request,
        tuple(
            _section(run, id_, known.get(id_), results.get(id_))
            for id_ in dict.fromkeys(request.claims)
        ),
    )


def select(report: LabReport, known: Mapping[str, Claim], id_: str) -> list[Section]:
    """Return the sections of a claim or family; claims outside the run have no result."""
    sections = [
        section for section in report.sections if id_ in (section.id, section.id.partition("-")[0])
    ]
    return sections or [Section(one.id, one, None, {}, ()) for one in claim.select(known, [id_])]


def settings(section: Section) -> list[tuple[str, str]]:
    """Return each scenario with the settings of one of its clients, as one line of JSON."""
    clients = (
        (scenario, one)
        for scenario, value in section.settings.items()
        for one in (value if isinstance(value, list) else [value])
    )
    return [
        (scenario, plain_json(msgspec.json.encode(_without_empty(one)).decode()))
        for scenario, one in clients
    ]


def timeline(section: Section) -> list[str]:
    """Return the timeline as lines of text."""
    return ["  ".join(_show(value) for value in step.values()) for step in section.timeline]


def _section(run: Path, id_: str, known: Claim | None, result: ClaimResult | None) -> Section:
    folder = run / id_
    return Section(
        id_, known, result, store.read_settings(folder), tuple(store.read_timeline(folder))
    )


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_empty(one) for key, one in value.items() if one not in (None, "", {}, [])
        }
    return value


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value)
