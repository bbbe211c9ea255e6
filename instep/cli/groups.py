"""`instep groups`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from instep import errors, settings
from instep.cli import completion, options, output, resources
from instep.cli import help as help_pages
from instep.cli.confirmation import confirm_deletion
from instep.cli.options import GLOBAL, All, AsJson, Config, Debug, Execute, Yes
from instep.document.showing import counted

if TYPE_CHECKING:
    from instep.kafka.admin.consumer_groups import Group, PartitionPosition
    from instep.kafka.admin.resets import Destination, GroupMove, GroupMoveResult
    from instep.kafka.connection import Cluster
    from instep.kafka.offsets import TopicPartitionPair

# Named as kafka-consumer-groups names them; LAG-SECONDS and NOTE are added.
DESCRIBE_COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "LAG-SECONDS",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
    "NOTE",
)

# All but --to are spelled as in kafka-consumer-groups.
DESTINATIONS = (
    "--to",
    "--to-earliest",
    "--to-latest",
    "--to-offset",
    "--to-datetime",
    "--by-duration",
    "--shift-by",
    "--to-current",
    "--from-file",
)

app = help_pages.command_group("groups", "Manage the consumer groups of the cluster.")


@app.command("list")
def list_groups(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="[PATTERN]", help="Only matching names, e.g. 'billing-*'."),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE", help="Only in this state: Stable, Empty, …. Can be repeated."
        ),
    ] = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """List groups with their state and protocol. The mirror group of a pipeline is marked."""
    from instep.kafka import layout
    from instep.kafka.admin import consumer_groups

    declared = settings.load(GLOBAL.config)
    with resources.cluster(declared) as cluster:
        listings, failures = consumer_groups.listings(cluster)
    wanted = set(layout.matching([listing.group for listing in listings], pattern))
    states = {word.lower() for word in state or ()}
    shown = [
        listing
        for listing in listings
        if listing.group in wanted and (not states or listing.state.lower() in states)
    ]
    if as_json:
        groups = [
            {
                "group": listing.group,
                "state": listing.state,
                "protocol": listing.protocol,
                "mirrors_pipeline": bool(_mirrored_pipeline(declared, listing.group)),
            }
            for listing in shown
        ]
        output.print_json({"groups": groups})
    else:
        if shown:
            rows = [
                (
                    listing.group,
                    listing.state,
                    listing.protocol,
                    _mirror_note(declared, listing.group),
                )
                for listing in shown
            ]
            typer.echo(output.table(("GROUP", "STATE", "PROTOCOL", "NOTE"), rows))
        hint = output.missing_rights_hint(declared, listings)
        output.say(f"{counted(len(shown), 'group')}{hint}")
    # A broker that does not answer hides the groups that it coordinates.
    for failure in failures:
        output.say(f"{output.ERROR}groups may be missing: {failure}")
    if failures:
        raise typer.Exit(1)


@app.command("describe")
def describe(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[GROUP]...", help="Groups.", autocompletion=completion.groups),
    ] = None,
    everything: All = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Show groups with members, assignment, and lag in records and in seconds.

    A lag that is not known is shown as unknown, not as 0.
    """
    from instep.kafka.admin import consumer_groups

    if bool(names) == everything:
        raise errors.SettingsError(
            "it is not clear which groups to describe", "name groups or give --all, but not both"
        )
    declared = settings.load(GLOBAL.config)
    with resources.cluster(declared) as cluster:
        wanted = names or [group.group for group in consumer_groups.listings(cluster)[0]]
        groups = consumer_groups.describe_each(cluster, list(dict.fromkeys(wanted)))
    if as_json:
        output.print_json({"groups": [_json(declared, group) for group in groups]})
        return
    for number, group in enumerate(groups):
        if number:
            typer.echo("")
        _print_group(declared, group)


