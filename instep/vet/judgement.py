"""Apply the rules to everything in a snapshot that runs, and say what can happen. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from instep import errors, settings
from instep.document.showing import counted
from instep.vet import rules
from instep.vet.rule import (
    NotKnown,
    RelayContext,
    Risk,
    Rule,
    RuleContext,
    Severity,
    StreamContext,
    TopicContext,
    Violation,
)
from instep.vet.snapshot import Snapshot

PARTS = (
    "publisher",
    "relay",
    "output",
    "cluster",
    "topic",
    "reader",
    "records",
    "pipeline",
    "database",
)
SEVERITIES = tuple(Severity)
URGENT = (Risk.LOSS, Risk.DISORDER, Risk.REPETITION, Risk.STANDSTILL, Risk.EXPOSURE)
CONDITIONS_SHOWN_MAX = 3
HAPPENS = {Risk.LOSS: "lost", Risk.REPETITION: "repeated", Risk.DISORDER: "reordered"}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One broken rule: what was found, what it threatens, and what to do about it."""

    rule: str
    severity: str
    threat: str
    subject: str
    pipelines: list[str]  # and relays and streams, as "relay NAME"
    evidence: list[str]
    what: str
    consequence: str
    when: str
    fix: str
    page: str
    accepted: str | None = None  # the reason


class Unjudged(msgspec.Struct, frozen=True, kw_only=True):
    """Rules that could not be judged, because a fact is not known."""

    why: str
    rules: list[str]


class GuaranteeOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """What can happen to the data of one pipeline or relay. `kept` is None if not known."""

    pipeline: str  # or "relay NAME", "stream NAME"
    guarantee: str
    kept: bool | None
    sentence: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Findings by severity, accepted findings, rules not judged, and the most urgent rules."""

    errors: int
    warnings: int
    notes: int
    accepted: int
    unjudged: int
    most_urgent: list[str]


class VetReport(msgspec.Struct, frozen=True, kw_only=True):
    findings: list[Finding]
    unjudged: list[Unjudged]
    outcomes: list[GuaranteeOutlook]
    rules: int
    summary: Summary

    @property
    def errors(self) -> list[Finding]:
        return [
            one for one in self.findings if one.severity == Severity.ERROR and one.accepted is None
        ]


def judge(snapshot: Snapshot) -> VetReport:
    """Check every rule on everything that runs; report once what several of them share."""
    _check_accepted(snapshot.accepted)
    cases: list[TopicContext] = [RuleContext(snapshot, name) for name in snapshot.pipelines]
    cases += [RelayContext(snapshot, name) for name in snapshot.relays]
    cases += [StreamContext(snapshot, name) for name in snapshot.streams]
    judged = [_judge(case) for case in cases]
    merged: dict[tuple[str, str, tuple[str, ...]], Finding] = {}
    unknown: dict[str, dict[str, None]] = {}
    for one in judged:
        for finding in one.findings:
            # A broker or topic that several pipelines share gives the same evidence to each.
            key = (finding.rule, finding.subject, tuple(finding.evidence))
            merged[key] = _merged(merged.get(key), finding)
        for rule, reason in one.unjudged.items():
            unknown.setdefault(reason, {})[rule] = None
    findings = sorted(merged.values(), key=_rank)
    return VetReport(
        findings=findings,
        unjudged=[Unjudged(why=reason, rules=list(ids)) for reason, ids in sorted(unknown.items())],
        outcomes=[_outcome(one) for one in judged],
        rules=len(rules.ALL),
        summary=_summary(findings, {rule for ids in unknown.values() for rule in ids}),
    )


def _summary(findings: list[Finding], unjudged: set[str]) -> Summary:
    open_findings = [finding for finding in findings if finding.accepted is None]
    counts = {
        severity: sum(finding.severity == severity for finding in open_findings)
        for severity in Severity
    }
    return Summary(
        errors=counts[Severity.ERROR],
        warnings=counts[Severity.WARNING],
        notes=counts[Severity.NOTE],
        accepted=len(findings) - len(open_findings),
        unjudged=len(unjudged),
        most_urgent=list(
            dict.fromkeys(
                finding.rule for finding in open_findings if finding.severity != Severity.NOTE
            )
        )[:3],
    )


@dataclass(frozen=True)
class _Judged:
    """The findings of one case, and the reason why a rule could not be judged, by rule."""

    case: TopicContext
    findings: list[Finding]
    unjudged: dict[str, str]


def _judge(case: TopicContext) -> _Judged:
    findings: list[Finding] = []
    unjudged: dict[str, str] = {}
    for rule in rules.ALL.values():
        if not isinstance(case, rule.context):
            continue
        try:
            findings += [_finding(case, rule, violation) for violation in rule.check(case)]
        except NotKnown as failure:
            unjudged[rule.id] = str(failure)
    return _Judged(case, sorted(findings, key=_rank), unjudged)


def find_rule(id_: str) -> Rule:
    """Return the rule with this id, or raise an error that names similar ids."""
    name = id_.upper().replace("-", "_")
    if name not in rules.ALL:
        raise _no_rule(id_)
    return rules.ALL[name]


def page(rule: Rule) -> str:
    """Return the page of a rule, which `instep explain` prints and the site contains."""
    accepting = ""
    if not rule.acceptable_when.startswith("Never"):
        accepting = (
            " Then accept it, with the reason:\n\n"
            f'```toml\n[vet.accept]\n{rule.id} = "why this is acceptable here"\n```'
        )
    return (
        f"# {rule.id}\n\n{rule.what}\n\nIt threatens **{rule.threat}**, when {rule.when}.\n\n"
        f"## Why it matters\n\n{rule.consequence}\n\n## How to fix it\n\n{rule.remedy}\n\n"
        f"## When this is acceptable\n\n{rule.acceptable_when}{accepting}\n"
    )


def _check_accepted(accepted: dict[str, str]) -> None:
    for name, reason in accepted.items():
        if name not in rules.ALL:
            raise _no_rule(name, " in [vet.accept]")
        if not reason.strip():
            raise errors.SettingsError(
                f"vet.accept.{name} has no reason",
                "give a reason: others need it later",
            )


def _no_rule(name: str, where: str = "") -> errors.SettingsError:
    similar = settings.nearest(name.upper(), rules.ALL, count=3)
    return errors.SettingsError(
        f"there is no rule {name!r}{where}{similar}", "list all rules: instep vet explain"
    )


def _finding(case: TopicContext, rule: Rule, violation: Violation) -> Finding:
    return Finding(
        rule=rule.id,
        severity=violation.severity,
        threat=rule.threat,
        subject=violation.subject,
        pipelines=[case.label],
        evidence=list(violation.evidence),
        what=rule.what,
        consequence=rule.consequence,
        when=violation.when or rule.when,
        fix=violation.fix,
        page=f"instep explain {rule.id}",
        accepted=case.snapshot.accepted.get(rule.id),
    )


def _merged(before: Finding | None, now: Finding) -> Finding:
    if before is None:
        return now
    # Pipelines may share a finding but have different guarantees: report the worst severity.
    worse = min(before, now, key=_rank)
    return msgspec.structs.replace(worse, pipelines=[*before.pipelines, *now.pipelines])


def _rank(finding: Finding) -> tuple[bool, int, int, int, int, str]:
    """Return the sort key: by severity, then what happens now, then the risk for data."""
    if finding.when.startswith("now"):
        soon = 0
    elif finding.when.startswith(("always", "the pipeline is started")):
        soon = 1
    else:
        soon = 2
    severity, threat = (
        SEVERITIES.index(Severity(finding.severity)),
        URGENT.index(Risk(finding.threat)),
    )
    return (
        finding.accepted is not None,
        severity,
        soon,
        threat,
        PARTS.index(rules.ALL[finding.rule].part),
        finding.rule,
    )


# --- what can happen ------------------------------------------------------------------------------


def _outcome(judged: _Judged) -> GuaranteeOutlook:
    wrong = [finding for finding in judged.findings if finding.severity == Severity.ERROR]
    doubtful = [finding for finding in judged.findings if finding.severity == Severity.WARNING]
    parts = [
        *_data_risks(judged, wrong, doubtful),
        *_stops(judged.case, wrong, "is"),
        *_failure_tolerance(judged.case),
    ]
    risks = [*_risks(doubtful), *_stops(judged.case, doubtful, "may be")]
    sentence = f"With these settings, {'; '.join(parts) or 'no error was found'}."
    if risks:
        sentence += f" The warnings are about further risks: {'; '.join(risks)}."
    kept: bool | None = True
    if wrong:
        kept = False
    elif judged.unjudged or not judged.case.is_publisher_known:
        # Undeclared publishers may lose events before the broker has them.
        kept = None
    return GuaranteeOutlook(
        pipeline=judged.case.label,
        guarantee=judged.case.guarantee,
        kept=kept,
        sentence=sentence,
    )


def _stops(case: TopicContext, findings: list[Finding], verb: str) -> list[str]:
    whens = _conditions(findings, Risk.STANDSTILL)
    if whens:
        return [f"the {case.kind} {verb} delayed or stopped {whens}"]
    return []


def _data_risks(judged: _Judged, wrong: list[Finding], doubtful: list[Finding]) -> Iterator[str]:
    """Yield when events can be lost, repeated or reordered by one failure, or that they cannot."""
    never, unknown = [], []
    for threat, word in HAPPENS.items():
        whens = _conditions(wrong, threat, _by_guarantee(judged.case, threat))
        if whens:
            yield f"status events can be {word} {whens}"
        elif any(rules.ALL[rule].threat is threat for rule in judged.unjudged):
            unknown.append(word)
        elif not any(finding.threat == threat for finding in doubtful):
            never.append(word)
    if never:
        dying = "a broker, the pipeline or the database"
        if judged.case.kind == "relay":
            dying = "the source, a broker or the relay"
        elif judged.case.kind == "stream":
            dying = "a broker or the stream"
        elif judged.case.is_publisher_known:
            dying = f"a publisher, {dying}"
        yield f"nothing is {' or '.join(never)} when {dying} dies"
    if unknown:
        yield f"whether anything is {' or '.join(unknown)} could not be judged in full"
    if not judged.case.is_publisher_known:
        yield (
            "what publishers lose, repeat or reorder before the broker is not known"
            " (PUBLISHER_NOT_DECLARED)"
        )


def _risks(doubtful: list[Finding]) -> Iterator[str]:
    """Yield what the warnings say about data if a second failure follows."""
    for threat, word in HAPPENS.items():
        whens = _conditions(doubtful, threat)
        if whens:
            yield f"events may be {word} {whens}"


def _by_guarantee(case: TopicContext, threat: Risk) -> list[str]:
    """Return what the declared guarantee itself allows."""
    match case.kind, case.guarantee, threat:
        case ("relay", "at-least-once", Risk.REPETITION):
            return ["when the relay dies between the records and the position"]
        case ("stream", "at-least-once", Risk.REPETITION):
            return ["when the stream dies between the records and the position"]
        case ("pipeline", "at-least-once", Risk.REPETITION):
            return ["when the pipeline dies between the rows' commit and the position's"]
        case ("pipeline", "at-most-once", Risk.LOSS):
            return ["when the pipeline dies between the position's commit and the rows'"]
    return []


def _conditions(findings: list[Finding], threat: Risk, further: list[str] | None = None) -> str:
    conditions = dict.fromkeys(further or [])
    for finding in findings:
        if finding.threat == threat:
            word = "when "  # but not "when now" and "when always"
            if finding.when.startswith(("now", "always")):
                word = ""
            conditions[f"{word}{finding.when} ({finding.rule})"] = None
    shown = list(conditions)[:CONDITIONS_SHOWN_MAX]
    if len(conditions) > len(shown):
        shown.append(f"for {counted(len(conditions) - len(shown), 'further reason')}")
    return ", or ".join(shown)


def _failure_tolerance(case: TopicContext) -> list[str]:
    """Return how many broker failures the topic tolerates, if its replicas are known."""
    try:
        replicas, needed = case.replicas, case.number("min.insync.replicas")
    except NotKnown:
        return []
    needed = min(needed, replicas)  # brokers require no more than there are
    in_sync = min(len(part.in_sync) for part in case.topic.partitions)
    more = "" if in_sync == replicas else " more"
    spare, survivable = in_sync - needed, needed - 1
    if spare > 0:
        publishing = f"publishing continues with {_brokers(spare, more)} down"
    elif spare == 0:
        publishing = f"publishing stops with one{more} broker down"
    else:
        publishing = "publishing has stopped in some partitions"
    # min.insync.replicas only protects records that were sent with acks=all.
    if any(publisher.acks != "all" for publisher in case.publishers.values()):
        return [publishing]
    durability = "acknowledged records may be on one disk only"
    if survivable:
        durability = f"acknowledged records survive the loss of {_brokers(survivable)}"
    return [f"{publishing}, and {durability}"]


def _brokers(count: int, more: str = "") -> str:
    if count == 1:
        return f"1{more} broker"
    return f"{count}{more} brokers"
