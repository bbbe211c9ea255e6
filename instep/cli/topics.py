"""Commands for topics: what `kafka-topics` and `kafka-configs` do, with a plan where keys move and a question before a loss."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instep import errors, settings
from instep.cli import completing, grouping, shared
from instep.cli.shared import GIVEN, AsJson, Config, Debug, Execute
from instep.document.showing import counted

if TYPE_CHECKING:
    from instep.kafka.admin.topic_details import PartitionDetail, TopicDetail
    from instep.kafka.layout import Layouts

app = typer.Typer()
topics_app = typer.Typer(
    name="topics",
    no_args_is_help=True,
    cls=grouping.GroupedCommands,
    rich_markup_mode=None,
    help="Topics of the cluster.",
)
app.add_typer(topics_app)

NO_LEADER = "none"

Settings = Annotated[
    list[str] | None,
    typer.Option("-c", "--set", metavar="NAME=VALUE", help="A topic setting; may be given again."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Have the cluster check it, and change nothing.")
]


@topics_app.command("list")
def list_topics(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="[PATTERN]", help="Only names like this, e.g. 'orders-*'."),
    ] = None,
    regex: Annotated[
        bool,
        typer.Option("--regex", help="PATTERN is a regular expression, found anywhere in a name."),
    ] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Kafka's own topics as well.")
    ] = False,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with a replica out of sync.")
    ] = False,
    under_min_isr: Annotated[
        bool,
        typer.Option(
            "--under-min-isr", help="Only partitions with fewer in sync than min.insync.replicas."
        ),
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="Only partitions without a leader.")
    ] = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Topics, with partitions and replicas; or the partitions that are in trouble. One request, however many there are."""
    from instep.kafka import layout

    declared = settings.load(GIVEN.config)
    with shared.cluster(declared) as cluster:
        found = layout.read(cluster)
        names = layout.matching(found.topics, pattern, is_regex=regex)
        shown = [
            found.topics[name] for name in names if internal or not found.topics[name].is_internal
        ]
        if under_replicated or under_min_isr or unavailable:
            least = (
                layout.min_in_sync(cluster, [one.topic for one in shown]) if under_min_isr else {}
            )
            troubled = [
                (one.topic, part, least.get(one.topic))
                for one in shown
                for part in one.partitions
                if (under_replicated and part.is_under_replicated)
                or ((unavailable or under_min_isr) and part.leader is None)
                or len(part.in_sync) < least.get(one.topic, 0)
            ]
            _print_troubled(troubled, found, as_json)
            return
    hidden = len(names) - len(shown)
    if as_json:
        shared.print_json({"topics": [_overview(one) for one in shown], "internal_hidden": hidden})
        return
    if shown:
        head = ("NAME", "PARTITIONS", "REPLICAS", "IN-SYNC")
        typer.echo(
            shared.table(
                head, [(one.topic, len(one.partitions), one.replicas, _state(one)) for one in shown]
            )
        )
    left = f"; {hidden} of Kafka's own are hidden (--internal shows them)" if hidden else ""
    counts = f"{counted(len(shown), 'topic')}, {counted(sum(len(one.partitions) for one in shown), 'partition')}"
    shared.say(f"{counts}{left}{shared.hidden(declared, names)}")


