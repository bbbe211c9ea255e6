"""A run as one self-contained HTML page."""

from __future__ import annotations

from instep.document.showing import counted
from instep.report import web_page
from instep.report.markup import REASON_MAX
from instep_lab import store
from instep_lab.report import contents
from instep_lab.report.contents import LabReport, Section

KIND = "lab"
CLASSES = {"right": "right", "wrong": "wrong", "depends": "depends", "was right": "past"}


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
        reason_max=REASON_MAX,
        anchor=_anchor,
        settings=_settings,
        timeline=contents.timeline,
    )


def _anchor(section: Section) -> str:
    return f"claim-{store.file_name(section.id)}"


def _settings(section: Section) -> list[str]:
    return [f"{scenario}: {client}" for scenario, client in contents.settings(section)]