Topic = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPIC[:0,1]",
        help="A topic, or some of its partitions. Can be repeated.",
        autocompletion=completion.topics,
    ),
]
AllTopics = Annotated[
    bool, typer.Option("--all-topics", help="All topics in which the group has offsets.")
]
To = Annotated[
    str | None,
    typer.Option(metavar="PLACE", help=f"{options.PLACES}."),
]
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="To the start of the log.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="To the end of the log.")]
ToOffset = Annotated[int | None, typer.Option(min=0, metavar="OFFSET", help="To this offset.")]
ToDatetime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="To the first record at or after this time: 2026-11-01T08:00 (UTC).",
    ),
]
ByDuration = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="To this duration before now: 1h, P1DT2H."),
]
ShiftBy = Annotated[
    int | None, typer.Option(metavar="N", help="Shift by N offsets; negative moves back.")
]
ToCurrent = Annotated[
    bool,
    typer.Option("--to-current", help="To the current offsets, for use with --export."),
]
FromFile = Annotated[
    str | None,
    typer.Option(metavar="FILE|-", help="To the offsets of a CSV file: topic,partition,offset."),
]
NewGroup = Annotated[
    bool, typer.Option("--new-group", help="Create the group if it does not exist.")
]
Export = Annotated[bool, typer.Option("--export", help="Print the plan as CSV, for --from-file.")]


