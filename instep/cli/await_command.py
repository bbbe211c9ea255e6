"""`instep await`: wait until a pipeline has reached a record, and say what became of it."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from instep import errors, settings, terminal
from instep.cli import completion, options, output, resources
from instep.cli.exit_status import NOT_APPLIED_STATUS
from instep.cli.options import GLOBAL, AsJson, Config, Debug

if TYPE_CHECKING:
    from instep.document.outcome import Outcome

POSITION = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249}):(?P<partition>\d+):(?P<offset>\d+)")

app = typer.Typer()


@app.command("await")
def await_record(
    position: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC:PARTITION:OFFSET",
            help="Position of the record, as shown by a receipt or `instep peek`.",
        ),
    ],
    pipeline: Annotated[
        str | None,
        typer.Option(
            "--pipeline",
            metavar="NAME",
            help="Pipeline. Default: all that follow the topic.",
            autocompletion=completion.pipelines,
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", min=0.0, metavar="SECONDS", help="Maximum time to wait, for all pipelines."
        ),
    ] = 30.0,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Wait until a record is applied, or say why it was not: stale, parked, dead.

    Exit status: 0 if every pipeline has dealt with the record, 1 if one has not reached it in time,
    5 if one has it in quarantine (parked, dead) or began behind it (unread).
    """
    from instep.document.decoding import record_of
    from instep.document.outcome import NOT_APPLIED
    from instep.kafka import reading, topics
    from instep.operate.outcomes import OutcomeReader

    declared = settings.load(GLOBAL.config)
    topic, partition, offset = _parse(position)
    names = [
        name
        for name in options.select_pipelines(declared, [pipeline] if pipeline else None)
        if settings.pipeline(declared, name).topic == topic
    ]
    if not names:
        raise errors.SettingsError(
            f"no pipeline follows topic {topic!r}", "list pipelines and topics: instep settings"
        )
    with resources.cluster(declared) as cluster:
        topic_id = topics.describe(cluster, topic).id
        found = list(reading.read(cluster, topic, {partition: (offset, offset + 1)}))
    if not found:
        raise errors.SettingsError(
            f"topic {topic!r} has no record at {partition}:{offset}",
            f"see what is there: instep peek {topic} --partition {partition}",
        )
    outcomes, ends_at = [], time.monotonic() + timeout_s
    for name in names:
        waiting = f"{name}: waiting for {topic}:{partition}:{offset}"
        with terminal.busy(sys.stderr, waiting), OutcomeReader(declared, name) as reader:
            left_s = max(0.0, ends_at - time.monotonic())
            outcome = reader.outcome(topic, record_of(found[0]), left_s, topic_id)
            outcomes.append((name, outcome))
    if as_json:
        known = [{"pipeline": name, "outcome": outcome} for name, outcome in outcomes]
        output.print_json({"pipelines": known})
    else:
        _print(outcomes)
    if any(outcome.verdict in NOT_APPLIED for _, outcome in outcomes):
        raise typer.Exit(NOT_APPLIED_STATUS)


def _print(outcomes: list[tuple[str, Outcome]]) -> None:
    rows = [
        (
            name,
            one.verdict,
            one.document,
            one.committed_at,
            ": ".join(filter(None, (one.reason, one.detail))),
        )
        for name, one in outcomes
    ]
    typer.echo(output.table(("PIPELINE", "VERDICT", "DOCUMENT", "COMMITTED", "REASON"), rows))


def _parse(text: str) -> tuple[str, int, int]:
    found = POSITION.fullmatch(text)
    if found is None:
        raise errors.SettingsError(
            f"{text!r} is not a record's position",
            "write TOPIC:PARTITION:OFFSET, as in status:0:42",
        )
    return found["topic"], int(found["partition"]), int(found["offset"])
