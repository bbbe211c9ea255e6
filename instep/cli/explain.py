"""`instep explain CODE`: the page of any code that instep prints, from the installation."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from typing import Annotated

import msgspec
import typer

from instep import errors, settings
from instep.cli import completion, output
from instep.cli.options import AsJson, Debug

TITLES = {
    "stops": "Named stops: why a pipeline or a relay ended",
    "reasons": "Reasons: why an event is in quarantine",
    "bridge": "Failures of a bridge: why a document was not asked or not published",
    "rules": "Rules of instep vet",
}

app = typer.Typer()


class Page(msgspec.Struct, frozen=True):
    """The explanation of one code. `summary` is its first sentence."""

    code: str
    group: str
    summary: str
    text: str


@app.command()
def explain(
    code: Annotated[
        str | None,
        typer.Argument(
            help="A named stop, a reason, a failure or a rule. Default: list all codes.",
            autocompletion=completion.codes,
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
            "list all codes with: instep explain",
        )
    if as_json:
        output.print_json(page)
    else:
        typer.echo(page.text.rstrip("\n"))


def pages() -> dict[str, Page]:
    """Return every page by its code: named stops, reasons, failures of a bridge, then rules."""
    return {page.code: page for page in all_pages()}


def all_pages() -> list[Page]:
    """Return every page. No two have the same code."""
    return [*_stops(), *_reasons(), *_bridge_failures(), *_rules()]


def _stops() -> Iterable[Page]:
    """Yield a page per named stop. An installation has docs/stops in `instep/stops`."""
    for file in sorted((files("instep") / "stops").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".md"):
            text = file.read_text(encoding="utf-8")
            paragraph = re.search(r"## What happened\n\n(.+?)(?:\n\n|\Z)", text, re.DOTALL)
            summary = _first_sentence(paragraph[1] if paragraph else "")
            yield Page(file.name.removesuffix(".md"), "stops", summary, text)


def _reasons() -> Iterable[Page]:
    from instep.document.reasons import EXPLANATIONS, PARKS

    for reason, text in EXPLANATIONS.items():
        code = reason.value
        if reason in PARKS:
            result = "The document is parked: its later events wait behind this one."
            inspect = f"instep parked list --reason {code}"
            apply = "instep parked release ID --execute"
            remove = "instep parked skip ID --why TEXT --execute"
        else:
            result = "The event is a dead letter."
            inspect = f"instep dead list --reason {code}"
            apply = f"instep dead replay --reason {code} --execute"
            remove = f"instep dead drop --reason {code} --why TEXT --execute"
        sections = (
            f"# {code}",
            _sentence(text),
            f"{result} Other documents are not affected.",
            f"## How to investigate\n\n    {inspect}",
            "## What to run\n\n"
            "If the settings or the table were wrong, correct them and apply the event:",
            f"    {apply}",
            "If the record itself is wrong, have it published again and remove this one:",
            f"    {remove}\n",
        )
        yield Page(code, "reasons", _sentence(text), "\n\n".join(sections))


def _bridge_failures() -> Iterable[Page]:
    from instep.bridge import failures

    for code, text in failures.EXPLANATIONS.items():
        yield Page(code.value, "bridge", _first_sentence(text), failures.page(code))


def _rules() -> Iterable[Page]:
    from instep.vet import judgement, rules

    return [Page(rule.id, "rules", rule.what, judgement.page(rule)) for rule in rules.ALL.values()]


def _print_all(known: list[Page], as_json: bool) -> None:
    if as_json:
        keys = ("code", "group", "summary")
        output.print_json({"pages": [{key: getattr(page, key) for key in keys} for page in known]})
        return
    for group, title in TITLES.items():
        typer.echo(f"{title}\n")
        for page in known:
            if page.group == group:
                typer.echo(f"  {page.code}\n      {page.summary}")
        typer.echo("")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.:])\s", " ".join(text.split()))[0].rstrip(":.") + "."
