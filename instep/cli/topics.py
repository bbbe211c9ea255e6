"""`instep topics`: list, describe, create, alter, grow, replicate and delete topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instep import errors, settings
from instep.cli import help as help_pages
from instep.cli import output, resources
from instep.cli.confirmation import confirm_deletion
from instep.cli.options import (
    GLOBAL,
    AsJson,
    Config,
    Debug,
    Execute,
    TopicName,
    TopicNames,
    Yes,
)
from instep.document.showing import counted

if TYPE_CHECKING:
    from instep.kafka.admin.topic_admin import Growth
    from instep.kafka.admin.topic_details import PartitionDetail, TopicDetail
    from instep.kafka.layout import Layout, Layouts

app = help_pages.command_group("topics", "Manage the topics of the cluster.")

NO_LEADER = "none"

Settings = Annotated[
    list[str] | None,
    typer.Option("-c", "--set", metavar="NAME=VALUE", help="A topic setting. Can be repeated."),
]


@app.command("list")
def list_topics(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="[PATTERN]", help="Only matching names, e.g. 'orders-*'."),
    ] = None,
    regex: Annotated[
        bool,
        typer.Option(
            "--regex", help="PATTERN is a regular expression that may match anywhere in a name."
        ),
    ] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Also show Kafka's own topics.")
    ] = False,
    under_replicated: Annotated[
        bool,
        typer.Option(
            "--under-replicated", help="Only partitions with a replica that is not in sync."
        ),
    ] = False,
    under_min_isr: Annotated[
        bool,
        typer.Option(
            "--under-min-isr",
            help="Only partitions with fewer replicas in sync than min.insync.replicas.",
        ),
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="Only partitions without a leader.")
    ] = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """List topics with partitions and replicas, or only partitions that have a problem.

    One request to the cluster is enough, however many topics there are.
    """
    from instep.kafka import layout

    declared = settings.load(GLOBAL.config)
    with resources.cluster(declared) as cluster:
        layouts = layout.read(cluster)
        names = layout.matching(layouts.topics, pattern, is_regex=regex)
        shown = [
            layouts.topics[name]
            for name in names
            if internal or not layouts.topics[name].is_internal
        ]
        if under_replicated or under_min_isr or unavailable:
            minimum: Mapping[str, int] = {}
            if under_min_isr:
                minimum = layout.min_in_sync(cluster, [topic.topic for topic in shown])
            unhealthy = [
                (topic.topic, part, minimum.get(topic.topic))
                for topic in shown
                for part in topic.partitions
                if (under_replicated and part.is_under_replicated)
                # As in kafka-topics, a partition without a leader is below any minimum.
                or ((unavailable or under_min_isr) and part.leader is None)
                or len(part.in_sync) < minimum.get(topic.topic, 0)
            ]
            _print_partitions(unhealthy, layouts, as_json)
            return
    hidden = len(names) - len(shown)
    if as_json:
        output.print_json(
            {"topics": [_overview(topic) for topic in shown], "internal_hidden": hidden}
        )
        return
    if shown:
        rows = [
            (topic.topic, len(topic.partitions), topic.replicas, _state(topic)) for topic in shown
        ]
        typer.echo(output.table(("NAME", "PARTITIONS", "REPLICAS", "IN-SYNC"), rows))
    partitions = counted(sum(len(topic.partitions) for topic in shown), "partition")
    own = ""
    if hidden:
        own = f"; {hidden} of Kafka's own topics are hidden (--internal shows them)"
    hint = output.missing_rights_hint(declared, names)
    output.say(f"{counted(len(shown), 'topic')}, {partitions}{own}{hint}")


@app.command("describe")
def describe(
    names: TopicNames,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show topics in detail: settings with their origin, and the state of each partition."""
    from instep.kafka.admin import topic_details

    with resources.cluster(settings.load(GLOBAL.config)) as cluster:
        details = topic_details.describe(cluster, list(dict.fromkeys(names)))
    if as_json:
        output.print_json({"topics": details})
        return
    for number, detail in enumerate(details):
        if number:
            typer.echo("")
        _print_detail(detail)
    compacted = ""
    if any(detail.is_compacted for detail in details):
        compacted = "compacted records, "
    output.say(
        f"RECORDS is estimated as END - FIRST: {compacted}transaction markers and aborted records"
        " count too"
    )


