"""Options that several commands share, and the choices they make: pipelines, topics, times.

The same option has the same name and the same help on every command.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from instep import errors, settings, spark_options
from instep.cli import completion

PLACES = "start, end, 1234, +5, -10, @2026-11-01T08:00 (UTC) or @-1h"


class GlobalOptions(msgspec.Struct):
    """Options that may be given before or after the command's name."""

    config: Path | None = None
    debug: bool = False


GLOBAL = GlobalOptions()


def _store_config(path: Path | None) -> Path | None:
    # Called twice: the place where the option is not given must not erase the other one.
    GLOBAL.config = path or GLOBAL.config
    return path


def _store_debug(debug: bool) -> bool:
    GLOBAL.debug = debug or GLOBAL.debug
    return debug


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=_store_config,
        help="Settings file. Default: $INSTEP_CONFIG, else ./instep.toml.",
    ),
]
Debug = Annotated[
    bool, typer.Option("--debug", callback=_store_debug, help="Show tracebacks and Spark's log.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Once = Annotated[bool, typer.Option("--once", help="Process what is there now, then exit.")]
Execute = Annotated[
    bool, typer.Option("--execute", help="Apply the changes; without it, only show the plan.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Why = Annotated[
    str | None,
    typer.Option("--why", metavar="TEXT", help="Your reason, recorded in instep_decisions."),
]
RequiredWhy = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="Your reason, recorded in instep_decisions.")
]
PipelineNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PIPELINE]...",
        help="Pipelines. Default: all.",
        autocompletion=completion.pipelines,
    ),
]
JobNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...",
        help="Pipelines, streams, KPIs and archives. Default: all.",
        autocompletion=completion.jobs,
    ),
]
PipelineName = Annotated[
    str | None,
    typer.Option(
        "--pipeline",
        metavar="NAME",
        help="Pipeline. Needed if the settings declare more than one.",
        autocompletion=completion.pipelines,
    ),
]
AnyPipeline = Annotated[
    str | None,
    typer.Option(
        "--pipeline",
        metavar="NAME",
        help="Pipeline. Default: all.",
        autocompletion=completion.pipelines,
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Spark master, e.g. local[2] or spark://host:7077."
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics",
        min=1,
        max=65535,
        metavar="PORT",
        help="Serve Prometheus metrics on this port of localhost.",
    ),
]
Partitions = Annotated[
    list[str] | None,
    typer.Option(
        "-p", "--partition", metavar="0,1", help="Only these partitions. Can be repeated."
    ),
]
SkipLost = Annotated[
    bool,
    typer.Option(
        "--skip-lost", help="With an archive: go on although it and Kafka have lost records."
    ),
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="NAME", help="Only with this reason, such as TEXT_TOO_LONG."),
]
SourceUrl = Annotated[
    str | None,
    typer.Option(
        "--source-url", metavar="URL", help="URL of the source's database, for a query or a table."
    ),
]
SinkUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Database of a Spark sink, in place of the settings; ${NAME} is read from the"
        " environment.",
    ),
]
RequiredSinkUrl = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        help="Database of a Spark sink, in place of the settings; ${NAME} is read from the"
        " environment.",
    ),
]
SourceKey = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="FIELD",
        help="Field of the source with the document's id; for a composite key: tenant,number."
        " Default: that of the event.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Only from this time on: 2026-11-01T08:00 (UTC) or -1h."
    ),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only before this time.")
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Limit = Annotated[
    int, typer.Option("-n", "--limit", min=1, metavar="COUNT", help="Maximum number to show.")
]
TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Topic.", autocompletion=completion.topics)
]
TopicNames = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", help="Topics.", autocompletion=completion.topics),
]


def select_pipelines(declared: settings.Settings, names: Sequence[str] | None) -> list[str]:
    """Return the named pipelines, or all declared ones if none is named."""
    if names:
        for name in names:
            settings.pipeline(declared, name)
        return list(dict.fromkeys(names))
    if not declared.pipelines:
        file = settings.file_of(GLOBAL.config)
        problem = "the settings declare no pipeline"
        if not file.exists():
            problem = f"there is no {file} in {Path.cwd()}"
        raise errors.SettingsError(
            problem, f"add a [pipelines.NAME] table to {file}, or name another file with --config"
        )
    return list(declared.pipelines)


def select_tables(
    declared: settings.Settings, names: Sequence[str] | None
) -> dict[str, settings.Pipeline]:
    """Return the named pipelines and KPIs, or all declared ones, as what writes their tables."""
    from instep.kpis import definition

    written = dict(declared.pipelines) | definition.tables(declared)
    if not written or not all(name in written for name in names or ()):
        unknown = [name for name in names or () if name not in written]
        select_pipelines(declared, unknown)  # raises an error that fits
    return {name: written[name] for name in dict.fromkeys(names or written)}


def select_jobs(declared: settings.Settings, names: Sequence[str] | None) -> list[str]:
    """Return the named jobs of any kind, or all declared ones if none is named."""
    if not names and not settings.job_names(declared):
        return select_pipelines(declared, names)  # raises an error that fits
    for name in names or ():
        settings.job_kind(declared, name)
    return list(dict.fromkeys(names or settings.job_names(declared)))


def select_pipeline(declared: settings.Settings, name: str | None) -> str:
    """Return the named pipeline, or the only declared one."""
    names = select_pipelines(declared, [name] if name else None)
    if len(names) > 1:
        raise errors.SettingsError(
            "the settings declare more than one pipeline",
            f"choose one with --pipeline NAME (declared: {', '.join(names)})",
        )
    return names[0]


def only_topic(declared: settings.Settings) -> str:
    """Return the topic of the declared pipelines if all of them read the same one."""
    topics = sorted({pipeline.topic for pipeline in declared.pipelines.values()})
    if len(topics) != 1:
        raise errors.SettingsError(
            "the topic is ambiguous",
            f"choose one with --topic NAME (declared: {', '.join(topics) or 'none'})",
        )
    return topics[0]


def parse_time(text: str | None) -> datetime | None:
    """Parse a time such as 2026-11-01T08:00 or -1h, with or without a leading @."""
    if text is None:
        return None
    from instep.operate import selection

    return selection.parse_time(text)


def parse_partitions(texts: Sequence[str] | None) -> list[int]:
    """Return the partition numbers of `-p 0 -p 1,2`, sorted."""
    parts = [part.strip() for text in texts or () for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdigit() and len(part) < 10):  # int32 in Kafka
            raise errors.SettingsError(
                f"{part!r} is not a partition number", "write e.g. -p 0 or -p 0,2"
            )
    return sorted({int(part) for part in parts})


def require_once(*, once: bool, as_json: bool) -> None:
    """Raise an error if --json was given without --once."""
    if as_json and not once:
        raise errors.SettingsError(
            "--json needs --once: it prints what became of a run that ends", "add --once"
        )


def require_reason(why: str) -> None:
    """Raise an error if the text of --why is empty."""
    if not why.strip():
        raise errors.SettingsError(
            "--why is empty", "give a reason: whoever reads the decision later needs it"
        )


def with_master(declared: settings.Settings, master: str | None) -> settings.Settings:
    """Return the settings with this Spark master, if one is given."""
    if not master:
        return declared
    spark_options.check(master, declared.spark.memory)
    return msgspec.structs.replace(
        declared, spark=msgspec.structs.replace(declared.spark, master=master)
    )
