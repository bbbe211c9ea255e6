"""A run as one self-contained HTML page."""

from __future__ import annotations

from instep.document.showing import counted
from instep.report import web_page
from instep_lab import store
from instep_lab.report import contents
from instep_lab.report.contents import LabReport, Section
from instep_lab.verdict import DEPENDS, ClaimVerdict, PartOutcome, Role, VerdictPart

KIND = "lab"
CLASSES = {
    ClaimVerdict.RIGHT.value: "right",
    ClaimVerdict.WRONG.value: "wrong",
    ClaimVerdict.OUTDATED.value: "past",
    ClaimVerdict.DEPENDS_ON_CLIENT_AND_RELEASE.value: "depends",
    **{verdict.value: "depends" for verdict in DEPENDS.values()},
}


def render(report: LabReport) -> str:
    """Render the page of a run."""
    return web_page.render(
        KIND,
        f"Claims about Kafka, tested: lab run {report.run.id}",
        "instep_lab.report",
        "lab.html",
        report=report,
        count=counted(len(report.sections), "claim"),
        classes=CLASSES,
        anchor=_anchor,
        parts=contents.parts,
        example_lines=contents.example_lines,
        client_settings=contents.client_settings,
        lab_defaults=contents.lab_defaults(),
        outcome_word=contents.outcome_word,
        outcome_class=_outcome_class,
        timeline=contents.timeline,
    )


def _anchor(section: Section) -> str:
    return f"claim-{store.file_name(section.id)}"


def _outcome_class(part: VerdictPart) -> str:
    """Return the colour of an outcome: that of a verdict, and neutral for what only helps."""
    if part.outcome is PartOutcome.INCONCLUSIVE:
        return "open"
    if part.role is Role.LIMIT and part.outcome is PartOutcome.PASS:
        return "depends"
    return "right" if part.outcome is PartOutcome.PASS else "wrong"
