"""The contents of a report: a run with the results of its claims."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from instep.document.showing import counted, plain_json
from instep_lab import claim, source_tree, sources, store
from instep_lab.claim import AnomalyExample, Claim, ClaimResult, ClaimTexts
from instep_lab.clients import consuming, publishing
from instep_lab.sources import Source
from instep_lab.store import BrokerSetting
from instep_lab.verdict import ClaimVerdict, PartOutcome, Role, VerdictPart

NOT_RUN = "not run"
NO_LONGER_KNOWN = "this release does not have the claim"
LINE_MAX = 150  # characters of a reason in a list of verdicts
SCENARIOS_NAMED = 4  # in one line of settings; the rest is counted
# Fields of a client's plan that act like a setting, with the value that needs no mention.
PLANNED = {
    "commit": "sync",
    "commit_every": None,
    "mode": "callback",
    "pool": "none",
    "transaction": None,
}

FAMILIES = {
    "order": "Order",
    "group": "Consumer groups",
    "start": "Where a consumer starts",
    "commit": "Commits",
    "send": "Publishing",
    "topic": "Topics and brokers",
    "storage": "Storage",
    "speed": "Speed",
    "queue": "Kafka and message queues",
}
OUTCOMES = {
    (Role.STATEMENT, PartOutcome.PASS): "true",
    (Role.STATEMENT, PartOutcome.FAIL): "not true",
    (Role.CONTROL, PartOutcome.PASS): "passed",
    (Role.CONTROL, PartOutcome.FAIL): "failed",
    (Role.LIMIT, PartOutcome.PASS): "shown",
    (Role.LIMIT, PartOutcome.FAIL): "not shown",
}
UNDECIDED = "undecided"
ROLES = (Role.STATEMENT, Role.LIMIT, Role.CONTROL)
UNIQUE_PREFIX = r"\binstep-lab-[0-9a-f]{8}-[a-z]+-\d+-"


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
    def family(self) -> str:
        return self.id.partition("-")[0]

    @property
    def texts(self) -> ClaimTexts:
        """The texts of the code that ran the claim; those of this release if it has not run."""
        if self.result is not None and self.result.texts is not None:
            return self.result.texts
        if self.claim is not None:
            return self.claim.texts
        return ClaimTexts(statement=NO_LONGER_KNOWN, method="", advice="")

    @property
    def statement(self) -> str:
        return self.texts.statement

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
    def reason_line(self) -> str:
        """The reason on one line, for a list of verdicts."""
        return one_line(self.because)

    @property
    def sources(self) -> list[Source]:
        """The documents behind the explanation; one that this release does not know has no URL."""
        return [sources.ALL.get(id_, Source(id_, "", "")) for id_ in self.texts.sources]

    @property
    def command(self) -> str:
        if self.result is None:
            return f"instep lab run {self.id}"
        return self.result.command


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A setting of the lab's brokers that is not Kafka's default; `where` names the clusters."""

    name: str
    value: str
    default: str
    where: str


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of a client that the lab changed, with the scenarios that have such a client."""

    scenarios: str
    client: str
    settings: str


@dataclass(frozen=True, slots=True)
class LabReport:
    """A run, with one section for each requested claim, in the order of the request.

    `operations_kept` is the number of operations that each history was cut to; None if the
    histories are complete.
    """

    run: store.LabRun
    sections: tuple[Section, ...]
    brokers: Mapping[int, Mapping[str, BrokerSetting]]
    operations_kept: int | None = None

    @property
    def counts(self) -> dict[str, int]:
        """The number of claims with each verdict, in the order of VERDICTS."""
        totals = Counter(section.verdict for section in self.sections)
        return {word: totals[word] for word in VERDICTS if totals[word]}

    @property
    def facts(self) -> dict[str, str]:
        """The request of the run, and the machine and releases it ran on."""
        return {**self.request, **self.run.machine, **self.run.releases}

    @property
    def request(self) -> dict[str, str]:
        """What was run, when, and from which commit.

        The tree stays the same when the commit is rebased.
        """
        tree = {"tree of instep_lab": source_tree.tree(self.run.files)} if self.run.files else {}
        return {
            "run": self.run.id,
            "commit": self.run.commit or "unknown",
            **tree,
            "begun": self.run.begun_at,
            "tier": self.run.tier.value,
            "seed": str(self.run.seed),
            "cluster": self.run.cluster or "brokers started by the lab",
            "command": self.run.command,
        }

    @property
    def families(self) -> list[tuple[str, tuple[Section, ...]]]:
        """The sections by family, each with the family's title."""
        grouped: dict[str, list[Section]] = {}
        for section in self.sections:
            grouped.setdefault(section.family, []).append(section)
        return [
            (FAMILIES.get(name, name.capitalize()), tuple(found)) for name, found in grouped.items()
        ]

    @property
    def broker_settings(self) -> list[ChangedSetting]:
        """The changed settings of all clusters; a setting that is the same everywhere is one."""
        clusters: dict[tuple[str, str, str], list[int]] = {}
        for size, changed in sorted(self.brokers.items()):
            for name, one in changed.items():
                found = (name, str(one.value), str(one.default))
                clusters.setdefault(found, []).append(size)
        return [
            ChangedSetting(*found, ", ".join(counted(size, "broker") for size in where))
            for found, where in sorted(clusters.items())
        ]


