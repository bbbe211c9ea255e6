"""Writes docs/lab/seeds.md: `python -m instep_lab.report.seed_page docs/lab RUN…`.

The runs have the same claims, tier and commit, and different seeds; anything else is refused. What
the page needs of them is stored beside it, so that without a RUN the page is written again after a
change of its form. The index of the lab gets a link.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from instep import errors
from instep.document.showing import counted
from instep.report.markup import markdown
from instep_lab import bounds, marked, seeds, source_tree, store
from instep_lab.claim import ClaimResult, Tier
from instep_lab.report.__main__ import CHANGED
from instep_lab.report.markdown import grid
from instep_lab.verdict import ClaimVerdict

PAGE, STORED, INDEX = "seeds.md", "seeds.json", "index.md"
BEGIN, END = "<!-- seeds: begin -->", "<!-- seeds: end -->"
RUNS_MIN = 2


class SeedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its seed, and how many claims have each verdict."""

    id: str
    seed: int
    begun_at: str
    minutes: float
    verdicts: dict[str, int]


class ClaimOverSeeds(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts about a claim, and the outcomes of parts that differ, each with its seeds."""

    claim: str
    statement: str
    verdicts: dict[str, list[int]]
    parts: dict[str, dict[str, list[int]]] = {}
    same: bool


class SeedResults(msgspec.Struct, frozen=True, kw_only=True):
    """What several runs of the same claims came to."""

    commit: str
    tree: str = ""
    tier: Tier
    machine: dict[str, str]
    releases: dict[str, str]
    runs: list[SeedRun]
    claims: list[ClaimOverSeeds]


def gather(folders: Sequence[Path]) -> SeedResults:
    """Read the runs; refuse those that cannot be compared."""
    runs = sorted((store.read_run(folder) for folder in folders), key=lambda run: run.seed)
    by_id = {store.read_run(folder).id: store.read_results(folder) for folder in folders}
    if refusal := _incomparable(runs, by_id):
        raise errors.InstepError(f"the runs cannot be compared: {refusal}")
    by_seed = {run.seed: by_id[run.id] for run in runs}
    first = runs[0]
    return SeedResults(
        commit=first.commit or "",
        tree=source_tree.tree(first.files) if first.files else "",
        tier=first.tier,
        machine=first.machine,
        releases=first.releases,
        runs=[_seed_run(run, by_id[run.id]) for run in runs],
        claims=[
            ClaimOverSeeds(
                claim=one.claim,
                statement=_statement(by_id[first.id][one.claim]),
                verdicts=one.verdicts,
                parts=one.parts,
                same=one.same,
            )
            for one in seeds.compare(by_seed)
        ],
    )


def _incomparable(
    runs: Sequence[store.LabRun], results: Mapping[str, Mapping[str, ClaimResult]]
) -> str:
    """Return why the runs cannot be compared; an empty string if they can."""
    if len(runs) < RUNS_MIN:
        return f"there must be at least {RUNS_MIN}"
    first = runs[0]
    for run in runs:
        if run.commit is None or run.commit.endswith(CHANGED):
            return f"the commit of {run.id} is not known, or it ran with local changes"
        if (run.commit, run.tier, run.claims) != (first.commit, first.tier, first.claims):
            return f"{run.id} has another commit, tier or claims than {first.id}"
        if run.cluster:
            return f"{run.id} ran on a cluster that the lab did not start"
        open_ = store.remaining(run.claims, results[run.id])
        if open_:
            return (
                f"{run.id} has not ended {', '.join(open_)}; instep lab run --resume continues it"
            )
        others = {one.commit for one in results[run.id].values()} - {run.commit}
        if others:
            return f"{run.id} has claims of another commit"
    twice = [seed for seed, count in Counter(run.seed for run in runs).items() if count > 1]
    if twice:
        return f"two runs have seed {twice[0]}"
    return ""


def _seed_run(run: store.LabRun, results: Mapping[str, ClaimResult]) -> SeedRun:
    words = Counter(one.verdict.value for one in results.values())
    return SeedRun(
        id=run.id,
        seed=run.seed,
        begun_at=run.begun_at,
        minutes=round(sum(one.seconds for one in results.values()) / 60, 1),
        verdicts={word.value: words[word] for word in ClaimVerdict if words[word]},
    )


def _statement(result: ClaimResult) -> str:
    return result.texts.statement if result.texts else result.claim


def page(results: SeedResults) -> str:
    """Return the page."""
    return "\n\n".join(part for part in _parts(results) if part) + "\n"


def link(results: SeedResults) -> str:
    """Return the line of the index."""
    return (
        f"- [Other seeds]({PAGE}): whether the verdicts are the same in"
        f" {len(results.runs)} runs with other workloads and other points of failure."
    )


def write_index(text: str, results: SeedResults) -> str:
    """Return the index with a link to the page."""
    return marked.replace(text, BEGIN, link(results), END)


def _parts(results: SeedResults) -> Iterator[str]:
    runs, differing = results.runs, [one for one in results.claims if not one.same]
    same = len(results.claims) - len(differing)
    yield "# Verdicts with other seeds"
    yield (
        "A seed decides keys, values and sizes of the workload, and at which record a client or a"
        f" broker dies. This page compares {len(runs)} runs of"
        f" {counted(len(results.claims), 'claim')} with different seeds, in the *{results.tier}*"
        f" tier and at one commit: **{counted(same, 'claim')} had the same verdict in every run,"
        f" {len(differing)} had not.**"
        " A claim that is INCONCLUSIVE in a run counts as different."
    )
    most = math.ceil(bounds.upper(0, len(runs)) * 100)
    yield (
        f"{len(runs)} runs are few: a verdict that was the same in all of them may still be another"
        f" one in up to {most} % of runs (with 95 % confidence). The runs share one machine and the"
        " same releases, which a seed does not change."
    )
    yield (
        f"`instep lab run --seeds {len(runs)} --seed {runs[0].seed} --tier {results.tier}` repeats"
        " this with the seeds from there on, and lists what differs."
    )
    yield "## What differs"
    if differing:
        yield grid(
            ("claim", "statement", "verdicts"),
            [[_claim(one), markdown(one.statement), _by_seed(one.verdicts)] for one in differing],
        )
    else:
        yield "No verdict."
    yield from _differing_parts(
        "Parts of these claims whose outcome was not the same in all runs:", differing
    )
    yield from _differing_parts(
        "Parts that differed without changing the verdict:",
        [one for one in results.claims if one.same],
    )
    yield "## The runs"
    words = [word.value for word in ClaimVerdict if any(word.value in one.verdicts for one in runs)]
    yield grid(
        ("seed", "run", "begun", "minutes of all claims", *words),
        [
            [
                str(one.seed),
                f"`{one.id}`",
                one.begun_at,
                f"{one.minutes:.1f}",
                *(str(one.verdicts.get(word, 0)) for word in words),
            ]
            for one in runs
        ],
    )
    tree = {"tree of instep_lab": results.tree} if results.tree else {}
    facts = {"commit": results.commit, **tree, **results.machine, **results.releases}
    yield "Commit, machine and releases: " + ", ".join(
        f"{markdown(name)} `{value}`" for name, value in facts.items()
    )
    yield "## All verdicts"
    yield grid(
        ("claim", "statement", "verdict", "runs"),
        [
            [
                _claim(one),
                markdown(one.statement),
                "; ".join(one.verdicts),
                "; ".join(f"{len(found)} of {len(runs)}" for found in one.verdicts.values()),
            ]
            for one in results.claims
        ],
    )


def _differing_parts(title: str, claims: Sequence[ClaimOverSeeds]) -> Iterator[str]:
    rows = [
        [_claim(one), markdown(part), _by_seed(outcomes)]
        for one in claims
        for part, outcomes in one.parts.items()
    ]
    if rows:
        yield title
        yield grid(("claim", "part", "outcomes"), rows)


def _claim(one: ClaimOverSeeds) -> str:
    return f"[{one.claim}](claims.md#claim-{store.file_name(one.claim)})"


def _by_seed(found: Mapping[str, Sequence[int]]) -> str:
    return "; ".join(f"{word} with {_numbered(given)}" for word, given in found.items())


def _numbered(given: Sequence[int]) -> str:
    """Return seeds as a list; a row of three or more consecutive ones is a range."""
    breaks = [0, *(at for at, (one, two) in enumerate(pairwise(given), 1) if two != one + 1)]
    texts: list[str] = []
    for start, end in pairwise([*breaks, len(given)]):
        row = given[start:end]
        texts += [f"{row[0]} to {row[-1]}"] if len(row) > 2 else map(str, row)
    return f"{'seed' if len(given) == 1 else 'seeds'} {', '.join(texts)}"


def main(arguments: list[str]) -> str:
    """Write the page; return an error message, or an empty string."""
    parser = argparse.ArgumentParser(
        prog="python -m instep_lab.report.seed_page", exit_on_error=False
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("runs", metavar="RUN", nargs="*", help="id or folder of a run")
    try:
        given = parser.parse_args(arguments)
    except (argparse.ArgumentError, SystemExit):
        return parser.format_usage().strip()
    folder: Path = given.folder
    try:
        if given.runs:
            results = gather([store.find(store.folder(), run) for run in given.runs])
        else:
            results = msgspec.json.decode((folder / STORED).read_bytes(), type=SeedResults)
        index = write_index((folder / INDEX).read_text(encoding="utf-8"), results)
        (folder / INDEX).write_text(index, encoding="utf-8")
        (folder / PAGE).write_text(page(results), encoding="utf-8")
        (folder / STORED).write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    except (errors.InstepError, OSError) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or 0)