@topics_app.command("describe")
def describe(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Which topics.", autocompletion=completing.topics),
    ],
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show topics in detail: settings with their origin, and the state of each partition."""
    from instep.kafka.admin import topic_details

    with shared.cluster(settings.load(GIVEN.config)) as cluster:
        found = topic_details.describe(cluster, list(dict.fromkeys(names)))
    if as_json:
        shared.print_json({"topics": found})
        return
    for number, one in enumerate(found):
        if number:
            typer.echo("")
        _print_detail(one)
    compacted = "what compaction took out, " if any(one.is_compacted for one in found) else ""
    shared.say(
        f"RECORDS are estimated, as END - FIRST: {compacted}transaction markers and aborted records count too"
    )


@topics_app.command("create")
def create(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The new topics.")],
    partitions: Annotated[
        int, typer.Option("-p", "--partitions", min=1, help="How many partitions.")
    ] = 6,
    replicas: Annotated[
        int | None,
        typer.Option(
            "-r", "--replicas", min=1, help="Copies of each; left out: the cluster's default."
        ),
    ] = None,
    given: Settings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is there already is fine.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Make topics, and wait until each can be used."""
    from instep.kafka.admin import topic_admin

    config = topic_admin.parse_config(given or [])
    with shared.cluster(settings.load(GIVEN.config)) as cluster:
        done = topic_admin.create(
            cluster,
            names,
            partitions,
            replicas,
            config,
            if_not_exists=if_not_exists,
            validate_only=dry_run,
        )
    shared.report(done, "topic", as_json)


