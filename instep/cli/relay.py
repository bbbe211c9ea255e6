"""`instep relay`: publish an outbox table to a topic."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from enum import StrEnum
from types import FrameType
from typing import Annotated, NoReturn

import msgspec
import typer

from instep import errors, settings, terminal, waiting
from instep.cli import completion, options, output, relay_report, resources
from instep.cli import help as help_pages
from instep.cli.options import GLOBAL, AsJson, Config, Debug, Execute, Limit, MetricsPort, Once

# How many sessions in a row ended soon after their start; a new process takes it over.
RESTARTS = "INSTEP_RELAY_RESTARTS"
STABLE_S = 30.0
RESTART_PAUSE_MAX_S = 5.0

app = help_pages.command_group("relay", "Publish an outbox table to a topic, exactly once.")

RelayName = Annotated[
    str | None,
    typer.Argument(
        metavar="[RELAY]",
        help="Relay. Needed if the settings declare more than one.",
        autocompletion=completion.relays,
    ),
]


class Place(StrEnum):
    """Where a relay continues after a reset."""

    START = "start"
    END = "end"
    CURRENT = "current"


@app.command()
def init(
    relay: RelayName = None,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the statements and change nothing.")
    ] = False,
    trigger: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE", help="Record changes of this table in the outbox, with triggers."
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Only record changes of these columns of the table. Default: all."
        ),
    ] = None,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Create the outbox and everything else a relay needs, in the source and in Kafka.

    What does not exist is created at once. With --trigger, which changes a table that exists, only
    --execute changes anything.
    """
    from instep.kafka import position_topic
    from instep.sources import outbox_shape, tables, trigger_statements, triggers

    declared = settings.load(GLOBAL.config)
    name, chosen = _relay(declared, relay)
    if columns and not trigger:
        raise errors.SettingsError("--columns needs --trigger", "name the table: --trigger TABLE")
    if sql and execute:
        raise errors.SettingsError(
            "--sql only prints; it cannot be combined with --execute", "give one"
        )
    plan_only = sql or (trigger is not None and not execute)
    plan = None
    if trigger:
        names = [column.strip() for column in (columns or "").split(",") if column.strip()]
        plan = triggers.plan(chosen, trigger, names)
    outbox_shape.check_existing(chosen)
    statements = tables.missing(chosen, name) if plan_only else tables.prepare(chosen, name)
    cost = None
    if plan is not None:
        statements += trigger_statements.statements(plan)
        if not plan_only:
            # A trigger that fails must fail here, not in a transaction of the application.
            with terminal.busy(sys.stderr, f"{name}: measuring the trigger"):
                cost = triggers.measure(chosen, plan)
            triggers.create(chosen, plan)
    if as_json:
        output.print_json(
            {
                "relay": name,
                "executed": not plan_only,
                "statements": statements,
                "notes": plan.notes if plan is not None else (),
                "cost": cost,
            }
        )
    else:
        for statement in statements:
            typer.echo(_printed(statement, chosen.source))
        for note in plan.notes if plan is not None else ():
            output.say(f"{name}: note: {note}")
    if plan_only:
        if not sql:
            output.say_dry_run()
        return
    if cost is not None:
        output.say(
            f"{name}: the trigger adds {cost.with_ms - cost.without_ms:.2f} ms to a transaction:"
            f" {cost.without_ms:.2f} ms without and {cost.with_ms:.2f} ms with it"
            f" (median of {cost.transactions} updates of one row)"
        )
    with resources.cluster(declared) as cluster:
        created = position_topic.create(cluster, position_topic.of_relay(name).topic)
    if created:
        output.say(f"{name}: created topic {position_topic.of_relay(name).topic}")
    output.say(f"{name}: ready")


