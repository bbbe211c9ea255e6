"""Documents that have had a status for longer than the settings allow."""

from __future__ import annotations

from datetime import timedelta

from starlette.responses import Response

from instep import durations, errors
from instep.console.requests import ConsolePage, PageRequest
from instep.operate import overdue as documents
from instep.operate.overdue import OverdueList

SHOWN = 200


def overdue(view: PageRequest) -> Response:
    """Show overdue documents, longest overdue first; filtered by status and age."""
    name = view.pipeline()
    declared = view.workspace.declared.pipelines[name]
    status, older_than = view.text("status"), view.text("older_than").strip()
    age = durations.parse(older_than) if older_than else timedelta(0)
    if age is None:
        raise errors.SettingsError(f"{older_than!r} is not an age", "write e.g. 90m, 12h or 3d")
    found = None

    def read() -> OverdueList:
        with view.session(name) as session:
            return documents.read(
                session, declared, status=status or None, older_than=age, limit=SHOWN
            )

    if declared.due:
        found = view.workspace.recent(("overdue", name, status, age), read).value
    return view.render(
        "overdue.html",
        f"Overdue documents of {name}",
        name=name,
        due=declared.due,
        found=found,
        status=status,
        older_than=older_than,
        shown_age=lambda seconds: durations.shown(timedelta(seconds=seconds)),
        command_line=view.workspace.command(
            "overdue",
            *(["--status", status] if status else []),
            *(["--older-than", older_than] if older_than else []),
            items=[name],
        ),
    )


PAGES = (ConsolePage("/overdue", overdue, of_pipeline=True),)
