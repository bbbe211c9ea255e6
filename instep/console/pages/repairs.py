"""Reconcile and rewind: start or plan, look at the result, confirm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from instep.operate import rewind as rewinding
from instep.operate.rewind import RewindPlan
from instep.sinks import ledger_reader

RECONCILE: Mapping[str, tuple[str, ...]] = {
    "compare": (),
    "plan": ("--fix",),
    "repair": ("--fix", "--execute"),
}
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
    """Start a comparison, or a repair after its plan."""
    name, kind = view.pipeline(), view.text("kind", "compare")
    if kind not in RECONCILE:
        raise errors.SettingsError(f"there is no {kind!r}", f"choose {', '.join(RECONCILE)}")
    shown = view.workspace.command("reconcile", *RECONCILE[kind], items=[name])
    config = view.workspace.options.config
    arguments = ["reconcile", *RECONCILE[kind], "--json"]
    arguments += ["--config", str(config)] if config else []
    run = view.workspace.runs.start(
        NAMES[kind], name, view.person.name, shown, [*arguments, "--", name]
    )
    return view.redirect(f"/reconcile/run?{urlencode({'id': run.id})}")


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
    result = run.result() if not run.is_running else None
    reports = result.get("pipelines", []) if isinstance(result, dict) else []
    return {"run": run, "report": reports[0] if reports else None, "counts": COUNTS}


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
    """Show what a rewind would change per partition, or execute it."""
    name, place = view.pipeline(), view.require("to")
    partitions = _partitions(view.text("partition"))
    accept = bool(view.text("accept_new_topic"))
    declared = view.workspace.declared.pipelines[name]
    prepared = rewinding.prepare(
        view.workspace.cluster(),
        name,
        declared,
        places.parse_place(place),
        partitions,
        accept_new_topic=accept,
    )
    plan, why = prepared.plan, view.text("why").strip()
    chosen = [part for number in partitions for part in ("--partition", str(number))]
    chosen += ["--accept-new-topic"] if accept else []
    command = view.workspace.command(
        "rewind", f"--to={place}", *chosen, "--why", why or "REASON", "--execute", items=[name]
    )
    problem = None
    if view.request.method == "POST":
        problem = _problem(view, plan, why)
        if problem is None:
            rewinding.execute(name, declared, prepared, actor=view.person.name, reason=why)
            kept = DoneRewind(plan, view.person.name, why, command)
            return view.redirect(f"/rewind/done?{urlencode({'id': view.workspace.keep(kept)})}")
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
        plan=plan,
        problem=problem,
        seen=_summary(plan),
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


def _problem(view: PageRequest, plan: RewindPlan, why: str) -> str | None:
    if not why:
        return "Give a reason: whoever reads the decision later needs it."
    if view.text("seen") != _summary(plan):
        return "The plan has changed since you saw it. Nothing was changed: look at the new plan."
    return None


def _summary(plan: RewindPlan) -> str:
    return " ".join(f"{move.partition}:{move.current}:{move.new}" for move in plan.moves)


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
