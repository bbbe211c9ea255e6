"""The report as text: a summary of five lines, then every finding, the most urgent first. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from instep.document.showing import counted, plain
from instep.vet.judgement import Finding, GuaranteeOutlook, VetReport
from instep.vet.rule import Severity

EVIDENCE_SHOWN_MAX = 4
PLACES_SHOWN_MAX = 8
MARGIN = " " * 10


def text(verdict: VetReport) -> str:
    """Return the whole report."""
    lines = [*summary(verdict), ""]
    several = len(verdict.outcomes) > 1
    groups = _groups(verdict)
    for group in groups:
        if group[0].severity != Severity.NOTE:
            lines += [*_block(group, several=several), ""]
    for group in groups:
        if group[0].severity == Severity.NOTE:
            lines += _note(group, several=several)
    for finding in verdict.findings:
        if finding.accepted is not None:
            lines.append(
                f"accepted  {finding.rule}  {plain(finding.subject)}: {plain(finding.accepted)}"
            )
    for unknown in verdict.unjudged:
        lines += [
            f"not judged, because this is not known: {plain(unknown.why)}",
            f"{MARGIN}{', '.join(unknown.rules)}",
        ]
    if lines[-1]:
        lines.append("")
    lines += [
        f"{plain(_guarantee(finding))}. {plain(finding.sentence)}" for finding in verdict.outcomes
    ]
    return "\n".join(lines)


def summary(verdict: VetReport) -> list[str]:
    """Return at most five lines: counts, guarantees, and the three most urgent findings."""
    counts = verdict.summary
    parts = [
        counted(counts.errors, "error"),
        counted(counts.warnings, "warning"),
        counted(counts.notes, "note"),
    ]
    details = [f"{verdict.rules} rules"]
    if counts.accepted:
        details.append(f"{counts.accepted} accepted")
    if counts.unjudged:
        details.append(f"{counts.unjudged} not judged")
    lines = [
        f"{', '.join(parts)} ({', '.join(details)})",
        "; ".join(plain(_guarantee(one)) for one in verdict.outcomes),
    ]
    # Reversed: if a rule has two groups, the more urgent one overwrites the other.
    groups = {group[0].rule: group for group in reversed(_groups(verdict))}
    for number, rule in enumerate(counts.most_urgent, start=1):
        first = groups[rule][0]
        more = ""
        if len(groups[rule]) > 1:
            more = f" and {len(groups[rule]) - 1} more"
        lines.append(
            f"{number}. {first.severity} {rule}, {plain(first.subject)}{more}: {first.what}"
        )
    return lines


def _guarantee(outlook: GuaranteeOutlook) -> str:
    if outlook.kept is False:
        return f"{outlook.pipeline} does not keep {outlook.guarantee}"
    if outlook.kept is None:
        return f"{outlook.pipeline} keeps {outlook.guarantee}, as far as could be judged"
    return f"{outlook.pipeline} keeps {outlook.guarantee}"


def _groups(verdict: VetReport) -> list[list[Finding]]:
    """Group findings by rule and severity, the most urgent first."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in verdict.findings:
        if finding.accepted is None:
            groups.setdefault((finding.severity, finding.rule), []).append(finding)
    return list(groups.values())


def _block(group: list[Finding], *, several: bool) -> Iterator[str]:
    first = group[0]
    places = _subject(first, several=several) if len(group) == 1 else f"{len(group)} places"
    yield f"{first.severity.upper():8}  {first.rule}  {places}"
    yield f"{MARGIN}{first.what} Threat: {first.threat}, {_when(first)}."
    if len(group) == 1:
        yield f"{MARGIN}found:   {_evidence(first)}"
        yield from _fix(first.fix)
        return
    shared = len({finding.fix for finding in group}) == 1
    for finding in group[:PLACES_SHOWN_MAX]:
        yield f"{MARGIN}found:   {_subject(finding, several=several)}: {_evidence(finding)}"
        if not shared:
            yield from _fix(finding.fix)
    if len(group) > PLACES_SHOWN_MAX:
        yield f"{MARGIN}and {len(group) - PLACES_SHOWN_MAX} more places: --json lists all"
    if shared:
        yield from _fix(first.fix)


def _note(group: list[Finding], *, several: bool) -> Iterator[str]:
    """Yield two lines per finding: the evidence and the fix."""
    for finding in group[:PLACES_SHOWN_MAX]:
        yield (
            f"{finding.severity.upper():8}  {finding.rule}  {_subject(finding, several=several)}:"
            f" {_evidence(finding)}"
        )
        yield from _fix(finding.fix)
    if len(group) > PLACES_SHOWN_MAX:
        yield f"{MARGIN}and {len(group) - PLACES_SHOWN_MAX} more places: --json lists all"


def _subject(finding: Finding, *, several: bool) -> str:
    subject = finding.subject
    if several and subject not in (f"pipeline {finding.pipelines[0]}", finding.pipelines[0]):
        subject += f" ({', '.join(finding.pipelines)})"
    return plain(subject)


def _when(finding: Finding) -> str:
    if finding.when.startswith(("now", "always")):
        return plain(finding.when)
    return plain(f"when {finding.when}")


def _evidence(finding: Finding) -> str:
    shown = finding.evidence[:EVIDENCE_SHOWN_MAX]
    if len(finding.evidence) > EVIDENCE_SHOWN_MAX:
        shown.append(f"and {len(finding.evidence) - EVIDENCE_SHOWN_MAX} more")
    return plain("; ".join(shown))


def _fix(fix: str) -> Iterator[str]:
    """Yield a fix. One of several lines, such as a table of the settings file, keeps its lines."""
    first, *others = fix.split("\n")
    yield f"{MARGIN}fix:     {plain(first)}"
    for line in others:
        yield f"{MARGIN}         {plain(line)}"