@app.command("reset")
def reset(
    group: Annotated[str, typer.Argument(help="Group.", autocompletion=completion.groups)],
    topic: Topic = None,
    all_topics: AllTopics = False,
    to: To = None,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    by_duration: ByDuration = None,
    shift_by: ShiftBy = None,
    to_current: ToCurrent = False,
    from_file: FromFile = None,
    new_group: NewGroup = False,
    export: Export = False,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Move a group that has no members to another place in the log."""
    from instep.kafka.admin import resets

    destination = _destination(
        group,
        to,
        to_earliest,
        to_latest,
        to_offset,
        to_datetime,
        by_duration,
        shift_by,
        to_current,
        from_file,
    )
    _check_topics(destination, topic, all_topics=all_topics)
    declared = settings.load(GLOBAL.config)
    _warn_about_mirror(declared, group)
    with resources.cluster(declared) as cluster:
        if isinstance(destination, resets.ToOffsets):
            pairs = list(destination.offsets)
        else:
            pairs = resets.select_partitions(cluster, group, topic or (), all_topics=all_topics)
        moves = resets.plan(cluster, group, pairs, destination, new_group=new_group)
        results = resets.execute(cluster, group, moves) if execute else []
    if export:
        typer.echo(resets.to_csv(moves), nl=False)
    elif as_json:
        output.print_json(_json_moves(group, moves, results))
    else:
        head = ("GROUP", "TOPIC", "PARTITION", "CURRENT", "NEW", "DELTA")
        typer.echo(output.table(head, [_move_row(group, move) for move in moves]))
    _report_moves(group, results, len(moves))


@app.command("delete")
def delete(
    names: Annotated[
        list[str],
        typer.Argument(metavar="GROUP...", help="Groups.", autocompletion=completion.groups),
    ],
    yes: Yes = False,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Delete groups that have no members, with their offsets, for good."""
    from instep.kafka.admin import consumer_groups, outcomes

    declared = settings.load(GLOBAL.config)
    selected = list(dict.fromkeys(names))
    with resources.cluster(declared) as cluster:
        if execute:
            confirm_deletion("group", selected, yes=yes)
            results = outcomes.of_each(selected, lambda name: consumer_groups.delete(cluster, name))
        else:
            results = outcomes.of_each(selected, lambda name: _deletion_plan(cluster, name))
    for name in selected:
        if _mirrored_pipeline(declared, name):
            output.say(
                f"group {name} mirrors a pipeline, which creates it again at its next commit"
            )
    output.report_results(results, "group", as_json, executed=execute)


def _deletion_plan(cluster: Cluster, name: str) -> str:
    from instep.kafka.admin import consumer_groups

    group = consumer_groups.describe(cluster, name)
    if group.members:
        raise consumer_groups.occupied(name, group.members)
    return f"would be deleted with {counted(len(group.positions), 'offset')}"


def _mirrored_pipeline(declared: settings.Settings, group: str) -> str | None:
    """Return the pipeline whose position a group mirrors."""
    from instep.kafka import groups

    return groups.mirrored_pipeline(declared.pipelines, group)


def _mirror_note(declared: settings.Settings, group: str) -> str:
    mirrored = _mirrored_pipeline(declared, group)
    return f"mirror of pipeline {mirrored}" if mirrored else ""


def _print_group(declared: settings.Settings, group: Group) -> None:
    facts = [group.state, f"{group.protocol} protocol"]
    if group.assignor:
        facts.append(f"assignor {group.assignor}")
    facts += [f"coordinator {group.coordinator}", counted(len(group.members), "member")]
    output.say(f"group {group.group}: {', '.join(facts)}")
    if note := _mirror_note(declared, group.group):
        output.say(f"{note}: instep status shows its position")
    rows: list[Sequence[Any]] = []
    topics = list(dict.fromkeys(position.topic for position in group.positions))
    for topic in topics:
        of_topic = [position for position in group.positions if position.topic == topic]
        rows += [_position_row(group, position) for position in of_topic]
        if len(of_topic) > 1:
            rows.append(_total_row(group.group, topic, of_topic))
    if len(topics) > 1:
        rows.append(_total_row(group.group, "all", group.positions))
    # A group with more members than partitions has members without an assignment.
    for member in group.members:
        if not member.assigned:
            identity = (member.id, member.host, member.client_id)
            rows.append((group.group, *["-"] * 6, *identity, "no assignment"))
    if rows:
        typer.echo(output.table(DESCRIBE_COLUMNS, rows))
    else:
        output.say("it has neither members nor offsets")


def _position_row(group: Group, position: PartitionPosition) -> Sequence[Any]:
    member = position.member
    identity = (member.id, member.host, member.client_id) if member else ("-", "-", "-")
    current = "-" if position.current is None else position.current
    return (
        group.group,
        position.topic,
        position.partition,
        current,
        position.end,
        position.lag_records,
        position.lag_seconds,
        *identity,
        position.note,
    )


def _total_row(group: str, topic: str, positions: Sequence[PartitionPosition]) -> Sequence[Any]:
    lag, seconds = _totals(positions)
    return (group, topic, "all", "", "", lag, seconds, "", "", "", "")


def _totals(positions: Sequence[PartitionPosition]) -> tuple[int | None, float | None]:
    """Return the sum of records and the longest time, or None where one of them is unknown."""
    lags = [position.lag_records for position in positions if position.lag_records is not None]
    ages = [position.lag_seconds for position in positions if position.lag_seconds is not None]
    lag = sum(lags) if len(lags) == len(positions) else None
    seconds = max(ages, default=0.0) if len(ages) == len(positions) else None
    return lag, seconds


def _json(declared: settings.Settings, group: Group) -> dict[str, Any]:
    topics = {}
    for topic in dict.fromkeys(position.topic for position in group.positions):
        lag, seconds = _totals(
            [position for position in group.positions if position.topic == topic]
        )
        topics[topic] = {"lag_records": lag, "lag_seconds": seconds}
    lag, seconds = _totals(group.positions)
    shown: dict[str, Any] = msgspec.to_builtins(group)
    shown["standings"] = shown.pop("positions")  # the key in the JSON output of earlier versions
    return {
        **shown,
        "mirrors_pipeline": bool(_mirrored_pipeline(declared, group.group)),
        "topics": topics,
        "lag_records": lag,
        "lag_seconds": seconds,
    }


def _destination(
    group: str,
    to: str | None,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    shift_by: int | None,
    to_current: bool,
    from_file: str | None,
) -> Destination:
    """Return where to move the group. Exactly one of the options must be given."""
    from instep.kafka import places
    from instep.kafka.admin import resets

    given: dict[str, Destination] = {}
    if to is not None:
        given["--to"] = resets.ToPlace(places.parse_place(to))
    if to_earliest:
        given["--to-earliest"] = resets.ToPlace(places.FromStart())
    if to_latest:
        given["--to-latest"] = resets.ToPlace(places.FromEnd())
    if to_offset is not None:
        given["--to-offset"] = resets.ToPlace(places.Offset(to_offset))
    if to_datetime is not None:
        moment = options.parse_time(to_datetime)
        assert moment is not None
        given["--to-datetime"] = resets.ToPlace(places.AtTime(moment))
    if by_duration is not None:
        given["--by-duration"] = resets.ToPlace(places.parse_duration(by_duration))
    if shift_by is not None:
        given["--shift-by"] = resets.ShiftBy(shift_by)
    if to_current:
        given["--to-current"] = resets.ToCurrent()
    if from_file is not None:
        given["--from-file"] = resets.ToOffsets(_read_offsets(from_file, group))
    if len(given) != 1:
        problem = "no destination is given"
        if given:
            problem = f"more than one destination is given: {', '.join(given)}"
        raise errors.SettingsError(problem, f"give one of {', '.join(DESTINATIONS)}")
    return next(iter(given.values()))


def _check_topics(
    destination: Destination, topics: Sequence[str] | None, *, all_topics: bool
) -> None:
    """Raise an error unless the topics are named once."""
    from instep.kafka.admin import resets

    # A file names its topics itself; every other destination needs some.
    names_topics = isinstance(destination, resets.ToOffsets)
    if names_topics == bool(topics or all_topics) or (topics and all_topics):
        raise errors.SettingsError(
            "it is not clear what to reset",
            "give --topic TOPIC[:0,1] or --all-topics; or --from-file, whose file names the topics",
        )


def _warn_about_mirror(declared: settings.Settings, group: str) -> None:
    """Say that a pipeline does not follow the group that mirrors its position."""
    if mirrored := _mirrored_pipeline(declared, group):
        output.say(
            f"group {group} mirrors pipeline {mirrored}: resetting it does not move the pipeline,"
            " which reads its ledger; to move the pipeline:"
            f" instep rewind {shlex.quote(mirrored)} --to PLACE"
        )


def _read_offsets(name: str, group: str) -> Mapping[TopicPartitionPair, int]:
    from instep.kafka.admin import resets

    try:
        # Spreadsheets write a byte order mark.
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as failure:
        raise errors.SettingsError(
            f"{name} cannot be read: {failure}", "name a file that this user can read"
        ) from failure
    return resets.parse_csv(text, group, "stdin" if name == "-" else name)


def _move_row(group: str, move: GroupMove) -> Sequence[Any]:
    new = str(move.new)
    if move.clamped_from is not None:
        new += f" (requested: {move.clamped_from})"
    current, delta = ("none", "") if move.current is None else (move.current, f"{move.delta:+d}")
    return (group, move.topic, move.partition, current, new, delta)


def _json_moves(
    group: str, moves: Sequence[GroupMove], executed: Sequence[GroupMoveResult]
) -> dict[str, Any]:
    results = {(one.move.topic, one.move.partition): one for one in executed}
    rows = []
    for move in moves:
        result = results.get((move.topic, move.partition))
        rows.append(
            {
                "topic": move.topic,
                "partition": move.partition,
                "current": move.current,
                "new": move.new,
                "delta": move.delta,
                "clamped_from": move.clamped_from,
                "now": result.now if result else move.current,
                "error": str(result.error) if result and result.error else None,
            }
        )
    return {"group": group, "executed": bool(executed), "moves": rows}


def _report_moves(group: str, results: Sequence[GroupMoveResult], planned: int) -> None:
    """Report each move that failed and the number of those that succeeded."""
    if not planned:
        output.say("nothing to move")
        return
    if not results:
        output.say_dry_run()
        return
    failed = [
        result for result in results if result.error is not None or result.now != result.move.new
    ]
    for result in failed:
        position = "none" if result.now is None else result.now
        reason = result.error or f"is at {position}: another client moved it"
        output.say(f"{output.ERROR}{result.move.topic} {result.move.partition}: {reason}")
    output.say(f"group {group}: {len(results) - len(failed)} of {len(results)} partitions moved")
    if failed:
        raise typer.Exit(failed[0].error.exit_status if failed[0].error else 1)