@app.command()
def run(
    relay: RelayName = None,
    once: Once = False,
    metrics: MetricsPort = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Publish the rows of an outbox until stopped. A second process stands by.

    With --once, publish everything in the outbox, then exit. With --json as well, print at the end
    what was published.
    """
    options.require_once(once=once, as_json=as_json)
    from instep.relay import relay as relays
    from instep.relay import session

    declared = settings.load(GLOBAL.config)
    name, chosen = _relay(declared, relay)
    stop = _stop_event()
    progress, began = session.RelayProgress(), time.monotonic()
    report = relay_report.RelayReport(name, progress, stop, once=once)
    server = None
    if metrics is not None:
        from instep.metrics_server import MetricsServer
        from instep.relay.metrics import RelayMetrics

        server = MetricsServer(metrics, RelayMetrics(name, chosen, progress))
        output.say(f"{name}: metrics at {server.address}")
    report.start()
    error: errors.InstepError | None = None
    try:
        with resources.cluster(declared) as cluster:
            relays.run(
                name,
                chosen,
                cluster,
                once=once,
                stop=stop,
                say=report.say,
                progress=progress,
            )
    except (errors.SessionEnded, errors.BrokerUnreachable) as ended:
        report.end()
        if once and isinstance(ended, errors.BrokerUnreachable):
            error = ended
            raise
        if not stop.is_set():
            output.say(f"{name}: {ended.what}; {_consequence(ended)}")
            if server is not None:
                server.close()
                server = None
            _restart(stop, time.monotonic() - began)
    except errors.InstepError as ended:
        error = ended
        raise
    finally:
        report.end()
        if server is not None:
            server.close()
        if as_json:
            totals = {"rows": progress.rows, "transactions": progress.transactions}
            totals["dead"] = progress.dead
            output.print_json(
                {
                    "relay": name,
                    "state": "ended",
                    "totals": totals,
                    "error": output.error_for_json(error),
                }
            )
    output.say(
        f"{name}: stopped; this process published {progress.rows:,} rows in"
        f" {progress.transactions:,} transactions"
    )


@app.command()
def status(
    relay: RelayName = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show who runs a relay, how much it has published, and what waits."""
    from instep.sources import status as relay_status

    declared = settings.load(GLOBAL.config)
    names = [relay] if relay else list(declared.relays)
    found = [relay_status.read(name, settings.relay(declared, name)) for name in names]
    waiting = _waiting(declared, names)
    if as_json:
        shown = [{**msgspec.to_builtins(one), "waiting_rows": waiting[one.relay]} for one in found]
        output.print_json({"relays": shown})
        return
    head = ("RELAY", "STATE", "HOLDER", "PUBLISHED", "WAITING", "IN OUTBOX", "DEAD")
    rows = [
        (
            one.relay,
            one.state,
            one.holder or "",
            f"{one.published_rows:,}",
            "?" if waiting[one.relay] is None else f"{waiting[one.relay]:,}",
            f"{one.outbox_rows:,}",
            f"{one.dead_rows:,}",
        )
        for one in found
    ]
    typer.echo(output.table(head, rows))


@app.command()
def dead(
    relay: RelayName = None,
    limit: Limit = output.SHOWN_MAX,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """List the rows that a relay did not publish, each with its reason.

    They are in the source's table instep_outbox_dead, with value and headers.
    """
    from instep.sources import dead_rows

    declared = settings.load(GLOBAL.config)
    name, chosen = _relay(declared, relay)
    found = dead_rows.read(name, chosen, limit)
    if as_json:
        output.print_json({"relay": name, "rows": found})
    elif found:
        head = ("ID", "OCCURRENCE", "DOCUMENT", "BYTES", "AT", "REASON")
        rows = [
            (one.id, one.occurrence, one.document, one.value_bytes or 0, one.at, one.reason)
            for one in found
        ]
        typer.echo(output.table(head, rows))
        if len(found) >= limit:
            output.say(f"showing the first {limit}; -n shows more")
    else:
        output.say(f"{name}: no dead rows")


@app.command()
def reset(
    relay: Annotated[
        str, typer.Argument(help="The relay to reset.", autocompletion=completion.relays)
    ],
    to: Annotated[
        Place,
        typer.Option(
            help="start: publish every row in the outbox; end: only rows added later; current:"
            " continue at the relay's position and accept the topic as it is now."
        ),
    ],
    nothing_lost: Annotated[
        bool,
        typer.Option(
            "--nothing-lost",
            help="With --to current: continue on another server, which has everything that was"
            " published, as after pg_upgrade.",
        ),
    ] = False,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Decide which rows a relay publishes after a named stop. It must not be running."""
    from instep.relay import reset as resetting

    declared = settings.load(GLOBAL.config)
    name, chosen = _relay(declared, relay)
    plan = resetting.plan(name, chosen, to.value, nothing_lost=nothing_lost)
    if not as_json:
        typer.echo(f"{name}: published {plan.published_rows:,} rows so far")
        typer.echo(f"{name}: after the reset, {plan.consequence}")
    if execute:
        with resources.cluster(declared) as cluster:
            resetting.execute(name, chosen, cluster, to.value, nothing_lost=nothing_lost)
    if as_json:
        output.print_json({"plan": plan, "executed": execute})
    if execute:
        output.say(f"done; start it: instep relay run {name}")
    else:
        output.say_dry_run()


def _waiting(declared: settings.Settings, names: list[str]) -> dict[str, int | None]:
    """Return how many rows of each relay wait; None if Kafka does not say what is published."""
    from instep.relay import backlog

    found: dict[str, int | None] = dict.fromkeys(names)
    try:
        with resources.cluster(declared) as cluster:
            for name in names:
                position = backlog.published(name, cluster)
                found[name] = backlog.waiting(name, settings.relay(declared, name), position)
    except (errors.Unreachable, errors.NotAuthorised, errors.PositionMissing) as error:
        output.say(f"the rows that wait are not known: {error.what}")
    return found


def _printed(statement: str, source: str) -> str:
    """Return a statement as the database's own client takes it."""
    if source.startswith(("mysql", "mariadb")) and ";" in statement:
        return f"DELIMITER $$\n{statement} $$\nDELIMITER ;\n"
    return f"{statement};\n"


def _relay(declared: settings.Settings, name: str | None) -> tuple[str, settings.Relay]:
    """Return the named relay, or the only declared one."""
    if name is None and len(declared.relays) > 1:
        raise errors.SettingsError(
            "the settings declare more than one relay",
            f"name one (declared: {', '.join(declared.relays)}); each runs in a process of its own",
        )
    chosen = name or next(iter(declared.relays), "NAME")
    return chosen, settings.relay(declared, chosen)


def _stop_event() -> threading.Event:
    """Return an event that SIGTERM, Ctrl-C and SIGHUP set."""
    stop = threading.Event()
    set_stop = waiting.setter(stop)

    def request(_number: int, _frame: FrameType | None) -> None:
        set_stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, request)
    return stop


def _consequence(ended: errors.InstepError) -> str:
    """Return what follows from the end of a session."""
    if isinstance(ended, errors.LeaseLost):
        return "standing by from now on"
    if isinstance(ended, errors.BrokerUnreachable):
        return "the lease is free for another process, and a new session tries again"
    return "the lease is free for another process, or a new session finds out what was published"


def _restart(stop: threading.Event, lasted_s: float) -> NoReturn:
    """Continue in a new process with the same id.

    The Kafka client must not be used again after its transactions were fenced, and a second client
    in the same process has been seen to crash.
    """
    restarts = 0 if lasted_s > STABLE_S else int(os.environ.get(RESTARTS, "0")) + 1
    stop.wait(min(0.1 * 2 ** min(restarts, 10), RESTART_PAUSE_MAX_S))
    if stop.is_set():
        raise typer.Exit(0)
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ[RESTARTS] = str(restarts)
    os.execv(sys.executable, [sys.executable, "-m", "instep", *sys.argv[1:]])  # noqa: S606
