"""Generates the reference pages and the pages of vet's rules from the code."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable
from typing import Any

from prometheus_client.core import Metric
from typer.main import get_command

import instep
from instep import errors, settings
from instep.bridge import failures
from instep.bridge.metrics import BridgeMetrics
from instep.bridge.progress import PollCounts
from instep.cli import build_app
from instep.document.reasons import EXPLANATIONS, PARKS
from instep.emit.metrics import families
from instep.kpis.metrics import KpiMetrics
from instep.pipeline.metrics import Pipelines
from instep.relay.metrics import RelayMetrics
from instep.relay.session import RelayProgress
from instep.vet import judgement, rules
from scripts import error_codes, python_api

HELP_COLUMNS = 110


@functools.cache
def pages() -> dict[str, str]:
    """Return the text of every generated page, by its path below docs."""
    return {
        "reference/settings.md": _settings(),
        "reference/commands.md": _commands(),
        "reference/python.md": python_api.page(instep),
        "reference/errors.md": _errors(),
        "reference/reasons.md": _reasons(),
        "reference/bridge-failures.md": _bridge_failures(),
        "reference/rules.md": _rules(),
        "reference/metrics.md": _metrics(),
        "reference/database-errors.md": error_codes.page(),
        **{f"rules/{rule.id}.md": judgement.page(rule) for rule in rules.ALL.values()},
    }


def _settings() -> str:
    intro = (
        "# Settings\n\n"
        "instep reads `instep.toml` in the working directory, or the file named by `--config` or"
        " `INSTEP_CONFIG`. `NAME` stands for the name of a pipeline, a publisher or a bridge. An"
        " environment variable overrides a value, for example `INSTEP__KAFKA__BOOTSTRAP`. An"
        " unknown key is an error."
    )
    rows = [
        (f"`{key}`", kind, f"`{default}`" if default else "", text)
        for key, kind, default, text in settings.describe()
    ]
    return _page(intro, _table(("key", "type", "default", "meaning"), rows))


def _commands() -> str:
    parts = ["# Commands\n"]
    _add_command(parts, get_command(build_app()), "instep")
    return "\n".join(parts)


def _add_command(parts: list[str], command: Any, name: str) -> None:
    context = command.make_context(name, [], resilient_parsing=True)
    context.terminal_width = context.max_content_width = HELP_COLUMNS
    parts.append(f"## {name}\n\n```text\n{command.get_help(context).strip()}\n```\n")
    for child_name, child in getattr(command, "commands", {}).items():
        _add_command(parts, child, f"{name} {child_name}")


def _errors() -> str:
    intro = (
        "# Errors\n\n"
        "Every message says what happened, to what, and what to do next. Codes in capitals are"
        " [named stops](../operations.md#named-stops)."
    )
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.InstepError)
    ]
    rows = []
    for kind in sorted(kinds, key=lambda kind: (kind.exit_status, kind.__name__)):
        name = kind.code if issubclass(kind, errors.NamedStop) else kind.__name__
        meaning = " ".join((kind.__doc__ or "").split())
        rows.append((f"`{name}`", str(kind.exit_status), meaning))
    return _page(intro, _table(("error", "exit status", "meaning"), rows))


def _reasons() -> str:
    intro = (
        "# Reasons\n\n"
        "A reason says why an event was not applied. It is in the column `reason` of"
        " `instep_dead_letters` and `instep_parked`. Reason codes do not change between releases."
        " A number or a time that its column cannot hold parks the document. A number or a time"
        " that cannot be read at all makes the event a dead letter."
    )
    rows = [
        (f"`{reason.value}`", "parked document" if reason in PARKS else "dead letter", text)
        for reason, text in EXPLANATIONS.items()
    ]
    return _page(intro, _table(("reason", "result", "meaning"), rows))


def _bridge_failures() -> str:
    intro = (
        "# Failures of a bridge\n\n"
        "`instep poll` reports a document that failed with one of these codes. `instep explain"
        " CODE` prints the same text."
    )
    # One level deeper: each page begins with a title.
    return _page(
        intro,
        *(
            re.sub(r"^#", "##", failures.page(code), flags=re.MULTILINE).rstrip()
            for code in failures.FailureCode
        ),
    )


def _metrics() -> str:
    intro = (
        "# Metrics\n\n"
        "`instep run --metrics PORT` serves these on 127.0.0.1 in the Prometheus format. Each has"
        " the label `pipeline`."
    )
    publishers = (
        "## Publishers\n\n"
        "`publisher.metrics().prometheus()` returns these as text, for a program to serve. Each has"
        " the labels `topic` and `source`."
    )
    bridges = (
        "## Bridges\n\n`instep poll --metrics PORT` serves these. Each has the label `bridge`."
    )
    relays = (
        "## Relays\n\n`instep relay run --metrics PORT` serves these. Each has the label `relay`."
    )
    relay = RelayMetrics("", settings.Relay(source="", topic=""), RelayProgress())
    kpis = "## KPIs\n\n`instep run --metrics PORT` serves these too. Each has the label `kpi`."
    head = ("metric", "type", "meaning")
    return _page(
        intro,
        _table(head, map(_metric, Pipelines([]).collect())),
        kpis,
        _table(head, map(_metric, KpiMetrics([]).collect())),
        publishers,
        _table(head, map(_metric, families([]))),
        bridges,
        _table(head, map(_metric, BridgeMetrics("", PollCounts(), {}).collect())),
        relays,
        _table(head, map(_metric, relay.collect())),
    )


def _metric(family: Metric) -> tuple[str, str, str]:
    suffix = "_total" if family.type == "counter" else ""
    return f"`{family.name}{suffix}`", family.type, family.documentation


def _rules() -> str:
    intro = (
        "# Rules of `instep vet`\n\n"
        "Each rule is checked against the guarantee that a pipeline or relay declares, and the"
        " severity of a finding depends on that guarantee. `instep vet explain RULE` prints the"
        " page of a rule."
    )
    parts = [intro]
    for part in judgement.PARTS:
        rows = [
            (f"[{rule.id}](../rules/{rule.id}.md)", rule.threat, rule.what)
            for rule in rules.ALL.values()
            if rule.part == part
        ]
        parts += [f"## {part.capitalize()}", _table(("rule", "risk", "finding"), rows)]
    return _page(*parts)


def _page(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
