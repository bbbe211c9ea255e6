"""Runs of the lab, each of which is a folder.

RUN/run.json                the request, the releases and the machine
RUN/brokers.json            the settings of the brokers that differ from Kafka's defaults
RUN/CLAIM/verdict.json      the result; INCONCLUSIVE until the experiment has ended
RUN/CLAIM/settings.json     the settings of every client, by scenario
RUN/CLAIM/timeline.jsonl    steps and faults, with their times
RUN/CLAIM/history-*.jsonl   every operation of every client, by scenario
RUN/made.jsonl              topics and groups of the run, written before they are created
RUN/.lock                   held by a process of the run that changes brokers.json
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
BROKERS_FILE = "brokers.json"
VERDICT_FILE = "verdict.json"
SETTINGS_FILE = "settings.json"
TIMELINE_FILE = "timeline.jsonl"
MADE_FILE = "made.jsonl"
LOCK_FILE = ".lock"

Stored = TypeVar("Stored")


class LabRun(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a run, and the machine, the commit and the releases it ran on.

    `cluster` is None if the lab started its own brokers. `files` has the ids of the lab's source
    files: unlike the commit, they stay the same when the commit is rebased.
    """

    id: str
    tier: Tier
    seed: int
    claims: list[str]
    command: str
    begun_at: str
    commit: str | None = None
    files: dict[str, str] = {}
    machine: dict[str, str]
    releases: dict[str, str]
    cluster: str | None = None


class BrokerSetting(msgspec.Struct, frozen=True):
    """A setting of the brokers that is not Kafka's default."""

    value: str | None
    default: str | None


class CreatedResource(msgspec.Struct, frozen=True):
    """A topic or a group that the run created."""

    kind: str
    name: str


def folder() -> Path:
    """Return the folder that holds the runs."""
    kept = paths.state() / "lab"
    with paths.explained(kept):
        kept.mkdir(exist_ok=True)
    return kept


def new_id(tier: Tier, seed: int, at: datetime | None = None) -> str:
    return f"{(at or datetime.now(UTC)):%Y%m%dT%H%M%S}-{tier}-{seed}"


def begin(into: Path, run: LabRun) -> Path:
    """Create the folder of a run."""
    created = into / run.id
    with paths.explained(into):
        created.mkdir(parents=True)
        files.write(created / RUN_FILE, run)
    return created


def runs(kept: Path) -> list[Path]:
    """Return the folders of all runs, oldest first."""
    return sorted(file.parent for file in kept.glob(f"*/{RUN_FILE}"))


def find(kept: Path, id_: str | None) -> Path:
    """Return the run with this id or path; the newest run for None."""
    if id_ is not None and files.exists(Path(id_) / RUN_FILE):
        return Path(id_)
    known = runs(kept)
    if not known:
        raise errors.SettingsError(f"no lab runs in {kept}", "start one: instep lab run")
    if id_ is None:
        return known[-1]
    for run in known:
        if run.name == id_:
            return run
    raise errors.SettingsError(
        f"no run {id_!r} in {kept}",
        f"the newest runs are {', '.join(run.name for run in known[-3:])}",
    )


def interrupted(kept: Path) -> Path:
    """Return the newest run that is not complete."""
    for run in reversed(runs(kept)):
        if remaining(read_run(run).claims, read_results(run)):
            return run
    raise errors.SettingsError(
        f"no run in {kept} was interrupted",
        "list the runs with instep lab runs, or start one with instep lab run",
    )


def read_run(run: Path) -> LabRun:
    return files.read(run / RUN_FILE, LabRun)


def add_releases(run: Path, found: Mapping[str, str]) -> None:
    """Add releases that are known only when servers run; nothing outside of a stored run."""
    if files.exists(run / RUN_FILE):
        known = read_run(run)
        releases = {**known.releases, **found}
        files.write(run / RUN_FILE, msgspec.structs.replace(known, releases=releases))


def read_results(run: Path) -> dict[str, ClaimResult]:
    """Return the results so far, by claim, in the order of the request."""
    return {
        claim: files.read(run / claim / VERDICT_FILE, ClaimResult)
        for claim in read_run(run).claims
        if files.exists(run / claim / VERDICT_FILE)
    }


def write_result(run: Path, result: ClaimResult) -> None:
    """Write a result atomically."""
    files.write(run / result.claim / VERDICT_FILE, result)


def write_settings(folder_: Path, cases: Mapping[str, Any]) -> None:
    files.write(folder_ / SETTINGS_FILE, cases)


def read_settings(folder_: Path) -> dict[str, Any]:
    """Return the settings of every client of a claim, by scenario; empty before the first start."""
    file = folder_ / SETTINGS_FILE
    return files.read(file, dict[str, Any]) if files.exists(file) else {}


def read_timeline(folder_: Path) -> list[dict[str, Any]]:
    """Return the steps and faults of a claim.

    An incomplete last line is ignored: it was being written when the run was killed.
    """
    file = folder_ / TIMELINE_FILE
    if not files.exists(file):
        return []
    with files.explained(file):
        return [
            msgspec.json.decode(line, type=dict[str, Any])
            for line in file.read_bytes().split(b"\n")[:-1]
        ]


def read_brokers(run: Path) -> dict[int, dict[str, BrokerSetting]]:
    """Return the changed settings of the brokers, by the number of brokers of the cluster."""
    file = run / BROKERS_FILE
    return files.read(file, dict[int, dict[str, BrokerSetting]]) if files.exists(file) else {}


def write_brokers(run: Path, brokers: int, changed: Mapping[str, BrokerSetting]) -> None:
    """Add the changed settings of a cluster; two processes may do so at the same time."""
    with paths.locked(run / LOCK_FILE):
        files.write(run / BROKERS_FILE, {**read_brokers(run), brokers: dict(changed)})


def record_created(run: Path, resource: CreatedResource) -> None:
    with (run / MADE_FILE).open("ab") as stream:
        stream.write(msgspec.json.encode(resource) + b"\n")


def read_created(run: Path) -> list[CreatedResource]:
    if not (run / MADE_FILE).exists():
        return []
    lines = (run / MADE_FILE).read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=CreatedResource) for line in lines]


def file_name(text: str) -> str:
    """Return a text as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", text)


def remaining(requested: Iterable[str], results: Mapping[str, ClaimResult]) -> list[str]:
    """Return the requested claims whose experiments have not ended."""
    return [claim for claim in requested if claim not in results or not results[claim].ended]
