"""Commands for consumer groups: what `kafka-consumer-groups` does, with lag in seconds and resets that say what they do."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from instep import errors, settings
from instep.cli import completing, grouping, shared
from instep.cli.shared import GIVEN, AsJson, Config, Debug, Execute
from instep.document.showing import counted

if TYPE_CHECKING:
    from instep.kafka.admin.consumer_groups import Group, Standing
    from instep.kafka.admin.resets import GroupMove, How, Moved

app = typer.Typer()
groups_app = typer.Typer(
    name="groups",
    no_args_is_help=True,
    cls=grouping.GroupedCommands,
    rich_markup_mode=None,
    help="Consumer groups of the cluster.",
)
app.add_typer(groups_app)


@groups_app.command("list")
def list_groups(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="[PATTERN]", help="Only names like this, e.g. 'billing-*'."),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE", help="Only in this state: Stable, Empty, …; may be given again."
        ),
    ] = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Groups with their state and protocol; the mirror of a pipeline is named as such."""
    from instep.kafka import layout
    from instep.kafka.admin import consumer_groups

    declared = settings.load(GIVEN.config)
    with shared.cluster(declared) as cluster:
        found, silent = consumer_groups.listings(cluster)
    wanted = set(layout.matching([one.group for one in found], pattern))
    states = {word.lower() for word in state or ()}
    shown = [
        one for one in found if one.group in wanted and (not states or one.state.lower() in states)
    ]
    if as_json:
        shared.print_json(
            {
                "groups": [
                    {
                        "group": one.group,
                        "state": one.state,
                        "protocol": one.protocol,
                        "mirrors_pipeline": bool(_mirrored(declared, one.group)),
                    }
                    for one in shown
                ]
            }
        )
    else:
        if shown:
            rows = [
                (one.group, one.state, one.protocol, _mirror(declared, one.group)) for one in shown
            ]
            typer.echo(shared.table(("GROUP", "STATE", "PROTOCOL", "NOTE"), rows))
        shared.say(f"{counted(len(shown), 'group')}{shared.hidden(declared, found)}")
    for failure in silent:
        shared.say(f"instep: groups may be missing: {failure}")
    if silent:
        raise typer.Exit(1)