@app.command("create")
def create(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The new topics.")],
    partitions: Annotated[
        int, typer.Option("-p", "--partitions", min=1, metavar="N", help="Number of partitions.")
    ] = 6,
    replicas: Annotated[
        int | None,
        typer.Option(
            "-r",
            "--replicas",
            min=1,
            metavar="N",
            help="Replicas of each partition. Default: that of the cluster.",
        ),
    ] = None,
    given: Settings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Accept a topic that already exists.")
    ] = False,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Create topics and wait until each can be used. The plan is checked by the cluster."""
    from instep.kafka.admin import topic_admin

    config = topic_admin.parse_config(given or [])
    with resources.cluster(settings.load(GLOBAL.config)) as cluster:
        results = topic_admin.create(
            cluster,
            names,
            partitions,
            replicas,
            config,
            if_not_exists=if_not_exists,
            validate_only=not execute,
        )
    output.report_results(results, "topic", as_json, executed=execute)


@app.command("alter")
def alter(
    name: TopicName,
    given: Settings = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Reset this setting to the cluster's default. Can be repeated."
        ),
    ] = None,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Change settings of a topic and show each before and after. Other settings stay."""
    from instep.kafka.admin import topic_admin

    config = topic_admin.parse_config(given or [])
    with resources.cluster(settings.load(GLOBAL.config)) as cluster:
        changes = topic_admin.alter(
            cluster, name, config, list(dict.fromkeys(unset or [])), validate_only=not execute
        )
    if as_json:
        output.print_json({"topic": name, "executed": execute, "changes": changes})
    else:
        rows = [
            (
                change.before.name,
                change.before.value,
                change.before.source,
                change.after.value,
                change.after.source,
            )
            for change in changes
        ]
        typer.echo(output.table(("SETTING", "BEFORE", "FROM", "AFTER", "FROM"), rows))
    if not execute:
        output.say("the cluster accepts these settings")
        output.say_dry_run()


