"""`instep explain CODE`: the page of any stop, rule or reason, from the installation itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from typing import Annotated

import msgspec
import typer

from instep import errors, settings
from instep.cli import completing, shared
from instep.cli.shared import AsJson, Debug

app = typer.Typer()


class Page(msgspec.Struct, frozen=True):
    """What is to be said about one code; `summary` is its first sentence."""

    code: str
    group: str
    summary: str
    text: str


@app.command()
def explain(
    code: Annotated[
        str | None,
        typer.Argument(
            help="A stop, a rule of vet or a reason; left out: all of them.",
            autocompletion=completing.codes,
        ),
    ] = None,
    as_json: AsJson = False,
    _debug: Debug = False,
) -> None:
    """Explain a code that instep printed: what happened, and what to do next."""
    known = pages()
    if code is None:
        _print_all(list(known.values()), as_json)
        return
    page = known.get(code.strip().upper())
    if page is None:
        raise errors.SettingsError(
            f"there is no code {code!r}{settings.nearest(code.strip().upper(), known)}",
            "see all of them: instep explain",
        )
    if as_json:
        shared.print_json(page)
    else:
        typer.echo(page.text.rstrip("\n"))


def pages() -> dict[str, Page]:
    """Every page by its code: named stops, then reasons, then rules of vet."""
    return {page.code: page for page in (*_stops(), *_reasons(), *_rules())}


def _stops() -> Iterable[Page]:
    """One file a stop; `instep/stops` is where docs/stops lies in an installation."""
    for file in sorted((files("instep") / "stops").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".md"):
            text = file.read_text(encoding="utf-8")
            paragraph = re.search(r"## What happened\n\n(.+?)(?:\n\n|\Z)", text, re.DOTALL)
            yield Page(
                file.name.removesuffix(".md"),
                "stops",
                _first_sentence(paragraph[1] if paragraph else ""),
                text,
            )


def _reasons() -> Iterable[Page]:
    from instep.document.reasons import EXPLANATIONS, PARKS

    for reason, text in EXPLANATIONS.items():
        parks = reason in PARKS
        becomes = (
            "The document is parked: its later events wait behind this one."
            if parks
            else "The event is a dead letter."
        )
        look = f"instep {'parked' if parks else 'dead'} list --reason {reason.value}"
        command = "parked release ID" if parks else f"dead replay --reason {reason.value} --execute"
        wrong = (
            "parked skip ID --why TEXT"
            if parks
            else f"dead drop --reason {reason.value} --why TEXT --execute"
        )
        parts = (
            f"# {reason.value}",
            _sentence(text),
            f"{becomes} Other documents are not held up.",
            f"## How to look\n\n    {look}",
            "## What to run\n\nWhere the settings or the table were wrong, correct them and apply the event:",
            f"    instep {command}",
            "Where the record itself is wrong, have it published again, and pass over this one:",
            f"    instep {wrong}\n",
        )
        yield Page(reason.value, "reasons", _sentence(text), "\n\n".join(parts))


def _rules() -> Iterable[Page]:
    from instep.vet import judgement, rules

    return [Page(rule.id, "rules", rule.what, judgement.page(rule)) for rule in rules.ALL.values()]


def _print_all(known: list[Page], as_json: bool) -> None:
    if as_json:
        shared.print_json(
            [{"code": page.code, "group": page.group, "summary": page.summary} for page in known]
        )
        return
    titles = {
        "stops": "Named stops: why a pipeline ended",
        "reasons": "Reasons: why an event was set aside",
        "rules": "Rules of instep vet",
    }
    for group, title in titles.items():
        typer.echo(f"{title}\n")
        for page in known:
            if page.group == group:
                typer.echo(f"  {page.code}\n      {page.summary}")
        typer.echo("")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.:])\s", " ".join(text.split()))[0].rstrip(":.") + "."
