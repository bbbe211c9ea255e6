"""What people decided about records, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from starlette.responses import Response

from instep import errors
from instep.console.log_places import place_of, position_at
from instep.console.requests import ConsolePage, PageRequest
from instep.operate import selection
from instep.sinks.journal_entries import DecisionRecord, RecordPosition

SHOWN = 100
BEFORE_ALL = RecordPosition("", 0, -1)


class DecisionCursor(msgspec.Struct, frozen=True):
    """The last decision of a page. Many decisions of one transaction have the same time."""

    at: datetime
    pipeline: str
    position: RecordPosition

    def of(self, names: Sequence[str], name: str) -> tuple[datetime | None, RecordPosition | None]:
        """Return behind which time, and which position at that time, a pipeline continues."""
        if names.index(name) < names.index(self.pipeline):
            return self.at, None
        return self.at, self.position if name == self.pipeline else BEFORE_ALL


def decisions(view: PageRequest) -> Response:
    """Show what people decided, newest first."""
    names = [view.pipeline()] if view.text("pipeline") else list(view.workspace.pipelines())
    cursor = _cursor(view, names)

    def read(name: str) -> list[DecisionRecord]:
        before, after = cursor.of(names, name) if cursor else (None, None)
        with view.session(name) as session, session.read() as sink:
            return sink.journal.recent_decisions(SHOWN + 1, before, after)

    latest, failed = view.workspace.of_each(names, read)
    found = [(name, one) for name, ones in latest for one in ones]
    # stable: at one time, in the order of the pipelines, and of their logs
    found.sort(key=lambda pair: pair[1].at, reverse=True)
    earlier = None
    if len(found) > SHOWN:
        name, last = found[SHOWN - 1]
        earlier = {
            "pipeline": view.text("pipeline"),
            "before": last.at.isoformat(),
            "behind": name,
            "after": place_of(last.position),
        }
    return view.render(
        "decisions.html",
        "Decisions",
        decisions=found[:SHOWN],
        problems=[(name, view.problem_of(error)) for name, error in failed],
        earlier=earlier,
    )


def _cursor(view: PageRequest, names: Sequence[str]) -> DecisionCursor | None:
    if not view.text("before"):
        return None
    at = selection.parse_time(view.text("before"))
    name = view.text("behind")
    if at is None or name not in names:
        raise errors.SettingsError("the URL has a wrong place", "start from the first page")
    return DecisionCursor(at, name, position_at(view.text("after")))


PAGES = (ConsolePage("/decisions", decisions),)