@app.command("grow")
def grow(
    name: TopicName,
    partitions: Annotated[
        int, typer.Option("-p", "--partitions", min=1, metavar="N", help="Number of partitions.")
    ],
    without_guard: Annotated[
        bool,
        typer.Option(
            "--without-guard",
            help="Add partitions even if a pipeline that reads the topic has no `event.order`.",
        ),
    ] = False,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Add partitions to a topic.

    Keys move to other partitions: without the guard, later events of a document may overtake
    earlier ones.
    """
    from instep.kafka import topics
    from instep.kafka.admin import topic_admin

    declared = settings.load(GLOBAL.config)
    unguarded = topic_admin.unguarded(declared, name)
    with resources.cluster(declared) as cluster:
        plan = topic_admin.plan_growth(cluster, name, partitions)
        if not as_json:
            _print_growth(plan)
            _report_guards(declared, name)
        if execute and unguarded and not without_guard:
            raise errors.SettingsError(
                f"pipeline {', '.join(map(repr, unguarded))} reads {name!r} without a guard:"
                " event.order is not set",
                "set event.order to the event's version or time and restart the pipeline,"
                " or accept the risk with --without-guard",
            )
        if execute:
            topics.grow(cluster, name, partitions)
    if as_json:
        guards = {"followed_by": topic_admin.followers(declared, name), "without_guard": unguarded}
        output.print_json({"plan": plan, **guards, "executed": execute})
    if execute:
        # Clients refresh their metadata every few minutes (metadata.max.age.ms).
        output.say(
            f"topic {name} has {partitions} partitions;"
            " readers and publishers notice the new ones within minutes"
        )
        return
    if unguarded and not without_guard:
        output.say("--execute also needs --without-guard, because a pipeline has no event.order")
    output.say_dry_run()


@app.command("replicate")
def replicate(
    name: TopicName,
    replicas: Annotated[
        int,
        typer.Option("-r", "--replicas", min=1, metavar="N", help="Replicas of each partition."),
    ],
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Change the number of replicas of a topic and wait until all are in sync.

    Readers and publishers are not interrupted.
    """
    from instep.kafka.admin import replication

    with resources.cluster(settings.load(GLOBAL.config)) as cluster:
        moves = replication.plan(cluster, name, replicas)
        if moves and not as_json:
            rows = [(name, move.partition, _nodes(move.now), _nodes(move.new)) for move in moves]
            typer.echo(output.table(("TOPIC", "PARTITION", "REPLICAS", "NEW"), rows))
        if moves and execute:
            replication.execute(cluster, name, moves, output.say)
    if as_json:
        output.print_json({"topic": name, "moves": moves, "executed": bool(moves) and execute})
    if not moves:
        output.say(f"topic {name} already has {counted(replicas, 'replica')} of each partition")
    elif not execute:
        output.say_dry_run()


@app.command("delete")
def delete(
    name: TopicName,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it even if a declared pipeline reads it.")
    ] = False,
    yes: Yes = False,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Delete a topic and all its records for good."""
    from instep.kafka import topics
    from instep.kafka.admin import topic_admin, topic_details

    declared = settings.load(GLOBAL.config)
    followers = topic_admin.followers(declared, name)
    with resources.cluster(declared) as cluster:
        topics.read_layouts(cluster, [name])  # raises TopicMissing, with similar names
        if followers and not force:
            raise errors.SettingsError(
                f"pipeline {', '.join(map(repr, followers))} reads topic {name!r}"
                " and would stop with TOPIC_GONE",
                "remove the pipeline from the settings first, or accept that with --force",
            )
        (detail,) = topic_details.describe(cluster, [name])
        # What would be lost is shown before the question.
        records = _total(detail, "records_estimated")
        if not as_json:
            head = ("TOPIC", "PARTITIONS", "RECORDS", "SIZE")
            size = output.size(_total(detail, "size_bytes"))
            typer.echo(output.table(head, [(name, len(detail.partitions), records, size)]))
        if execute:
            confirm_deletion("topic", [name], yes=yes)
            topics.delete(cluster, name)
    if as_json:
        plan = {"topic": name, "partitions": len(detail.partitions), "records": records}
        output.print_json({**plan, "executed": execute})
    if execute:
        output.say(f"topic {name} was deleted")
    else:
        output.say_dry_run()


def _overview(topic: Layout) -> dict[str, Any]:
    return {
        "name": topic.topic,
        "partitions": len(topic.partitions),
        "replicas": topic.replicas,
        "under_replicated": sum(part.is_under_replicated for part in topic.partitions),
        "unavailable": sum(part.leader is None for part in topic.partitions),
        "internal": topic.is_internal,
    }


def _state(topic: Layout) -> str:
    overview = _overview(topic)
    problems = {
        "without leader": overview["unavailable"],
        "under-replicated": overview["under_replicated"],
    }
    return ", ".join(f"{count} {problem}" for problem, count in problems.items() if count) or "all"


def _print_partitions(
    partitions: Sequence[tuple[str, Any, int | None]], layouts: Layouts, as_json: bool
) -> None:
    if as_json:
        parts = [
            {
                "topic": topic,
                "partition": part.partition,
                "leader": part.leader,
                "replicas": part.replicas,
                "in_sync": part.in_sync,
                "min_in_sync": minimum,
            }
            for topic, part, minimum in partitions
        ]
        output.print_json({"partitions": parts})
        return
    head = ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "IN-SYNC", "MIN-IN-SYNC")
    rows = [
        (
            topic,
            part.partition,
            NO_LEADER if part.leader is None else part.leader,
            _nodes(part.replicas, _down(part, layouts)),
            _nodes(part.in_sync),
            "" if minimum is None else minimum,
        )
        for topic, part, minimum in partitions
    ]
    if rows:
        typer.echo(output.table(head, rows))
    output.say(counted(len(rows), "partition"))


def _down(part: Any, layouts: Layouts) -> list[int]:
    return [node for node in part.replicas if node not in layouts.brokers]


def _print_detail(topic: TopicDetail) -> None:
    replicas = max((len(part.replicas) for part in topic.partitions), default=0)
    counts = f"{counted(len(topic.partitions), 'partition')}, {counted(replicas, 'replica')}"
    typer.echo(f"topic {topic.topic}, id {topic.id}, {counts}\n")
    if topic.settings is None:
        output.say(
            f"the settings of {topic.topic} are unknown:"
            " reading them needs DESCRIBE_CONFIGS permission and a healthy cluster"
        )
    elif topic.settings:
        rows = [
            (s.name, "(secret)" if s.value is None else s.value, s.source) for s in topic.settings
        ]
        typer.echo(output.table(("SETTING", "VALUE", "FROM"), rows) + "\n")
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
    body: list[Sequence[Any]] = [_detail_row(part) for part in topic.partitions]
    records, size = (_total(topic, field) for field in ("records_estimated", "size_bytes"))
    newest = max(
        (part.last_record_ms for part in topic.partitions if part.last_record_ms is not None),
        default=None,
    )
    body.append(("all", "", "", "", "", "", records, output.size(size), _time(newest, records)))
    typer.echo(output.table(head, body))
    leaderless = sum(part.leader is None for part in topic.partitions)
    if leaderless:
        output.say(
            f"{leaderless} without a leader: no reads or writes are possible there until one of the"
            " replicas is back"
        )


def _detail_row(part: PartitionDetail) -> Sequence[Any]:
    in_sync = _nodes(part.in_sync)
    if part.eligible:
        in_sync += f" (eligible: {_nodes(part.eligible)})"
    leader = NO_LEADER if part.leader is None else part.leader
    return (
        part.partition,
        leader,
        _nodes(part.replicas, part.offline),
        in_sync,
        part.first,
        part.end,
        part.records_estimated,
        output.size(part.size_bytes),
        _time(part.last_record_ms, part.records_estimated),
    )


def _nodes(nodes: Sequence[int], down: Sequence[int] = ()) -> str:
    return ",".join(f"{node}(down)" if node in down else str(node) for node in nodes) or "none"


def _time(at_ms: int | None, records: int | None) -> datetime | str | None:
    if at_ms is None:
        return "none" if records == 0 else None
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # a producer may write any number as timestamp
        return f"{at_ms} ms"


def _total(topic: TopicDetail, field: str) -> int | None:
    values = [getattr(part, field) for part in topic.partitions]
    return None if None in values else sum(values)


def _print_growth(plan: Growth) -> None:
    head = ("TOPIC", "PARTITIONS", "NEW", "KEYS-THAT-MOVE")
    typer.echo(output.table(head, [(plan.topic, plan.now, plan.new, f"{plan.moved_share:.0%}")]))
    if plan.sampled_keys:
        output.say(f"of {plan.sampled_keys} keys in the newest records, {plan.sampled_moved} move")
    if plan.sampled_elsewhere:
        output.say(
            f"{plan.sampled_elsewhere} of them are not in the partition that Java's partitioner"
            " (murmur2) chooses: a publisher chooses partitions in another way, and the share of"
            " its keys that move is different"
        )
    output.say(
        "existing records stay where they are; later records of a key that moves go to its new"
        " partition and may overtake earlier ones"
    )


def _report_guards(declared: settings.Settings, topic: str) -> None:
    from instep.kafka.admin import topic_admin

    followers = topic_admin.followers(declared, topic)
    unguarded = topic_admin.unguarded(declared, topic)
    if not followers:
        output.say(
            f"no pipeline of these settings reads {topic}:"
            " whether its other readers can handle that is not known"
        )
    for name in followers:
        guard = f"guarded by {declared.pipelines[name].event.order}"
        if name in unguarded:
            guard = "no guard: event.order is not set"
        output.say(f"pipeline {name}: {guard}")