VERDICTS = (*(verdict.value for verdict in ClaimVerdict), NOT_RUN)


def gather(run: Path, known: Mapping[str, Claim], operations_kept: int | None = None) -> LabReport:
    """Read the folder of a run."""
    request, results = store.read_run(run), store.read_results(run)
    return LabReport(
        request,
        tuple(
            _section(run, id_, known.get(id_), results.get(id_))
            for id_ in dict.fromkeys(request.claims)
        ),
        store.read_brokers(run),
        operations_kept,
    )


def select(report: LabReport, known: Mapping[str, Claim], id_: str) -> list[Section]:
    """Return the sections of a claim or family; claims outside the run have no result."""
    sections = [section for section in report.sections if id_ in (section.id, section.family)]
    return sections or [Section(one.id, one, None, {}, ()) for one in claim.select(known, [id_])]


def outcome_word(part: VerdictPart) -> str:
    """Return the outcome of a part in plain words: a limit is shown, a statement is true."""
    return OUTCOMES.get((part.role, part.outcome), UNDECIDED)


def parts(result: ClaimResult) -> list[VerdictPart]:
    """Return the parts of a verdict, statements first."""
    return sorted(result.parts, key=lambda part: ROLES.index(part.role))


def example_lines(example: AnomalyExample) -> list[str]:
    """Return the operations around an anomaly; those of the record itself are marked.

    Groups lose the prefix that makes them unique in the cluster.
    """
    record = re.match(r"[^:]*: (\S+)", example.title)
    named = f"  {record[1]}  " if record else "\n"
    return [
        (">" if named in f"{line}  " else " ") + re.sub(UNIQUE_PREFIX, "", line)
        for line in example.operations
    ]


def one_line(text: str, most: int = LINE_MAX) -> str:
    """Return the beginning of a reason: whole parts if they fit, and an ellipsis for the rest."""
    if len(text) <= most:
        return text
    whole = text[:most].rpartition("; ")[0]
    return f"{whole}; …" if len(whole) > most // 2 else f"{text[: most - 1].rstrip()}…"


def settings(section: Section) -> list[tuple[str, str]]:
    """Return each scenario with the settings of one of its clients, as one line of JSON."""
    return [
        (scenario, plain_json(msgspec.json.encode(_without_empty(one)).decode()))
        for scenario, one in _clients(section.settings)
    ]


def client_settings(section: Section) -> list[ClientSettings]:
    """Return what the lab set for each kind of client, alike clients in one line."""
    scenarios: dict[tuple[str, str], list[str]] = {}
    for scenario, one in _measured_apart(_clients(section.settings)):
        found = (_client_name(one), ", ".join(_changed(one)))
        if found[1]:
            scenarios.setdefault(found, []).append(scenario)
    return [
        ClientSettings(_joined(list(dict.fromkeys(names))), client, changed)
        for (client, changed), names in scenarios.items()
    ]


def lab_defaults() -> dict[str, str]:
    """Return what the lab's clients set unless a scenario says otherwise."""
    return {
        "publishers": ", ".join(_named(publishing.DEFAULTS)),
        "consumers": ", ".join(_named(consuming.DEFAULTS)),
    }


def timeline(section: Section) -> list[str]:
    """Return the timeline as lines of text."""
    return ["  ".join(_show(value) for value in step.values()) for step in section.timeline]


def _section(run: Path, id_: str, known: Claim | None, result: ClaimResult | None) -> Section:
    folder = run / id_
    return Section(
        id_, known, result, store.read_settings(folder), tuple(store.read_timeline(folder))
    )


def _clients(stored: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each scenario with the plan of one of its clients."""
    for scenario, value in stored.items():
        for one in value if isinstance(value, list) else [value]:
            yield scenario, one


def _measured_apart(clients: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield each producer of a measurement as a client of its own, and other clients as they are.

    The scenario of such a producer is its variant.
    """
    for scenario, one in clients:
        if not isinstance(one, dict) or not isinstance(one.get("variants"), list):
            yield scenario, one
            continue
        for variant in one["variants"]:
            yield (
                variant["name"],
                {"type": "publish", "library": one.get("library"), **variant},
            )


def _client_name(plan: Any) -> str:
    if not isinstance(plan, dict):
        return "client"
    kind = {"publish": "publisher", "consume": "consumer"}.get(str(plan.get("type")), "client")
    return f"{plan['library']} {kind}" if plan.get("library") else kind


def _changed(plan: Any) -> list[str]:
    """Return the settings of a plan; a value that is not a plan is shown as it is."""
    if not isinstance(plan, dict):
        return [str(plan)]
    if not isinstance(plan.get("config"), dict):
        return _named(plan)
    planned = {
        name.replace("_", " "): plan[name]
        for name, usual in PLANNED.items()
        if name in plan and plan[name] != usual
    }
    return [*_named(plan["config"]), *(f"{name}: {value}" for name, value in planned.items())]


def _named(config: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_value(value)}" for name, value in config.items()]


def _value(value: Any) -> str:
    match value:
        case None:
            return "(default)"
        case bool():
            return str(value).lower()
        case _:
            return str(value)


def _joined(names: Sequence[str]) -> str:
    if len(names) <= SCENARIOS_NAMED:
        return ", ".join(names)
    others = len(names) - SCENARIOS_NAMED
    return f"{', '.join(names[:SCENARIOS_NAMED])} and {counted(others, 'other')}"


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
