"""Dead letters and parked documents: lists by reason, plans, and what was done."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from instep import errors
from instep.console.pages.documents import explanation
from instep.console.requests import ConsolePage, PageRequest
from instep.operate import dead_letters, log_replay, parked, selection
from instep.pipeline import retry_policy
from instep.pipeline.apply import maintenance, release
from instep.pipeline.apply.maintenance import Change, MaintenanceSession
from instep.sinks.journal_entries import (
    DecisionRecord,
    QuarantinedRecord,
    ReasonCount,
    RecordPosition,
    Selection,
)

SHOWN = 100
PLANNED_MAX = 500


class Choice(msgspec.Struct, frozen=True):
    """What a person selected on a list, and did to it."""

    pipeline: str
    places: list[str]
    documents: list[str]
    reason: str | None
    everything: bool

    @property
    def query(self) -> str:
        """Return the parameters of the URL that selects the same."""
        pairs = [("pipeline", self.pipeline)]
        pairs += [("place", place) for place in self.places]
        pairs += [("document", document) for document in self.documents]
        if self.reason:
            pairs.append(("reason", self.reason))
        if self.everything:
            pairs.append(("all", "1"))
        return urlencode(pairs)

    def check(self) -> None:
        """Raise if nothing is selected."""
        if not (self.places or self.documents or self.reason or self.everything):
            raise errors.SettingsError(
                "nothing is selected", "go back, and select at least one line or a whole reason"
            )

    @property
    def items(self) -> list[str]:
        """Return what was selected one by one."""
        return self.places or self.documents

    @property
    def options(self) -> list[str]:
        """Return the options of the command that selects the same."""
        chosen = [] if self.items else ["--all"]
        if self.reason and not self.items:
            chosen = ["--reason", self.reason]
        return [*chosen, "--pipeline", self.pipeline]


class ActionResult(msgspec.Struct, frozen=True):
    """What an action did, or would do. `missing` has what others have done meanwhile."""

    changes: list[Change]
    missing: dict[str, list[DecisionRecord]] = {}
    more: int = 0  # selected records that the plan leaves out


class QuarantineAction(msgspec.Struct, frozen=True):
    """One action: its name, its command, and the function that plans or executes it."""

    path: str
    title: str
    verb: str
    command: tuple[str, str]
    run: Callable[[PageRequest, Choice, str | None, bool], ActionResult]


class DoneAction(msgspec.Struct, frozen=True):
    """An action that was executed, kept for its page."""

    title: str
    pipeline: str
    actor: str
    at: datetime
    reason: str
    command: str
    result: ActionResult


# --- lists ----------------------------------------------------------------------------------------


def dead(view: PageRequest) -> Response:
    """Show the dead letters of a pipeline by reason, or each of one reason."""
    name, reason = view.pipeline(), view.text("reason") or None
    after = view.text("after")
    groups: list[ReasonCount] = []
    letters: list[QuarantinedRecord] = []
    with view.session(name) as session, session.read() as sink:
        groups = sink.journal.dead_letter_reasons(Selection())
        if reason:
            chosen = selection.select(sink.target.topic, (), reason)
            behind = _position(after) if after else None
            letters = sink.journal.dead_letters(chosen, SHOWN + 1, behind)
    following = None
    if len(letters) > SHOWN:
        letters = letters[:SHOWN]
        following = _place(letters[-1].position)
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
        place=_place,
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


def decisions(view: PageRequest) -> Response:
    """Show what people decided, newest first."""
    names = [view.pipeline()] if view.text("pipeline") else list(view.workspace.pipelines())
    before = selection.parse_time(view.text("before") or None)
    found: list[tuple[str, DecisionRecord]] = []
    problems: list[tuple[str, errors.InstepError]] = []
    for name in names:
        try:
            with view.session(name) as session, session.read() as sink:
                found += [(name, one) for one in sink.journal.recent_decisions(SHOWN + 1, before)]
        except errors.InstepError as error:
            problems.append((name, error))
    found.sort(key=lambda pair: pair[1].at, reverse=True)
    return view.render(
        "decisions.html",
        "Decisions",
        decisions=found[:SHOWN],
        problems=problems,
        pipeline=view.text("pipeline"),
        before=found[SHOWN - 1][1].at if len(found) > SHOWN else None,
    )


# --- actions --------------------------------------------------------------------------------------


def _replay(view: PageRequest, choice: Choice, why: str | None, execute: bool) -> ActionResult:
    with view.session(choice.pipeline) as session:
        chosen, missing = _dead_letters(session, choice)
        overtaken = log_replay.OvertakenInLog(session, view.workspace.shared_cluster)
        found = dead_letters.replay(session, chosen, overtaken, execute=execute, reason=why)
        if execute:
            return ActionResult(list(found), missing)
        changes = list(itertools.islice(found, PLANNED_MAX))
        return ActionResult(changes, missing, _count(session, chosen) - len(changes))


def _drop(view: PageRequest, choice: Choice, why: str | None, execute: bool) -> ActionResult:
    with view.session(choice.pipeline) as session:
        chosen, missing = _dead_letters(session, choice)
        if execute:
            return ActionResult(
                dead_letters.drop(session, chosen, why or "", execute=True), missing
            )
        with session.read() as sink:
            first = sink.journal.dead_letters(chosen, PLANNED_MAX)
        at_first = Selection(positions=tuple(letter.position for letter in first))
        changes = []
        if first:
            changes = dead_letters.drop(session, at_first, "", execute=False)
        return ActionResult(changes, missing, _count(session, chosen) - len(changes))


def _release(view: PageRequest, choice: Choice, why: str | None, execute: bool) -> ActionResult:
    changes: list[Change] = []
    missing: dict[str, list[DecisionRecord]] = {}
    with view.session(choice.pipeline) as session:
        names = _documents(session, choice)
        planned = names if execute else names[:PLANNED_MAX]
        for name in planned:
            try:
                changes += release.release(session, name, execute=execute, reason=why)
            except errors.NotParked:
                missing[name] = _decisions_about(session, name)
    return ActionResult(changes, missing, len(names) - len(planned))


def _skip(view: PageRequest, choice: Choice, why: str | None, execute: bool) -> ActionResult:
    changes: list[Change] = []
    missing: dict[str, list[DecisionRecord]] = {}
    with view.session(choice.pipeline) as session:
        names = _documents(session, choice)
        planned = names if execute else names[:PLANNED_MAX]
        for name in planned:
            try:
                event, _ = parked.skip(session, name, why or "", execute=execute)
            except errors.NotParked:
                missing[name] = _decisions_about(session, name)
            else:
                changes.append(Change(event.position, name, "skipped", event.reason, event.detail))
    return ActionResult(changes, missing, len(names) - len(planned))


ACTIONS: Mapping[str, QuarantineAction] = {
    action.path: action
    for action in (
        QuarantineAction(
            "/dead/replay", "Replay dead letters", "Replay", ("dead", "replay"), _replay
        ),
        QuarantineAction(
            "/dead/drop", "Drop dead letters for good", "Drop", ("dead", "drop"), _drop
        ),
        QuarantineAction(
            "/parked/release",
            "Release parked documents",
            "Release",
            ("parked", "release"),
            _release,
        ),
        QuarantineAction(
            "/parked/skip",
            "Skip the events that block documents",
            "Skip",
            ("parked", "skip"),
            _skip,
        ),
    )
}


def act(view: PageRequest) -> Response:
    """Show the plan of an action, or execute it with a reason."""
    action = ACTIONS[view.request.url.path]
    choice = Choice(
        view.pipeline(),
        list(dict.fromkeys(view.texts("place"))),
        list(dict.fromkeys(view.texts("document"))),
        view.text("reason") or None,
        bool(view.text("all")),
    )
    choice.check()
    why = view.text("why").strip()
    problem = None
    if view.request.method == "POST":
        if why:
            return _execute(view, action, choice, why)
        problem = "Give a reason: whoever reads the decision later needs it."
    planned = action.run(view, choice, None, False)
    return view.render(
        "plan.html",
        action.title,
        action=action,
        choice=choice,
        planned=planned,
        problem=problem,
        shown=SHOWN,
        row_change=row_change,
        commands=_commands(view, action, choice, why or "REASON"),
    )


def done(view: PageRequest) -> Response:
    """Show what an action did."""
    kept = view.workspace.result(view.require("id"))
    if not isinstance(kept, DoneAction):
        raise errors.SettingsError(
            "the result of this action is not kept any more",
            "its decisions are: open the page Decisions",
        )
    return view.render("done.html", kept.title, done=kept, shown=SHOWN, row_change=row_change)


def _execute(view: PageRequest, action: QuarantineAction, choice: Choice, why: str) -> Response:
    result = action.run(view, choice, why, True)
    command = "\n".join(_commands(view, action, choice, why))
    kept = DoneAction(
        f"{action.verb}: done",
        choice.pipeline,
        view.person.name,
        maintenance.now(),
        why,
        command,
        result,
    )
    return view.redirect(f"/done?{urlencode({'id': view.workspace.keep(kept)})}")


def _commands(view: PageRequest, action: QuarantineAction, choice: Choice, why: str) -> list[str]:
    """Return the commands that do the same. `parked skip` takes one document at a time."""
    if action.path == "/parked/skip":
        return [
            view.workspace.command(
                *action.command,
                *("--pipeline", choice.pipeline, "--why", why, "--execute"),
                items=[name],
            )
            for name in choice.documents[:SHOWN]
        ]
    options = [*choice.options, "--why", why, "--execute"]
    return [view.workspace.command(*action.command, *options, items=choice.items)]


def _dead_letters(
    session: MaintenanceSession, choice: Choice
) -> tuple[Selection, dict[str, list[DecisionRecord]]]:
    chosen = selection.select(session.sink.target.topic, choice.places, choice.reason)
    gone = dead_letters.missing(session, chosen)
    with session.read() as sink:
        return chosen, {
            str(position): sink.journal.decisions(position=position) for position in gone
        }


def _documents(session: MaintenanceSession, choice: Choice) -> Sequence[str]:
    if choice.documents:
        return choice.documents
    chosen = selection.select(session.sink.target.topic, (), choice.reason)
    with session.read() as sink:
        return [head.document for head in sink.journal.parked_heads(chosen)]


def _decisions_about(session: MaintenanceSession, document: str) -> list[DecisionRecord]:
    with session.read() as sink:
        return sink.journal.decisions(document=document)


def _count(session: MaintenanceSession, chosen: Selection) -> int:
    with session.read() as sink:
        return sum(group.count for group in sink.journal.dead_letter_reasons(chosen))


def row_change(change: Change) -> list[tuple[str, Any, Any]]:
    """Return the columns that a change changes, with their values before and after."""
    before, after = change.before or {}, change.after or {}
    return [
        (name, before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def _place(position: RecordPosition) -> str:
    return f"{position.topic} {position.partition} {position.offset}"


def _position(text: str) -> RecordPosition:
    """Parse the place behind which a list continues."""
    topic, _, numbers = text.partition(" ")
    partition, _, offset = numbers.partition(" ")
    if not all(part.isascii() and part.isdigit() for part in (partition, offset)):
        raise errors.SettingsError("the URL has a wrong place", "start from the first page")
    return RecordPosition(topic, int(partition), int(offset))


PAGES = (
    ConsolePage("/dead", dead, of_pipeline=True),
    ConsolePage("/parked", parked_list, of_pipeline=True),
    ConsolePage("/decisions", decisions),
    ConsolePage("/done", done, writes=True),
    *(ConsolePage(path, act, ("GET", "POST"), writes=True) for path in ACTIONS),
)
