"""Runs of the lab, each a folder that says all of it:

RUN/run.json                what was asked for, of which releases, on which machine
RUN/CLAIM/verdict.json      what came of it; from the claim's begin on, so that a run that was killed is INCONCLUSIVE
RUN/CLAIM/settings.json     what each client was started with, case by case
RUN/CLAIM/timeline.jsonl    steps and faults, with their times
RUN/CLAIM/history-*.jsonl   every operation of every client, case by case
RUN/made.jsonl              topics and groups that the run made, written before they are made
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from instep import errors
from instep.local import paths
from instep.report import files
from instep_lab.claim import ClaimResult, Tier

RUN_FILE = "run.json"
VERDICT_FILE = "verdict.json"
SETTINGS_FILE = "settings.json"
TIMELINE_FILE = "timeline.jsonl"
MADE_FILE = "made.jsonl"

Kept = TypeVar("Kept")


class LabRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is made of: what was asked for, and on what it ran. `cluster` is None for brokers of the lab's own."""

    id: str
    tier: Tier
    seed: int
    claims: list[str]
    command: str
    begun_at: str
    machine: dict[str, str]
    releases: dict[str, str]
    cluster: str | None = None


class Made(msgspec.Struct, frozen=True):
    """A topic or a group of the run's own."""

    kind: str
    name: str


def folder() -> Path:
    """Where runs are kept."""
    kept = paths.state() / "lab"
    with paths.explained(kept):
        kept.mkdir(exist_ok=True)
    return kept


def new_id(tier: Tier, seed: int, at: datetime | None = None) -> str:
    return f"{(at or datetime.now(UTC)):%Y%m%dT%H%M%S}-{tier}-{seed}"


def begin(into: Path, run: LabRun) -> Path:
    """Make the run's folder."""
    made = into / run.id
    with paths.explained(into):
        made.mkdir(parents=True)
        files.write(made / RUN_FILE, run)
    return made


def runs(kept: Path) -> list[Path]:
    """The folders of all runs, oldest first."""
    return sorted(file.parent for file in kept.glob(f"*/{RUN_FILE}"))


def find(kept: Path, id_: str | None) -> Path:
    """The run of this id or at this path; the newest when none is named."""
    if id_ is not None and files.exists(Path(id_) / RUN_FILE):
        return Path(id_)
    known = runs(kept)
    if not known:
        raise errors.SettingsError(f"there is no run of the lab in {kept}", "instep lab run")
    if id_ is None:
        return known[-1]
    for run in known:
        if run.name == id_:
            return run
    raise errors.SettingsError(
        f"there is no run {id_!r} in {kept}",
        f"the newest are: {', '.join(run.name for run in known[-3:])}",
    )


def interrupted(kept: Path) -> Path:
    """The newest run that has something left to do."""
    for run in reversed(runs(kept)):
        if remaining(read_run(run).claims, read_results(run)):
            return run
    raise errors.SettingsError(
        f"no run in {kept} was interrupted",
        "instep lab runs shows them all; instep lab run begins one",
    )


def read_run(run: Path) -> LabRun:
    return files.read(run / RUN_FILE, LabRun)


def read_results(run: Path) -> dict[str, ClaimResult]:
    """What the run has come to so far, by claim, in the order in which they were asked for."""
    return {
        claim: files.read(run / claim / VERDICT_FILE, ClaimResult)
        for claim in read_run(run).claims
        if files.exists(run / claim / VERDICT_FILE)
    }


def write_result(run: Path, result: ClaimResult) -> None:
    """Put it in the place of what was there, whole or not at all."""
    files.write(run / result.claim / VERDICT_FILE, result)


def write_settings(folder_: Path, cases: Mapping[str, Any]) -> None:
    files.write(folder_ / SETTINGS_FILE, cases)


def read_settings(folder_: Path) -> dict[str, Any]:
    """What each client of a claim was started with, case by case; nothing when none was started yet."""
    file = folder_ / SETTINGS_FILE
    return files.read(file, dict[str, Any]) if files.exists(file) else {}


def read_timeline(folder_: Path) -> list[dict[str, Any]]:
    """The steps and faults of a claim. A last line that breaks off was being written when the run was killed, and is left out."""
    file = folder_ / TIMELINE_FILE
    if not files.exists(file):
        return []
    with files.explained(file):
        return [
            msgspec.json.decode(line, type=dict[str, Any])
            for line in file.read_bytes().split(b"\n")[:-1]
        ]


def note_made(run: Path, made: Made) -> None:
    with (run / MADE_FILE).open("ab") as stream:
        stream.write(msgspec.json.encode(made) + b"\n")


def read_made(run: Path) -> list[Made]:
    if not (run / MADE_FILE).exists():
        return []
    lines = (run / MADE_FILE).read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Made) for line in lines]


def file_name(text: str) -> str:
    """A case's name as a part of a file's."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", text)


def remaining(asked: Iterable[str], results: Mapping[str, ClaimResult]) -> list[str]:
    """The claims that a resumed run still has to settle: those that did not end."""
    return [claim for claim in asked if claim not in results or not results[claim].ended]