@topics_app.command("alter")
def alter(
    name: Annotated[str, typer.Argument(help="Which topic.", autocompletion=completing.topics)],
    given: Settings = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Back to the cluster's default; may be given again."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Change some settings of a topic, and show each before and after. All others stay as they are."""
    from instep.kafka.admin import topic_admin

    config = topic_admin.parse_config(given or [])
    with shared.cluster(settings.load(GIVEN.config)) as cluster:
        changes = topic_admin.alter(
            cluster, name, config, list(dict.fromkeys(unset or [])), validate_only=dry_run
        )
    if as_json:
        shared.print_json({"topic": name, "executed": not dry_run, "changes": changes})
    else:
        rows = [
            (
                one.before.name,
                one.before.value,
                one.before.source,
                one.after.value,
                one.after.source,
            )
            for one in changes
        ]
        typer.echo(shared.table(("SETTING", "BEFORE", "FROM", "AFTER", "FROM"), rows))
    if dry_run:
        shared.say("the cluster would take it; nothing was changed")


@topics_app.command("grow")
def grow(
    name: Annotated[str, typer.Argument(help="Which topic.", autocompletion=completing.topics)],
    partitions: Annotated[
        int, typer.Option("-p", "--partitions", min=1, help="How many partitions it shall have.")
    ],
    without_guard: Annotated[
        bool,
        typer.Option(
            "--without-guard", help="Also when a pipeline that follows it has no `event.order`."
        ),
    ] = False,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Give a topic more partitions. Keys move: later events of a document may overtake earlier ones, unless the guard is on."""
    from instep.kafka import topics
    from instep.kafka.admin import topic_admin

    declared = settings.load(GIVEN.config)
    unguarded = topic_admin.unguarded(declared, name)
    with shared.cluster(declared) as cluster:
        plan = topic_admin.plan_growth(cluster, name, partitions)
        if not as_json:
            _print_growth(plan)
            _say_guards(declared, name)
        if execute and unguarded and not without_guard:
            raise errors.SettingsError(
                f"pipeline {', '.join(map(repr, unguarded))} follows {name!r} without a guard of its own: event.order is not set",
                "set event.order to the event's version or time and start it again, or accept it with --without-guard",
            )
        if execute:
            topics.grow(cluster, name, partitions)
    if as_json:
        guards = {"followed_by": topic_admin.followers(declared, name), "without_guard": unguarded}
        shared.print_json({"plan": plan, **guards, "executed": execute})
    if execute:
        shared.say(
            f"topic {name} has {partitions} partitions; readers see the new ones within minutes, publishers too"
        )
    else:
        shared.say(
            f"nothing was changed; with {'--without-guard ' if unguarded and not without_guard else ''}--execute it is"
        )


@topics_app.command("replicate")
def replicate(
    name: Annotated[str, typer.Argument(help="Which topic.", autocompletion=completing.topics)],
    replicas: Annotated[
        int, typer.Option("-r", "--replicas", min=1, help="How many copies of each partition.")
    ],
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Give a topic more copies of each partition, or fewer, and wait until all are in sync. Readers and publishers go on."""
    from instep.kafka.admin import replication

    with shared.cluster(settings.load(GIVEN.config)) as cluster:
        moves = replication.plan(cluster, name, replicas)
        if moves and not as_json:
            rows = [(name, move.partition, _nodes(move.now), _nodes(move.new)) for move in moves]
            typer.echo(shared.table(("TOPIC", "PARTITION", "REPLICAS", "NEW"), rows))
        if moves and execute:
            replication.execute(cluster, name, moves, shared.say)
    if as_json:
        shared.print_json({"topic": name, "moves": moves, "executed": bool(moves) and execute})
    if not moves:
        shared.say(f"topic {name} has {counted(replicas, 'replica')} of each partition already")
    elif not execute:
        shared.say("nothing was changed; with --execute it is")


@topics_app.command("delete")
def delete(
    name: Annotated[str, typer.Argument(help="Which topic.", autocompletion=completing.topics)],
    confirm: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name again; left out: asked for.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also when a declared pipeline follows it.")
    ] = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Delete a topic and every record in it, for good."""
    from instep.kafka import topics
    from instep.kafka.admin import topic_admin

    declared = settings.load(GIVEN.config)
    followers = topic_admin.followers(declared, name)
    with shared.cluster(declared) as cluster:
        known = topics.placed(cluster, [name]).topics
        if followers and not force:
            raise errors.SettingsError(
                f"pipeline {', '.join(map(repr, followers))} follows topic {name!r}, and stops when it is gone (TOPIC_GONE)",
                "take it out of the settings first, or accept that with --force",
            )
        if confirm is None and sys.stdin.isatty():
            shared.say(
                f"topic {name} has {counted(len(known[name].partitions), 'partition')}; what is deleted does not come back"
            )
            confirm = typer.prompt("its name again", err=True)
        if confirm != name:
            why = (
                "the name was not confirmed" if confirm is None else f"{confirm!r} is not its name"
            )
            raise errors.SettingsError(
                f"topic {name!r} was not deleted: {why}",
                f"instep topics delete {shlex.quote(name)} --confirm {shlex.quote(name)}",
            )
        topics.delete(cluster, name)
    shared.say(f"topic {name} is deleted")


def _overview(one: Any) -> dict[str, Any]:
    return {
        "name": one.topic,
        "partitions": len(one.partitions),
        "replicas": one.replicas,
        "under_replicated": sum(part.is_under_replicated for part in one.partitions),
        "unavailable": sum(part.leader is None for part in one.partitions),
        "internal": one.is_internal,
    }


def _state(one: Any) -> str:
    found = _overview(one)
    words = [
        (found["unavailable"], "without leader"),
        (found["under_replicated"], "under-replicated"),
    ]
    return ", ".join(f"{count} {what}" for count, what in words if count) or "all"


def _print_troubled(
    troubled: Sequence[tuple[str, Any, int | None]], found: Layouts, as_json: bool
) -> None:
    if as_json:
        parts = [
            {
                "topic": topic,
                "partition": part.partition,
                "leader": part.leader,
                "replicas": part.replicas,
                "in_sync": part.in_sync,
                "min_in_sync": least,
            }
            for topic, part, least in troubled
        ]
        shared.print_json({"partitions": parts})
        return
    head = ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN-SYNC", "MIN-IN-SYNC")
    rows = [
        (
            topic,
            part.partition,
            NO_LEADER if part.leader is None else part.leader,
            _nodes(part.replicas, _down(part, found)),
            _nodes(part.in_sync),
            "" if least is None else least,
        )
        for topic, part, least in troubled
    ]
    if rows:
        typer.echo(shared.table(head, rows))
    shared.say(counted(len(rows), "partition"))


def _down(part: Any, found: Layouts) -> list[int]:
    return [node for node in part.replicas if node not in found.brokers]


def _print_detail(one: TopicDetail) -> None:
    replicas = max((len(part.replicas) for part in one.partitions), default=0)
    typer.echo(
        f"topic {one.topic}, id {one.id}, {counted(len(one.partitions), 'partition')}, {counted(replicas, 'replica')}\n"
    )
    if one.settings is None:
        shared.say(
            f"the settings of {one.topic} are not told: that needs the right DESCRIBE_CONFIGS, and a cluster in order"
        )
    elif one.settings:
        rows = [
            (s.name, "(secret)" if s.value is None else s.value, s.source) for s in one.settings
        ]
        typer.echo(shared.table(("SETTING", "VALUE", "FROM"), rows) + "\n")
    head = (
        "PARTITION",
        "LEADER",
        "REPLICAS",
        "IN-SYNC",
        "FIRST",
        "END",
        "RECORDS",
        "SIZE",
        "LAST-RECORD",
    )
    body: list[Sequence[Any]] = [_detail_row(part) for part in one.partitions]
    records, size = (_total(one, field) for field in ("records_estimated", "size_bytes"))
    newest = max(
        (part.last_record_ms for part in one.partitions if part.last_record_ms is not None),
        default=None,
    )
    body.append(("all", "", "", "", "", "", records, shared.size(size), _time(newest, records)))
    typer.echo(shared.table(head, body))
    unled = sum(part.leader is None for part in one.partitions)
    if unled:
        shared.say(
            f"{unled} without a leader: nothing can be read or written there until one of its replicas is back"
        )


def _detail_row(part: PartitionDetail) -> Sequence[Any]:
    in_sync = _nodes(part.in_sync) + (
        f" (eligible: {_nodes(part.eligible)})" if part.eligible else ""
    )
    leader = NO_LEADER if part.leader is None else part.leader
    return (
        part.partition,
        leader,
        _nodes(part.replicas, part.offline),
        in_sync,
        part.first,
        part.end,
        part.records_estimated,
        shared.size(part.size_bytes),
        _time(part.last_record_ms, part.records_estimated),
    )


def _nodes(nodes: Sequence[int], down: Sequence[int] = ()) -> str:
    return ",".join(f"{node}(down)" if node in down else str(node) for node in nodes) or "none"


def _time(at_ms: int | None, records: int | None) -> datetime | str | None:
    if at_ms is None:
        return "none" if records == 0 else None
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # a timestamp is any number that a producer writes
        return f"{at_ms} ms"


def _total(one: TopicDetail, field: str) -> int | None:
    values = [getattr(part, field) for part in one.partitions]
    return None if None in values else sum(values)


def _print_growth(plan: Any) -> None:
    head = ("TOPIC", "PARTITIONS", "NEW", "KEYS-THAT-MOVE")
    typer.echo(shared.table(head, [(plan.topic, plan.now, plan.new, f"{plan.moved_share:.0%}")]))
    if plan.sampled_keys:
        shared.say(
            f"of {plan.sampled_keys} keys among its newest records, {plan.sampled_moved} move"
        )
    if plan.sampled_elsewhere:
        shared.say(
            f"{plan.sampled_elsewhere} of them do not lie where Java's partitioner (murmur2) puts them:"
            " some publisher chooses partitions in another way, and the share is another for its keys"
        )
    shared.say(
        "records stay where they are; later records of a key that moves go to its new partition, and may overtake earlier ones"
    )


def _say_guards(declared: settings.Settings, topic: str) -> None:
    from instep.kafka.admin import topic_admin

    followers, unguarded = (
        topic_admin.followers(declared, topic),
        topic_admin.unguarded(declared, topic),
    )
    if not followers:
        shared.say(
            f"no pipeline of these settings follows {topic}: whether its other readers bear that is not known here"
        )
    for name in followers:
        order = declared.pipelines[name].event.order
        shared.say(
            f"pipeline {name}: "
            + ("no guard: event.order is not set" if name in unguarded else f"guarded by {order}")
        )