@groups_app.command("describe")
def describe(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GROUP]...", help="Which groups.", autocompletion=completing.groups
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Groups with members, assignment, and lag in records and in seconds. What is not known is not 0."""
    from instep.kafka.admin import consumer_groups

    if bool(names) == every:
        raise errors.SettingsError("which groups are meant is not clear", "name them, or say --all")
    declared = settings.load(GIVEN.config)
    with shared.cluster(declared) as cluster:
        asked = names or [one.group for one in consumer_groups.listings(cluster)[0]]
        found = consumer_groups.describe_each(cluster, list(dict.fromkeys(asked)))
    if as_json:
        shared.print_json({"groups": [_json(declared, one) for one in found]})
        return
    for number, one in enumerate(found):
        if number:
            typer.echo("")
        _print_group(declared, one)


@groups_app.command("reset")
def reset(
    group: Annotated[str, typer.Argument(help="Which group.", autocompletion=completing.groups)],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC[:0,1]",
            help="A topic, or some of its partitions; may be given again.",
            autocompletion=completing.topics,
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics in which the group has offsets.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", help="start, end, 1234, +5, -10, @2026-11-01T08:00 (UTC) or @-1h."
        ),
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first record that the log holds.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of the log.")] = False,
    to_offset: Annotated[
        int | None, typer.Option(min=0, metavar="OFFSET", help="To this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="To the first record at or after: 2026-11-01T08:00 (UTC)."
        ),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="DURATION", help="To so long before now: 1h, P1DT2H.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="So many forward, or back.")
    ] = None,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="Where it is: to export.")
    ] = False,
    from_file: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="As a CSV file says: topic,partition,offset."),
    ] = None,
    new_group: Annotated[
        bool, typer.Option("--new-group", help="Also when the group does not exist yet.")
    ] = False,
    export: Annotated[
        bool, typer.Option("--export", help="Print the plan as CSV, for --from-file.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the plan: the default.")
    ] = False,
    execute: Execute = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Move a group that has no members to another place in the log."""
    from instep.kafka.admin import resets

    if dry_run and execute:
        raise errors.SettingsError(
            "--dry-run and --execute cannot both be given", "give one of them"
        )
    how = _how(
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
    if isinstance(how, resets.ToOffsets) == bool(topic or all_topics) or (topic and all_topics):
        raise errors.SettingsError(
            "what to move is not clear",
            "say --topic TOPIC[:0,1], or --all-topics; with --from-file neither: the file names them",
        )
    declared = settings.load(GIVEN.config)
    if mirrored := _mirrored(declared, group):
        shared.say(
            f"group {group} is the mirror of pipeline {mirrored}: resetting it does not move the pipeline, which goes by its"
            f" ledger; this does: instep rewind {shlex.quote(mirrored)} --to PLACE"
        )
    with shared.cluster(declared) as cluster:
        if isinstance(how, resets.ToOffsets):
            spots = list(how.offsets)
        else:
            spots = resets.chosen(cluster, group, topic or (), all_topics=all_topics)
        moves = resets.plan(cluster, group, spots, how, new_group=new_group)
        moved = resets.execute(cluster, group, moves) if execute else []
    if export:
        typer.echo(resets.to_csv(moves), nl=False)
    elif as_json:
        shared.print_json(_json_moves(group, moves, moved))
    else:
        head = ("GROUP", "TOPIC", "PARTITION", "CURRENT", "NEW", "DELTA")
        typer.echo(shared.table(head, [_move_row(group, move) for move in moves]))
    _say_moved(group, moved, len(moves))


@groups_app.command("delete")
def delete(
    names: Annotated[
        list[str],
        typer.Argument(metavar="GROUP...", help="Which groups.", autocompletion=completing.groups),
    ],
    confirm: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help="The name again, of each; left out: asked for."),
    ] = None,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Delete groups that have no members, with their offsets."""
    from instep.kafka.admin import consumer_groups, outcomes

    declared = settings.load(GIVEN.config)
    again = set(confirm or ())
    if confirm is None and sys.stdin.isatty():
        shared.say("a group's offsets do not come back")
        again = {typer.prompt(f"the name of group {name} again", err=True) for name in names}
    if unsaid := [name for name in names if name not in again]:
        raise errors.SettingsError(
            f"nothing was deleted: {', '.join(map(repr, unsaid))} was not confirmed",
            f"instep groups delete {shlex.join(names)} {' '.join(f'--confirm {shlex.quote(name)}' for name in names)}",
        )
    with shared.cluster(declared) as cluster:
        done = outcomes.of_each(names, lambda name: consumer_groups.delete(cluster, name))
    for name in names:
        if _mirrored(declared, name):
            shared.say(
                f"group {name} is the mirror of a pipeline, whose next commit makes it again"
            )
    shared.report(done, "group", as_json)


def _mirrored(declared: settings.Settings, group: str) -> str | None:
    """The pipeline whose position a group mirrors."""
    from instep.kafka import groups

    return next((name for name in declared.pipelines if groups.mirror_name(name) == group), None)


def _mirror(declared: settings.Settings, group: str) -> str:
    mirrored = _mirrored(declared, group)
    return f"mirror of pipeline {mirrored}" if mirrored else ""


def _print_group(declared: settings.Settings, one: Group) -> None:
    mirror = _mirror(declared, one.group)
    how = ", ".join(
        filter(
            None,
            (one.state, f"{one.protocol} protocol", one.assignor and f"assignor {one.assignor}"),
        )
    )
    about = f"group {one.group}: {how}, coordinator {one.coordinator}, {counted(len(one.members), 'member')}"
    shared.say(about + (f"\n{mirror}: instep status tells where that stands" if mirror else ""))
    head = (
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
    rows: list[Sequence[Any]] = []
    topics = list(dict.fromkeys(part.topic for part in one.standings))
    for topic in topics:
        parts = [part for part in one.standings if part.topic == topic]
        rows += [_standing_row(one, part) for part in parts]
        if len(parts) > 1:
            rows.append(_total_row(one.group, topic, parts))
    if len(topics) > 1:
        rows.append(_total_row(one.group, "all", one.standings))
    idle = [member for member in one.members if not member.assigned]
    rows += [
        (
            one.group,
            "-",
            "-",
            "-",
            "-",
            "-",
            "-",
            member.id,
            member.host,
            member.client_id,
            "no assignment",
        )
        for member in idle
    ]
    if rows:
        typer.echo(shared.table(head, rows))
    else:
        shared.say("it has neither members nor offsets")


def _standing_row(one: Group, part: Standing) -> Sequence[Any]:
    member = part.member
    who = (member.id, member.host, member.client_id) if member else ("-", "-", "-")
    current = "-" if part.current is None else part.current
    return (
        one.group,
        part.topic,
        part.partition,
        current,
        part.end,
        part.lag_records,
        part.lag_seconds,
        *who,
        part.note,
    )


def _total_row(group: str, topic: str, parts: Sequence[Standing]) -> Sequence[Any]:
    lag, seconds = _totals(parts)
    return (group, topic, "all", "", "", lag, seconds, "", "", "", "")


def _totals(parts: Sequence[Standing]) -> tuple[int | None, float | None]:
    """The sum of records and the longest time; unknown when one of them is."""
    lags, times = [part.lag_records for part in parts], [part.lag_seconds for part in parts]
    return (
        None if None in lags else sum(lag or 0 for lag in lags),
        None if None in times else max((one or 0.0 for one in times), default=0.0),
    )


def _json(declared: settings.Settings, one: Group) -> dict[str, Any]:
    import msgspec

    topics = dict.fromkeys(part.topic for part in one.standings)
    by_topic = {
        topic: _totals([part for part in one.standings if part.topic == topic]) for topic in topics
    }
    totals = {
        topic: dict(zip(("lag_records", "lag_seconds"), found, strict=True))
        for topic, found in by_topic.items()
    }
    lag, seconds = _totals(one.standings)
    found: dict[str, Any] = msgspec.to_builtins(one)
    return {
        **found,
        "mirrors_pipeline": bool(_mirrored(declared, one.group)),
        "topics": totals,
        "lag_records": lag,
        "lag_seconds": seconds,
    }


def _how(
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
) -> How:
    """The one way that was asked for."""
    from instep.kafka import places
    from instep.kafka.admin import resets

    ways = {
        "--to": to is not None and (lambda: resets.To(places.parse_place(to or ""))),
        "--to-earliest": to_earliest and (lambda: resets.To(places.FromStart())),
        "--to-latest": to_latest and (lambda: resets.To(places.FromEnd())),
        "--to-offset": to_offset is not None and (lambda: resets.To(places.Offset(to_offset or 0))),
        "--to-datetime": to_datetime is not None
        and (lambda: resets.To(places.AtTime(_moment(to_datetime or "")))),
        "--by-duration": by_duration is not None
        and (lambda: resets.To(places.parse_duration(by_duration or ""))),
        "--shift-by": shift_by is not None and (lambda: resets.Shift(shift_by or 0)),
        "--to-current": to_current and resets.ToCurrent,
        "--from-file": from_file is not None
        and (lambda: resets.ToOffsets(_from_file(from_file or "", group))),
    }
    said = [make for make in ways.values() if make]
    if len(said) != 1:
        raise errors.SettingsError(
            f"{'no' if not said else 'more than one'} way to go is said",
            f"say one of {', '.join(ways)}",
        )
    return said[0]()


def _moment(text: str) -> Any:
    return shared.when(text)


def _from_file(name: str, group: str) -> Any:
    from instep.kafka.admin import resets

    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as failure:
        raise errors.SettingsError(
            f"{name} cannot be read: {failure}", "name a file that this user can read"
        ) from failure
    return resets.parse_csv(text, group, "stdin" if name == "-" else name)


def _move_row(group: str, move: GroupMove) -> Sequence[Any]:
    new = f"{move.new} (clamped: {move.asked} asked)" if move.asked is not None else move.new
    current, delta = ("none", "") if move.current is None else (move.current, f"{move.delta:+d}")
    return (group, move.topic, move.partition, current, new, delta)


def _json_moves(group: str, moves: Sequence[GroupMove], moved: Sequence[Moved]) -> dict[str, Any]:
    after = {(one.move.topic, one.move.partition): one for one in moved}
    rows = []
    for move in moves:
        done = after.get((move.topic, move.partition))
        rows.append(
            {
                "topic": move.topic,
                "partition": move.partition,
                "current": move.current,
                "new": move.new,
                "delta": move.delta,
                "clamped_from": move.asked,
                "now": done.now if done else move.current,
                "error": str(done.error) if done and done.error else None,
            }
        )
    return {"group": group, "executed": bool(moved), "moves": rows}


def _say_moved(group: str, moved: Sequence[Moved], planned: int) -> None:
    """What became of each, when something went wrong; else how many were moved."""
    if not moved:
        shared.say("nothing was changed; with --execute it is" if planned else "nothing to move")
        return
    failed = [one for one in moved if one.error is not None or one.now != one.move.new]
    for one in failed:
        why = (
            one.error
            or f"stands at {'none' if one.now is None else one.now}: somebody else moved it"
        )
        shared.say(f"instep: {one.move.topic} {one.move.partition}: {why}")
    shared.say(f"group {group}: {len(moved) - len(failed)} of {len(moved)} partitions moved")
    if failed:
        raise typer.Exit(failed[0].error.exit_status if failed[0].error else 1)
