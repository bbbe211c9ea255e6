"""Reconcile and rewind: start or plan, look at the result, confirm."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from instep import errors, extras
from instep.console import rendering
from instep.console.command_runs import CommandRun
from instep.console.live import Part
from instep.console.requests import ConsolePage, PageRequest
from instep.kafka import places
from instep.kafka.places import EachOffset, Place
from instep.operate import rewind as rewinding
from instep.operate.rewind import Prepared, RewindPlan
from instep.sinks import ledger_reader

RECONCILE: Mapping[str, tuple[str, ...]] = {
    "compare": (),
    "plan": ("--fix",),
    "repair": ("--fix", "--execute"),
}
CHANGED = "The plan has changed since you saw it. Nothing was changed: look at the new plan."
MOVED = (
    "The ledger has moved since you saw the plan. Nothing was changed: if the pipeline runs, stop"
    " it first, or choose a place behind it."
)
NO_REASON = "Give a reason: whoever reads the decision later needs it."
# a partition of a plan that was shown: its number, where it was, and where it goes
SHOWN_MOVE = re.compile(r"([0-9]{1,9}):([0-9]{1,19}|None):([0-9]{1,19})(:diverged)?")
NAMES = {"compare": "Comparison", "plan": "Comparison with repair plan", "repair": "Repair"}
COUNTS = (
    "documents",
    "documents_in_step",
    "missing",
    "extra",
    "different",
    "parked",
    "not_in_log",
    "unreadable",
)


class DoneRewind(msgspec.Struct, frozen=True):
    """A rewind that was executed, kept for its page."""

    plan: RewindPlan
    actor: str
    reason: str
    command: str


# --- reconcile ------------------------------------------------------------------------------------


def reconcile(view: PageRequest) -> Response:
    """Show the comparisons that were started here, and start one."""
    name = view.pipeline()
    problem = view.no_writes
    try:
        extras.require_spark()
    except errors.MissingPart as error:
        problem = f"{error.what}: {error.remedy}"
    return view.render(
        "reconcile.html",
        f"Reconcile {name}",
        name=name,
        runs=view.workspace.runs.of(name),
        problem=problem,
        command_line=view.workspace.command("reconcile", items=[name]),
    )


def start_reconcile(view: PageRequest) -> Response:
    """Start a comparison, or the repair that a plan has shown."""
    name, kind = view.pipeline(), view.text("kind", "compare")
    if kind not in RECONCILE:
        raise errors.SettingsError(f"there is no {kind!r}", f"choose {', '.join(RECONCILE)}")
    options = list(RECONCILE[kind])
    if kind == "repair":
        options += _planned(view, name)
        why = view.text("why").strip()
        if not why:
            raise errors.SettingsError("a repair needs a reason; nothing was changed", NO_REASON)
        options += ["--why", why]
    shown = view.workspace.command("reconcile", *options, items=[name])
    config = view.workspace.options.config
    arguments = ["reconcile", *options, "--json"]
    arguments += ["--config", str(config)] if config else []
    run = view.workspace.runs.start(
        NAMES[kind], name, view.person.name, shown, [*arguments, "--", name]
    )
    return view.redirect(f"/reconcile/run?{urlencode({'id': run.id})}")


def _planned(view: PageRequest, name: str) -> list[str]:
    """Return the options that bind a repair to the plan of the run that the form names."""
    run = view.workspace.runs.find(view.require("plan"))
    files = [report["rows_file"] for report in _reports(run) if report["rows_file"]]
    if run.pipeline != name or run.name != NAMES["plan"] or not files:
        raise errors.SettingsError(
            f"this run has no plan to repair pipeline {name}; nothing was changed",
            "compare and plan the repair first, and start it from its result",
        )
    return [part for file in files for part in ("--planned", file)]


def stop_reconcile(view: PageRequest) -> Response:
    """Interrupt a comparison."""
    run = view.workspace.runs.find(view.require("id"))
    run.stop()
    return view.redirect(f"/reconcile/run?{urlencode({'id': run.id})}")


def reconcile_run(view: PageRequest) -> Response:
    """Show the progress of a comparison, and its result."""
    run = view.workspace.runs.find(view.require("id"))
    return view.render("reconcile_run.html", f"{run.name} of {run.pipeline}", **_run_values(run))


def live_run(view: PageRequest) -> Part:
    """Return the progress of a comparison as it changes."""
    name = view.require("id")

    def part() -> tuple[object, Callable[[], str]]:
        run = view.workspace.runs.find(name)
        return run.changes, lambda: rendering.render(
            "reconcile_part.html", view=view, **_run_values(run)
        )

    return part


def _run_values(run: CommandRun) -> dict[str, Any]:
    reports = _reports(run)
    return {
        "run": run,
        "reports": reports,
        "counts": COUNTS,
        "can_repair": run.name == NAMES["plan"] and any(one["rows_file"] for one in reports),
    }


def _reports(run: CommandRun) -> list[dict[str, Any]]:
    """Return the reports of a run that has ended: one for each table of the pipeline."""
    result = run.result() if not run.is_running else None
    return result.get("pipelines", []) if isinstance(result, dict) else []


# --- rewind ---------------------------------------------------------------------------------------


def rewind(view: PageRequest) -> Response:
    """Show the ledger, and where a rewind may go."""
    name = view.pipeline()
    ledger = ledger_reader.ledger(name, view.workspace.declared.pipelines[name])
    return view.render(
        "rewind.html",
        f"Rewind {name}",
        name=name,
        ledger=[ledger[number] for number in sorted(ledger)],
        command_line=view.workspace.command("rewind", "--to", "PLACE", items=[name]),
    )


def rewind_plan(view: PageRequest) -> Response:
    """Show what a rewind would change per partition, or execute what was shown."""
    name, place = view.pipeline(), view.require("to")
    partitions = _partitions(view.text("partition"))
    accept = bool(view.text("accept_new_topic"))
    why = view.text("why").strip()
    chosen = [part for number in partitions for part in ("--partition", str(number))]
    chosen += ["--accept-new-topic"] if accept else []
    command = view.workspace.command(
        "rewind", f"--to={place}", *chosen, "--why", why or "REASON", "--execute", items=[name]
    )
    problem = None
    if view.request.method == "POST":
        shown = _as_shown(view, name, accept=accept)
        problem = _problem(view, shown, why)
        if shown is not None and problem is None:
            declared = view.workspace.declared.pipelines[name]
            rewinding.execute(name, declared, shown, actor=view.person.name, reason=why)
            kept = DoneRewind(shown.plan, view.person.name, why, command)
            return view.redirect(f"/rewind/done?{urlencode({'id': view.workspace.keep(kept)})}")
    prepared = _prepared(view, name, places.parse_place(place), partitions, accept=accept)
    query = {
        "pipeline": name,
        "to": place,
        "partition": view.text("partition"),
        "accept_new_topic": "1" if accept else "",
    }
    return view.render(
        "rewind_plan.html",
        f"Rewind {name}: plan",
        http_status=409 if problem else 200,
        plan=prepared.plan,
        place=place,
        problem=problem,
        seen=_summary(prepared),
        query=urlencode(query),
        command_line=command,
    )


def rewind_done(view: PageRequest) -> Response:
    """Show what a rewind did."""
    kept = view.workspace.result(view.require("id"))
    if not isinstance(kept, DoneRewind):
        raise errors.SettingsError(
            "the result of this rewind is not kept any more",
            "its decisions are: open the page Decisions",
        )
    return view.render("rewind_done.html", f"Pipeline {kept.plan.pipeline} was moved", done=kept)


def _prepared(
    view: PageRequest, name: str, place: Place, partitions: Collection[int], *, accept: bool
) -> Prepared:
    declared = view.workspace.declared.pipelines[name]
    return rewinding.prepare(
        view.workspace.cluster(), name, declared, place, partitions, accept_new_topic=accept
    )


def _as_shown(view: PageRequest, name: str, *, accept: bool) -> Prepared | None:
    """Return a plan with the offsets that were shown; None if the form names none.

    The end of the log and a time before now move on, so the plan is made again from its offsets.
    """
    new = {number: to for number, (_, to, _) in _shown_moves(view.text("seen")).items()}
    if not new:
        return None
    # a new topic moves every partition, and none may be named
    return _prepared(view, name, EachOffset(new), () if accept else list(new), accept=accept)


def _problem(view: PageRequest, shown: Prepared | None, why: str) -> str | None:
    """Return why the plan that was shown cannot be executed, or None."""
    if not why:
        return NO_REASON
    seen = view.text("seen")
    if shown is None or seen.split(" ")[: len(_topic_ids(shown))] != _topic_ids(shown):
        return CHANGED
    before, moves = _shown_moves(seen), _shown_moves(_summary(shown))
    targets = [{key: value[1:] for key, value in one.items()} for one in (before, moves)]
    if targets[0] != targets[1]:
        return CHANGED
    stay = all(
        before[number][0] == now or (not diverged and rewinding.stays(before[number][0], now, new))
        for number, (now, new, diverged) in moves.items()
    )
    return None if stay else MOVED


def _topic_ids(prepared: Prepared) -> list[str]:
    return sorted({row.topic_id for row in prepared.rows.values()})


def _summary(prepared: Prepared) -> str:
    """Return what identifies a plan: the topic, and what happens to each partition."""
    moves = [
        f"{move.partition}:{move.current}:{move.new}{':diverged' if move.diverged else ''}"
        for move in prepared.plan.moves
    ]
    return " ".join([*_topic_ids(prepared), *moves])


def _shown_moves(seen: str) -> dict[int, tuple[int | None, int, bool]]:
    """Return where each partition of a plan was, where it goes, and whether its log diverged."""
    return {
        int(move[1]): (None if move[2] == "None" else int(move[2]), int(move[3]), bool(move[4]))
        for move in filter(None, map(SHOWN_MOVE.fullmatch, seen.split(" ")))
    }


def _partitions(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise errors.SettingsError(f"{text!r} does not name partitions", "write e.g. 0 or 0,2")
    return sorted({int(part) for part in parts})


PAGES = (
    ConsolePage("/reconcile", reconcile, of_pipeline=True),
    ConsolePage("/reconcile/run", reconcile_run),
    ConsolePage("/reconcile/start", start_reconcile, ("POST",), writes=True),
    ConsolePage("/reconcile/stop", stop_reconcile, ("POST",), writes=True),
    ConsolePage("/rewind", rewind, of_pipeline=True),
    ConsolePage("/rewind/plan", rewind_plan, ("GET", "POST"), writes=True),
    ConsolePage("/rewind/done", rewind_done, writes=True),
)
STREAMS: Mapping[str, Callable[[PageRequest], Part]] = {"/live/reconcile": live_run}
