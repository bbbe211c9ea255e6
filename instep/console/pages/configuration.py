"""Settings with their origin, findings of vet, and the reports of lab, benchmarks and demo."""

from __future__ import annotations

import functools
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from starlette.responses import HTMLResponse, Response

from instep import errors
from instep.console import access
from instep.console.requests import ConsolePage, PageRequest
from instep.document import transitions
from instep.local import paths
from instep.vet import gathering, judgement

GENERATOR = re.compile(rb'<meta name="generator" content="instep ([a-z]+)">')
STYLE = re.compile(rb"style-src ('sha256-[A-Za-z0-9+/=]{44}')")
HEAD_BYTES = 2_000
KINDS_MAX = 10_000
REPORT_BYTES_MAX = 50_000_000


class ReportFile(msgspec.Struct, frozen=True):
    """A report that a command wrote below the working directory."""

    name: str
    kind: str
    at: datetime


class StoredResult(msgspec.Struct, frozen=True):
    """A result of the lab or of a benchmark, from which a report can be made."""

    name: str
    at: datetime
    command: str


def settings_page(view: PageRequest) -> Response:
    """Show every setting with its origin; secrets are masked."""
    loaded, name = view.workspace.loaded, view.text("pipeline")
    rows = [
        (key, value, loaded.origin(key))
        for key, value in loaded.shown()
        if not name or key.startswith(f"pipelines.{name}.") or not key.startswith("pipelines.")
    ]
    machines: dict[str, Any] = {}
    for one in [name] if name else view.workspace.pipelines():
        machine = transitions.declare(view.workspace.declared.pipelines[one].transitions)
        if machine:
            machines[one] = (transitions.picture(machine), transitions.findings(machine))
    return view.render(
        "settings.html",
        f"Settings of {name}" if name else "Settings",
        rows=rows,
        encode=lambda value: msgspec.json.encode(value).decode(),
        machines=machines,
        command_line=view.workspace.command("settings", *(["--pipeline", name] if name else [])),
    )


def findings(view: PageRequest) -> Response:
    """Check one pipeline as `instep vet` does."""
    name = view.pipeline()
    taken = gathering.gather(
        view.workspace.cluster(), view.workspace.declared, [name], view.workspace.loaded, []
    )
    return view.render(
        "findings.html",
        f"Findings of vet for {name}",
        name=name,
        report=judgement.judge(taken),
        command_line=view.workspace.command("vet", "--pipeline", name),
    )


def reports(view: PageRequest) -> Response:
    """List the reports in the working directory, and stored results."""
    return view.render(
        "reports.html",
        "Reports",
        reports=_reports(),
        results=[
            *_stored(view, paths.state() / "lab", "*/run.json", "lab"),
            *_stored(view, paths.state() / "bench", "*.json", "bench"),
        ],
        folder=str(Path.cwd()),
    )


def report(view: PageRequest) -> Response:
    """Show a report as it was written, under a policy that lets it run nothing."""
    name = view.require("name")
    if not _is_listed(name) or _report(Path(name)) is None:
        raise errors.SettingsError(
            f"there is no report {name!r} in the working directory", "open the page Reports"
        )
    text = Path(name).read_bytes()
    style = STYLE.search(text[:HEAD_BYTES])
    policy = (
        f"default-src 'none'; style-src {style[1].decode() if style else access.NOTHING};"
        " img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"
    )
    return HTMLResponse(text, headers={"content-security-policy": policy})


def _reports() -> list[ReportFile]:
    here = Path()
    files = [*here.glob("*.html"), *here.glob("*/*.html")]
    return sorted(filter(None, map(_report, files)), key=lambda one: one.at, reverse=True)


def _is_listed(name: str) -> bool:
    """Return whether a path is where reports are looked for."""
    file = Path(name)
    is_below = not file.is_absolute() and len(file.parts) <= 2 and ".." not in file.parts
    return is_below and file.suffix == ".html" and "\0" not in name


def _report(file: Path) -> ReportFile | None:
    """Return a file as a report if a command wrote it."""
    try:
        status = file.stat()
        kind = _kind(str(file), status.st_mtime_ns, status.st_size)
    except OSError:
        return None
    if kind is None or status.st_size > REPORT_BYTES_MAX:
        return None
    return ReportFile(str(file), kind, datetime.fromtimestamp(status.st_mtime, UTC))


@functools.lru_cache(KINDS_MAX)
def _kind(file: str, _mtime_ns: int, _size: int) -> str | None:
    """Return the kind of a report; None if the file is none. Files are opened once."""
    with Path(file).open("rb") as stream:
        found = GENERATOR.search(stream.read(HEAD_BYTES))
    return found[1].decode() if found else None


def _stored(view: PageRequest, kept: Path, pattern: str, kind: str) -> list[StoredResult]:
    files = sorted(kept.glob(pattern), reverse=True)[:50] if kept.is_dir() else []
    found = []
    for file in files:
        name = file.parent.name if kind == "lab" else file.stem
        at = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        command = view.workspace.command(kind, "report", items=[name])
        found.append(StoredResult(name, at, command))
    return found


PAGES = (
    ConsolePage("/settings", settings_page),
    ConsolePage("/findings", findings, of_pipeline=True),
    ConsolePage("/reports", reports),
    ConsolePage("/report", report),
)
