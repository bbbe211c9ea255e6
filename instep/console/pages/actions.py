"""Actions on quarantine: plan, confirm with a reason, and see what was done.

An action is bound to its plan. It changes only what the plan shows or counts: an event that
blocks a document now but not then, or a record that arrived later, is left alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, timedelta
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from instep import errors
from instep.console import rendering
from instep.console.action_runs import SHOWN, ActionResult, ActionRun
from instep.console.live import Part
from instep.console.log_places import place_of, position_at
from instep.console.requests import DECODING, ConsolePage, PageRequest
from instep.operate import dead_letters, log_replay, parked, selection
from instep.pipeline.apply import maintenance, release
from instep.pipeline.apply.maintenance import Change, MaintenanceSession
from instep.sinks.journal_entries import (
    DecisionRecord,
    QuarantinedRecord,
    RecordPosition,
    SelectedLog,
    Selection,
)

PLANNED_MAX = 500
PLANNED_EVENTS = 200  # of a document
PLAN_CHUNK = 100  # dead letters of one transaction: the flow waits for it
PLAN_S = 5.0  # then the rest of a plan is only counted
SOON_S = 1.5  # an action that takes longer shows its progress
# fields that bind an action to its plan: the event that blocks each document, or the last one of
# each; else how far the selected records reach in each log, and before which time they came
BLOCKING, LAST, UP_TO, UNTIL = "blocking", "last", "up_to", "until"

# selects no dead letter: no record has this place
NOTHING = Selection(positions=(RecordPosition("", -1, -1),))

ItemKind = Literal["place", "document"]  # of what is selected one by one; the name of its parameter


class Choice(msgspec.Struct, frozen=True):
    """What a person selected on a list, and did to it."""

    pipeline: str
    kind: ItemKind
    items: list[str]  # selected one by one; else a whole reason, or everything
    reason: str | None
    everything: bool

    @property
    def query(self) -> str:
        """Return the parameters of the URL that selects the same."""
        pairs = [("pipeline", self.pipeline)]
        pairs += [(self.kind, item) for item in self.items]
        if self.reason:
            pairs.append(("reason", self.reason))
        if self.everything:
            pairs.append(("all", "1"))
        return urlencode(pairs)

    def check(self) -> None:
        """Raise if nothing is selected, or too much one by one."""
        if not (self.items or self.reason or self.everything):
            raise errors.SettingsError(
                "nothing is selected", "go back, and select at least one line or a whole reason"
            )
        if len(self.items) > PLANNED_MAX:
            raise errors.SettingsError(
                f"{len(self.items)} lines are selected, more than {PLANNED_MAX}",
                "select fewer, or a whole reason",
            )

    @property
    def options(self) -> list[str]:
        """Return the options of the command that selects the same."""
        chosen = [] if self.items else ["--all"]
        if self.reason and not self.items:
            chosen = ["--reason", self.reason]
        return [*chosen, "--pipeline", self.pipeline]


class ActionPlan(msgspec.Struct, frozen=True):
    """What an action would do. `missing` has what others have done meanwhile.

    `bound` are the fields of the form that bind the action to what the plan shows.
    """

    changes: list[Change]
    missing: dict[str, list[DecisionRecord]] = {}
    more: int = 0  # selected records that the plan leaves out
    stays: int = 0  # selected dead letters that the action leaves as they are
    bound: list[tuple[str, str]] = []


class QuarantineAction(msgspec.Struct, frozen=True):
    """One action: its name, its command, and the functions that plan and execute it."""

    path: str
    title: str
    verb: str
    command: tuple[str, str]
    takes: ItemKind
    plan: Callable[[PageRequest, Choice], ActionPlan]
    execute: Callable[[PageRequest, Choice, ActionRun], None]


# --- plans ----------------------------------------------------------------------------------------


class PlanEnded(Exception):
    """A plan has taken so long that the rest is only counted."""


class PlanTime:
    """The time that a plan may take: its page must be there long before it is given up."""

    def __init__(self) -> None:
        self._end_s = time.monotonic() + PLAN_S

    def check(self) -> None:
        """Raise PlanEnded if the time is over."""
        if time.monotonic() > self._end_s:
            raise PlanEnded


def _plan_replay(view: PageRequest, choice: Choice) -> ActionPlan:
    left = PlanTime()
    changes: list[Change] = []
    with view.session(choice.pipeline, "plan") as session:
        chosen = _selection(session, choice)
        all_ends = _ends(session, chosen)
        ends = _replayed(session, all_ends)
        overtaken = log_replay.OvertakenInLog(
            session, view.workspace.shared_cluster, progress=left.check
        )
        with contextlib.suppress(PlanEnded):
            for done in dead_letters.replay_chunks(
                session,
                _first_letters(session, chosen, ends),
                overtaken,
                execute=False,
                letters_max=PLAN_CHUNK,
            ):
                changes += done
                left.check()
        plan = _letter_plan(session, choice, ends, changes)
    stays = sum(end.count for end in all_ends) - sum(end.count for end in ends)
    return msgspec.structs.replace(plan, stays=stays)


def _plan_drop(view: PageRequest, choice: Choice) -> ActionPlan:
    with view.session(choice.pipeline) as session:
        chosen = _selection(session, choice)
        ends = _ends(session, chosen)
        first = _first_letters(session, chosen, ends)
        changes = dead_letters.drop(session, first, "", execute=False)
        return _letter_plan(session, choice, ends, changes)


def _letter_plan(
    session: MaintenanceSession,
    choice: Choice,
    ends: Sequence[SelectedLog],
    changes: list[Change],
) -> ActionPlan:
    missing = _missing_letters(session, _selection(session, choice))
    more = sum(end.count for end in ends) - len(changes)
    return ActionPlan(changes, missing, more, bound=[] if choice.items else _bound_fields(ends))


def _plan_release(view: PageRequest, choice: Choice) -> ActionPlan:
    left = PlanTime()
    changes: list[Change] = []
    missing: dict[str, list[DecisionRecord]] = {}
    planned = more = 0
    with view.session(choice.pipeline, "plan") as session:
        names, ends = _documents(session, choice, _selection(session, choice))
        bound = _bound_fields(ends)
        if choice.items:
            bound = [(LAST, _event_field(*one)) for one in _last_events(session, names)]
        with contextlib.suppress(PlanEnded):
            for name in names[:PLANNED_MAX]:
                left.check()
                try:
                    done = release.release(session, name, execute=False, most=PLANNED_EVENTS)
                except errors.NotParked:
                    missing[name] = _decisions_about(session, name)
                else:
                    changes += done
                    more += _waiting(session, name) - len(done)
                planned += 1
    return ActionPlan(changes, missing, more + len(names) - planned, bound=bound)


def _plan_skip(view: PageRequest, choice: Choice) -> ActionPlan:
    changes: list[Change] = []
    missing: dict[str, list[DecisionRecord]] = {}
    if not choice.items:
        raise errors.SettingsError(
            "events are skipped for documents that are chosen one by one",
            "select them on the page Parked",
        )
    with view.session(choice.pipeline) as session:
        for name in choice.items:
            try:
                event = parked.blocking(session, name)
            except errors.NotParked:
                missing[name] = _decisions_about(session, name)
            else:
                changes.append(_skipped(name, event))
    bound = [(BLOCKING, _event_field(one.position, one.document)) for one in changes]
    return ActionPlan(changes, missing, bound=bound)


# --- execution ------------------------------------------------------------------------------------


def _replay(view: PageRequest, choice: Choice, run: ActionRun) -> None:
    with view.session(choice.pipeline, "change") as session:
        chosen = _bound(view, _selection(session, choice))
        run.miss(_missing_letters(session, chosen))
        run.expect(sum(end.count for end in _replayed(session, _ends(session, chosen))))
        overtaken = log_replay.OvertakenInLog(session, view.workspace.shared_cluster)
        for changes in dead_letters.replay_chunks(
            session, chosen, overtaken, execute=True, reason=run.result.reason
        ):
            run.add(changes, len(changes))


def _drop(view: PageRequest, choice: Choice, run: ActionRun) -> None:
    with view.session(choice.pipeline, "change") as session:
        chosen = _bound(view, _selection(session, choice))
        run.miss(_missing_letters(session, chosen))
        run.expect(sum(end.count for end in _ends(session, chosen)))
        for changes in dead_letters.drop_chunks(session, chosen, run.result.reason, execute=True):
            run.add(changes, len(changes))


def _release(view: PageRequest, choice: Choice, run: ActionRun) -> None:
    """Release what the plan shows: of documents chosen one by one, the events up to its last."""
    result = run.result
    planned: dict[str, list[RecordPosition]] = {}
    for position, name in _events(view, LAST):
        planned.setdefault(name, []).append(position)
    with view.session(choice.pipeline, "change") as session:
        if not choice.items:
            chosen = _bound(view, _selection(session, choice))
            planned = {name: [] for name in _documents(session, choice, chosen)[0]}
        run.expect(len(planned))
        for name, last in planned.items():
            changes: Sequence[Change] = ()
            try:
                changes = release.release(
                    session, name, execute=True, reason=result.reason, up_to=last
                )
            except errors.NotParked:
                run.miss({name: _decisions_about(session, name)})
            except errors.NotBlocking as error:
                run.leave(name, _what_happened(session, last[0], error))
            run.add(changes)


def _skip(view: PageRequest, choice: Choice, run: ActionRun) -> None:
    result, events = run.result, _events(view, BLOCKING)
    with view.session(choice.pipeline, "change") as session:
        run.expect(len(events))
        for planned, name in events:
            changes: Sequence[Change] = ()
            try:
                event, _ = parked.skip(session, name, result.reason, execute=True, planned=planned)
                changes = [_skipped(name, event)]
            except errors.NotParked:
                run.miss({name: _decisions_about(session, name)})
            except errors.NotBlocking as error:
                run.leave(name, _what_happened(session, planned, error))
            run.add(changes)


def _skipped(name: str, event: QuarantinedRecord) -> Change:
    return Change(event.position, name, "skipped", event.reason, event.detail)


def _what_happened(
    session: MaintenanceSession, planned: RecordPosition, error: errors.NotBlocking
) -> str:
    """Return why a document was left alone, and who decided about the event of the plan."""
    with session.read() as sink:
        decided = sink.journal.decisions(position=planned)
    if not decided:
        return error.what
    last = decided[-1]
    return f"{error.what}; {last.actor} decided about it: {last.action} ({last.outcome})"


ACTIONS: Mapping[str, QuarantineAction] = {
    action.path: action
    for action in (
        QuarantineAction(
            "/dead/replay",
            "Replay dead letters",
            "Replay",
            ("dead", "replay"),
            "place",
            _plan_replay,
            _replay,
        ),
        QuarantineAction(
            "/dead/drop",
            "Drop dead letters for good",
            "Drop",
            ("dead", "drop"),
            "place",
            _plan_drop,
            _drop,
        ),
        QuarantineAction(
            "/parked/release",
            "Release parked documents",
            "Release",
            ("parked", "release"),
            "document",
            _plan_release,
            _release,
        ),
        QuarantineAction(
            "/parked/skip",
            "Skip the events that block documents",
            "Skip",
            ("parked", "skip"),
            "document",
            _plan_skip,
            _skip,
        ),
    )
}


def act(view: PageRequest) -> Response:
    """Show the plan of an action, or execute it with a reason."""
    action = ACTIONS[view.request.url.path]
    choice = _choice(view, action)
    why = view.text("why").strip()
    if action.path in DECODING and (needs := view.workspace.needs_spark(choice.pipeline)):
        [command] = _commands(view, action, choice, ActionPlan([]), why or "REASON")
        raise errors.SettingsError(needs, f"run the command: {command}")
    problem = None
    if view.request.method == "POST":
        problem = _problem(view, action, choice, why)
        if problem is None:
            return _execute(view, action, choice, why)
    planned = action.plan(view, choice)
    return view.render(
        "plan.html",
        action.title,
        http_status=409 if problem else 200,
        action=action,
        choice=choice,
        planned=planned,
        problem=problem,
        shown=SHOWN,
        row_change=row_change,
        commands=_commands(view, action, choice, planned, why or "REASON"),
    )


def _choice(view: PageRequest, action: QuarantineAction) -> Choice:
    """Return what the URL selects. A parameter of another action must not mean everything."""
    other = "document" if action.takes == "place" else "place"
    if view.texts(other):
        raise errors.SettingsError(
            f"{action.path} selects by {action.takes}, and the URL names a {other}",
            "go back, and select lines of the list",
        )
    choice = Choice(
        view.pipeline(),
        action.takes,
        list(dict.fromkeys(view.texts(action.takes))),
        view.text("reason") or None,
        bool(view.text("all")),
    )
    choice.check()
    return choice


def done(view: PageRequest) -> Response:
    """Show what an action did, or how far it is."""
    values = _done_values(view, view.require("id"))
    return view.render("done.html", _done_title(values["run"]), **values)


def stop(view: PageRequest) -> Response:
    """Stop an action after its current transaction."""
    run = view.workspace.actions.find(view.require("id"))
    run.stop()
    run.wait(SOON_S)
    return view.redirect(_done_url(run))


def live_action(view: PageRequest) -> Part:
    """Return the progress of an action as it changes."""
    name = view.require("id")
    if view.no_writes:
        raise errors.InstepError(view.no_writes, "ask an operator")

    def part() -> tuple[object, Callable[[], str]]:
        updates = view.workspace.actions.find(name).updates
        return updates, lambda: rendering.render(
            "done_part.html", view=view, **_done_values(view, name)
        )

    return part


def _done_values(view: PageRequest, name: str) -> dict[str, Any]:
    run = view.workspace.actions.find(name)
    error = None if run.failure is None else view.problem_of(run.failure)
    return {
        "run": run,
        "done": run.so_far(),
        "error": error,
        "shown": SHOWN,
        "row_change": row_change,
    }


def _done_title(run: ActionRun) -> str:
    if run.is_running:
        return f"{run.result.title}: running"
    if run.failure is not None:
        return f"{run.result.title}: ended by an error"
    return f"{run.result.title}: {'stopped' if run.is_stopped else 'done'}"


def _done_url(run: ActionRun) -> str:
    return f"/done?{urlencode({'id': run.id})}"


def _problem(view: PageRequest, action: QuarantineAction, choice: Choice, why: str) -> str | None:
    if not why:
        return "Give a reason: whoever reads the decision later needs it."
    if not choice.items:
        is_bound = bool(view.texts(UP_TO) and view.text(UNTIL))
    elif action.takes == "document":
        is_bound = bool(view.texts(BLOCKING) or view.texts(LAST))
    else:
        is_bound = True  # the record at a place never changes
    return None if is_bound else "Nothing was changed: look at the plan first, then confirm it."


def _execute(view: PageRequest, action: QuarantineAction, choice: Choice, why: str) -> Response:
    """Start the action, and show its page: most have ended by then.

    An error before anything was done is the answer; after an error midway, the page shows both.
    """
    planned = ActionPlan([Change(place, name, "") for place, name in _events(view, BLOCKING)])
    planned.bound.extend((UNTIL, text) for text in view.texts(UNTIL))
    result = ActionResult(
        action.verb,
        choice.pipeline,
        view.person.name,
        maintenance.now(),
        why,
        _commands(view, action, choice, planned, why),
    )
    run = view.workspace.actions.start(result, lambda run: action.execute(view, choice, run))
    if run.wait(SOON_S) and run.failure is not None and result.is_empty:
        raise run.failure
    return view.redirect(_done_url(run))


def _commands(
    view: PageRequest, action: QuarantineAction, choice: Choice, planned: ActionPlan, why: str
) -> list[str]:
    """Return the commands that do the same. `parked skip` takes one document at a time."""
    if action.path == "/parked/skip":
        return [
            _skip_command(view, action, choice, change, why) for change in planned.changes[:SHOWN]
        ]
    options = [*choice.options, "--why", why, "--execute"]
    if not choice.items:
        options = [*(part for bound in planned.bound for part in _until(*bound)), *options]
    return [view.workspace.command(*action.command, *options, items=choice.items)]


def _skip_command(
    view: PageRequest, action: QuarantineAction, choice: Choice, change: Change, why: str
) -> str:
    options = ["--pipeline", choice.pipeline, "--why", why, "--execute"]
    topic = view.workspace.declared.pipelines[choice.pipeline].topic
    # an event of a topic that was replaced has no place that a command could name
    if change.position.is_loaded or change.position.log == topic:
        options += ["--event", str(change.position)]
    return view.workspace.command(*action.command, *options, items=[change.document or ""])


def _until(name: str, value: str) -> list[str]:
    return ["--until", value] if name == UNTIL else []


# --- what an action is bound to -------------------------------------------------------------------


def _selection(session: MaintenanceSession, choice: Choice) -> Selection:
    places = choice.items if choice.kind == "place" else []
    reason = None if choice.items else choice.reason
    return selection.select(session.sink.target.topic, places, reason)


def _ends(session: MaintenanceSession, chosen: Selection) -> list[SelectedLog]:
    with session.read() as sink:
        return sink.journal.dead_letter_ends(chosen)


def _bound_fields(ends: Sequence[SelectedLog]) -> list[tuple[str, str]]:
    """Return the fields that leave alone what arrives behind these ends, or later."""
    if not ends:
        return []
    until = max(end.last for end in ends) + timedelta(microseconds=1)
    fields = [(UNTIL, until.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z")]
    return fields + [(UP_TO, place_of(end.end)) for end in ends]


def _bound(view: PageRequest, chosen: Selection) -> Selection:
    """Return the selection without what the plan cannot have shown."""
    up_to = tuple(map(position_at, view.texts(UP_TO)))
    until = selection.parse_time(view.text(UNTIL) or None)
    return msgspec.structs.replace(chosen, up_to=up_to, until=until)


def _event_field(position: RecordPosition, document: str | None) -> str:
    """Return an event and its document as the value of a field; see `_events`."""
    return f"{place_of(position)} {document}"


def _events(view: PageRequest, name: str) -> list[tuple[RecordPosition, str]]:
    """Return the events that a field of the plan names, and their documents."""
    found = []
    for text in view.texts(name):
        topic, partition, offset, document = [*text.split(" ", 3), "", "", ""][:4]
        found.append((position_at(f"{topic} {partition} {offset}"), document))
    return found


def _last_events(
    session: MaintenanceSession, names: Sequence[str]
) -> list[tuple[RecordPosition, str]]:
    """Return the last waiting event of each document in each log."""
    with session.read() as sink:
        return [(place, name) for name in names for place in sink.journal.waiting_ends(name)]


def _waiting(session: MaintenanceSession, document: str) -> int:
    with session.read() as sink:
        return sink.journal.waiting_count(document)


def _replayed(session: MaintenanceSession, ends: Sequence[SelectedLog]) -> list[SelectedLog]:
    """Return those logs whose dead letters a replay does not leave as they are."""
    return [end for end in ends if dead_letters.is_replayed(session, end.end)]


def _first_letters(
    session: MaintenanceSession, chosen: Selection, ends: Sequence[SelectedLog]
) -> Selection:
    """Return the first dead letters of these logs, one by one: a plan shows no more."""
    if not ends:
        return NOTHING
    within = msgspec.structs.replace(chosen, up_to=tuple(end.end for end in ends))
    with session.read() as sink:
        first = sink.journal.dead_letter_positions(within, PLANNED_MAX)
    return Selection(positions=tuple(first)) if first else NOTHING


def _missing_letters(
    session: MaintenanceSession, chosen: Selection
) -> dict[str, list[DecisionRecord]]:
    gone = dead_letters.missing(session, chosen)
    with session.read() as sink:
        return {str(position): sink.journal.decisions(position=position) for position in gone}


def _documents(
    session: MaintenanceSession, choice: Choice, chosen: Selection
) -> tuple[Sequence[str], list[SelectedLog]]:
    """Return the chosen documents, and how far the events that block them reach in each log."""
    if choice.items:
        return choice.items, []
    with session.read() as sink:
        heads = sink.journal.parked_heads(chosen)
    ends: dict[tuple[str, int], SelectedLog] = {}
    for head in heads:
        log = head.position.topic, head.position.partition
        known = ends.get(log, SelectedLog(head.position, 0, head.since))
        ends[log] = SelectedLog(
            max(known.end, head.position), known.count + 1, max(known.last, head.since)
        )
    return [head.document for head in heads], list(ends.values())


def _decisions_about(session: MaintenanceSession, document: str) -> list[DecisionRecord]:
    with session.read() as sink:
        return sink.journal.decisions(document=document)


def row_change(change: Change) -> list[tuple[str, Any, Any]]:
    """Return the columns that a change changes, with their values before and after."""
    before, after = change.before or {}, change.after or {}
    return [
        (name, before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


PAGES = (
    ConsolePage("/done", done, writes=True),
    ConsolePage("/done/stop", stop, ("POST",), writes=True),
    *(ConsolePage(path, act, ("GET", "POST"), writes=True) for path in ACTIONS),
)
STREAMS: Mapping[str, Callable[[PageRequest], Part]] = {"/live/action": live_action}
