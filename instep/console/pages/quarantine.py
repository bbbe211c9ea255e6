"""Dead letters and parked documents: lists by reason."""

from __future__ import annotations

from starlette.responses import Response

from instep.console.log_places import place_of, position_at
from instep.console.pages.documents import explanation
from instep.console.requests import ConsolePage, PageRequest
from instep.operate import selection
from instep.pipeline import retry_policy
from instep.pipeline.apply import maintenance
from instep.sinks.journal_entries import ReasonCount, RecordBeginning, Selection

SHOWN = 100


def dead(view: PageRequest) -> Response:
    """Show the dead letters of a pipeline by reason, or each of one reason."""
    name, reason = view.pipeline(), view.text("reason") or None
    after = view.text("after")
    groups: list[ReasonCount] = []
    letters: list[RecordBeginning] = []
    with view.session(name) as session, session.read() as sink:
        groups = sink.journal.dead_letter_reasons(Selection())
        if reason:
            chosen = selection.select(sink.target.topic, (), reason)
            behind = position_at(after) if after else None
            letters = sink.journal.dead_letter_beginnings(chosen, SHOWN + 1, behind)
    following = None
    if len(letters) > SHOWN:
        letters = letters[:SHOWN]
        following = place_of(letters[-1].position)
    return view.render(
        "dead.html",
        f"Dead letters of {name}",
        name=name,
        reason=reason,
        groups=groups,
        letters=letters,
        topic=session.sink.target.topic,
        following=following,
        explanation=explanation,
        place=place_of,
        command_line=view.workspace.command(
            "dead", "list", *(["--each", "--reason", reason] if reason else []), items=[name]
        ),
    )


def parked_list(view: PageRequest) -> Response:
    """Show the parked documents of a pipeline by reason, or each of one reason."""
    name, reason = view.pipeline(), view.text("reason") or None
    number = view.integer("page", 1, 1_000_000)
    with view.session(name) as session, session.read() as sink:
        groups = sink.journal.parked_reasons()
        chosen = selection.select(sink.target.topic, (), reason)
        found = sink.journal.parked_heads(chosen, SHOWN + 1, (number - 1) * SHOWN)
    declared, now = view.workspace.declared.pipelines[name], maintenance.now()
    heads = [
        (head, retry_policy.outlook(declared, head.reason, head.parked, now).describe())
        for head in found[:SHOWN]
    ]
    return view.render(
        "parked.html",
        f"Parked documents of {name}",
        name=name,
        reason=reason,
        groups=groups,
        heads=heads,
        number=number,
        has_more=len(found) > SHOWN,
        explanation=explanation,
        command_line=view.workspace.command("parked", "list", items=[name]),
    )


PAGES = (
    ConsolePage("/dead", dead, of_pipeline=True),
    ConsolePage("/parked", parked_list, of_pipeline=True),
)
