"""`instep emit`: publish status events or deletes from a file, stdin or the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from instep import errors, settings, terminal
from instep.cli import completion, options, output, resources
from instep.cli.options import GLOBAL, AsJson, Config, Debug
from instep.document import lines
from instep.document.showing import counted

SAY_INTERVAL_S = 2.0
MEGABYTE = 1_000_000


class KeyType(StrEnum):
    """The type as which the ids of a CSV file are published."""

    AUTO = "auto"
    TEXT = "text"
    INTEGER = "integer"


app = typer.Typer()


@app.command()
def emit(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|-|ID...",
            help="JSON lines or CSV file, - for JSON lines from stdin, or ids with --delete.",
        ),
    ],
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Topic. Default: that of the only pipeline.",
            autocompletion=completion.topics,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Field with the document's id, which becomes the record's key: doc_id, a.b for a"
            " nested one, or tenant,number for a composite key."
            " Default: `event.document` of the pipeline that reads the topic, else doc_id.",
        ),
    ] = None,
    key_type: Annotated[
        KeyType,
        typer.Option(
            help="Type of the ids in a CSV file. auto: the type of the table's key column."
        ),
    ] = KeyType.AUTO,
    delete: Annotated[
        bool,
        typer.Option(
            "--delete", help="Publish a delete, a record without a value, for each named document."
        ),
    ] = False,
    as_json: AsJson = False,
    _config: Config = None,
    _debug: Debug = False,
) -> None:
    """Publish status events or deletes, keyed by document.

    Each record is acknowledged by all in-sync replicas.
    """
    from instep.emit import publishing

    declared = settings.load(GLOBAL.config)
    to = topic or options.only_topic(declared)
    if delete:
        _refuse_files(given)
        count = publishing.publish_deletions(
            declared.kafka, resources.bootstrap(declared), to, given
        )
        output.say(f"{counted(count, 'deletion')} published")
    else:
        if len(given) > 1:
            raise errors.SettingsError(
                f"{len(given)} files were given, but only one can be published at a time",
                "publish them one after the other",
            )
        bootstrap = resources.bootstrap(declared)
        fields = _key(declared, to, given[0], key, key_type)
        with terminal.ProgressLine(sys.stderr) as line:
            count = publishing.publish_file(
                declared.kafka,
                bootstrap,
                to,
                given[0],
                key=fields,
                progress=_progress(line, given[0]),
            )
        output.say(f"{count} records published")
    if as_json:
        output.print_json({"topic": to, "published": count})


def _progress(line: terminal.ProgressLine, file: str) -> Callable[[int, int], None]:
    """Return what shows the progress: a bar on a terminal, else a line at intervals."""
    size = Path(file).stat().st_size / MEGABYTE if Path(file).is_file() else None
    said_at = time.monotonic()

    def show(sent: int, read_bytes: int) -> None:
        nonlocal said_at
        if terminal.is_live(sys.stderr):
            done, unit = (sent, "records") if size is None else (read_bytes / MEGABYTE, "MB")
            line.update("publishing", done, size, unit)
        elif time.monotonic() - said_at >= SAY_INTERVAL_S:
            said_at = time.monotonic()
            output.say(f"{sent:,} records sent")

    return show


def _refuse_files(documents: list[str]) -> None:
    # `emit --delete events.jsonl` would delete the document with the id "events.jsonl".
    for document in documents:
        if document != "-" and not Path(document).is_file():
            continue
        problem = f"the file {document}"
        if document == "-":
            problem = "stdin"
        raise errors.SettingsError(
            f"--delete expects the ids of documents, not {problem}",
            'a line such as {"doc_id": "C-1", "$delete": true} in a file deletes a document',
        )


def _key(
    declared: settings.Settings, topic: str, file: str, fields: str | None, key_type: KeyType
) -> lines.Key:
    from instep.emit import publishing

    named = None if fields is None else _named_key(declared, topic, fields)
    key = named or publishing.key_of(declared, topic)
    if key_type is KeyType.INTEGER:
        return msgspec.structs.replace(key, integers=frozenset(key.fields))
    if key_type is KeyType.AUTO:
        integers = _integer_fields(declared, topic, file, key.fields)
        return msgspec.structs.replace(key, integers=integers)
    return key


def _named_key(declared: settings.Settings, topic: str, fields: str) -> lines.Key:
    """Return the key of the fields that --key names.

    The parts of a composite key are joined as the pipeline that reads the topic does it.
    """
    named = tuple(fields.split(","))
    # Use the separator of the pipelines that read the topic only if they agree on it.
    separators = {
        pipeline.key_separator
        for pipeline in declared.pipelines.values()
        if pipeline.topic == topic and len(pipeline.keys) == len(named)
    }
    if len(separators) == 1:
        return lines.Key(named, separators.pop())
    return lines.Key(named)


def _integer_fields(
    declared: settings.Settings, topic: str, file: str, fields: tuple[str, ...]
) -> frozenset[str]:
    """Return those key fields of a CSV file that are integers in the pipeline's table."""
    from instep.sinks import facts

    # JSON distinguishes 7 from "7"; in CSV every value is text.
    if not file.lower().endswith(".csv"):
        return frozenset()
    for pipeline in declared.pipelines.values():
        if pipeline.topic == topic and pipeline.event.documents == fields:
            try:
                return facts.integer_fields(pipeline)
            except errors.InstepError as error:
                output.say(
                    f"ids are published as text: the type of column {', '.join(pipeline.keys)} is"
                    f" unknown because {error.what}; set it with --key-type"
                )
    return frozenset()
