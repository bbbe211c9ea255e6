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
    found = [*summary(verdict), ""]
    several = len(verdict.outcomes) > 1
    groups = _groups(verdict)
    for group in groups:
        if group[0].severity != Severity.NOTE:
            found += [*_block(group, several=several), ""]
    for group in groups:
        if group[0].severity == Severity.NOTE:
            found += _note(group, several=several)
    for one in verdict.findings:
        if one.accepted is not None:
            found.append(f"accepted  {one.rule}  {plain(one.subject)}: {plain(one.accepted)}")
    for unknown in verdict.unjudged:
        found += [
            f"not judged, as it is not known: {plain(unknown.why)}",
            f"{MARGIN}{', '.join(unknown.rules)}",
        ]
    if found[-1]:
        found.append("")
    found += [f"{plain(_held(one))}. {plain(one.sentence)}" for one in verdict.outcomes]
    return "\n".join(found)


def summary(verdict: VetReport) -> list[str]:
    """Return at most five lines: counts, guarantees, and the three most urgent findings."""
    counts = verdict.summary
    parts = [
        counted(counts.errors, "error"),
        counted(counts.warnings, "warning"),
        counted(counts.notes, "note"),
    ]
    aside = [f"{verdict.rules} rules"]
    aside += [f"{counts.accepted} accepted"] if counts.accepted else []
    aside += [f"{counts.unjudged} not judged"] if counts.unjudged else []
    lines = [
        f"{', '.join(parts)} ({', '.join(aside)})",
        "; ".join(plain(_held(one)) for one in verdict.outcomes),
    ]
    groups = {group[0].rule: group for group in reversed(_groups(verdict))}
    for number, rule in enumerate(counts.most_urgent, start=1):
        first = groups[rule][0]
        more = f" and {len(groups[rule]) - 1} more" if len(groups[rule]) > 1 else ""
        lines.append(
            f"{number}. {first.severity} {rule}, {plain(first.subject)}{more}: {first.what}"
        )
    return lines


def _held(one: GuaranteeOutlook) -> str:
    if one.kept is False:
        return f"{one.pipeline} falls short of {one.guarantee}"
    return (
        f"{one.pipeline} keeps"
        f" {one.guarantee}{', as far as could be judged' if one.kept is None else ''}"
    )


def _groups(verdict: VetReport) -> list[list[Finding]]:
    """Group findings by rule and severity, the most urgent first."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for one in verdict.findings:
        if one.accepted is None:
            groups.setdefault((one.severity, one.rule), []).append(one)
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
    shared = len({one.fix for one in group}) == 1
    for one in group[:PLACES_SHOWN_MAX]:
        yield f"{MARGIN}found:   {_subject(one, several=several)}: {_evidence(one)}"
        if not shared:
            yield from _fix(one.fix)
    if len(group) > PLACES_SHOWN_MAX:
        yield f"{MARGIN}and {len(group) - PLACES_SHOWN_MAX} more places: --json lists all"
    if shared:
        yield from _fix(first.fix)


def _note(group: list[Finding], *, several: bool) -> Iterator[str]:
    """Yield two lines per finding: the evidence and the fix."""
    for one in group[:PLACES_SHOWN_MAX]:
        yield (
            f"{one.severity.upper():8}  {one.rule}  {_subject(one, several=several)}:"
            f" {_evidence(one)}"
        )
        yield from _fix(one.fix)
    if len(group) > PLACES_SHOWN_MAX:
        yield f"{MARGIN}and {len(group) - PLACES_SHOWN_MAX} more places: --json lists all"


def _subject(one: Finding, *, several: bool) -> str:
    named = (
        f" ({', '.join(one.pipelines)})"
        if several and f"pipeline {one.pipelines[0]}" != one.subject
        else ""
    )
    return plain(f"{one.subject}{named}")


def _when(one: Finding) -> str:
    return plain(one.when if one.when.startswith(("now", "always")) else f"when {one.when}")


def _evidence(one: Finding) -> str:
    shown = one.evidence[:EVIDENCE_SHOWN_MAX]
    if len(one.evidence) > EVIDENCE_SHOWN_MAX:
        shown.append(f"and {len(one.evidence) - EVIDENCE_SHOWN_MAX} more")
    return plain("; ".join(shown))


def _fix(fix: str) -> Iterator[str]:
    """Yield a fix. One of several lines, such as a table of the settings file, keeps its lines."""
    first, *others = fix.split("\n")
    yield f"{MARGIN}fix:     {plain(first)}"
    for line in others:
        yield f"{MARGIN}         {plain(line)}"
