"""Run a campaign and exit with status 1 on any difference.

`python -m tests.campaign --seed 7 --databases postgres,mysql`
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from instep.local import broker
from tests.campaign import databases
from tests.campaign.judgement import Judgement, judge
from tests.campaign.scenario import Scenario
from tests.campaign.stage import Stage, dump

SECONDS = 100.0  # of faults per database; start, drain and reconcile take extra time
HEAD = (
    "database",
    "table",
    "order",
    "records",
    "lost",
    "repeated",
    "reordered",
    "different",
    "reconcile",
    "result",
)


@dataclass
class Result:
    """The result of one scenario. Without a judgement, the scenario was interrupted."""

    database: str
    table: str
    order: str
    faults: Counter[str] = field(default_factory=Counter)
    judged: Judgement = field(default_factory=Judgement)
    reconciled: int | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.judged.good and self.reconciled == 0 and not self.problems

    def cells(self) -> tuple[str, ...]:
        one = self.judged
        counts = (one.records, one.lost, one.repeated, one.reordered, one.different)
        reconciled = {None: "-", 0: "in step"}.get(self.reconciled, f"status {self.reconciled}")
        return (
            self.database,
            self.table,
            self.order,
            *map(str, counts),
            reconciled,
            "ok" if self.good else "FAILED",
        )


def main() -> int:
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = Path(given.out) if given.out else Path(tempfile.mkdtemp(prefix="instep-campaign-"))
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    results: list[Result] = []
    with broker.LocalCluster() as brokers:
        for kind in given.databases:
            results += _play(kind, brokers, out / kind, given)
    print(f"\ncampaign of seed {given.seed}, {time.monotonic() - began:.0f} s")
    print(_table([HEAD, *(one.cells() for one in results)]))
    if all(one.good for one in results):
        if not given.out:
            shutil.rmtree(out)
        return 0
    options = f"--seed {given.seed} --seconds {given.seconds:g} --guarantee {given.guarantee}"
    print(f"\nrepeat: python -m tests.campaign {options} --databases {','.join(_failed(results))}")
    print(f"logs of runs, log dumps, tables and timelines: {out}")
    return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign", description="Mixed-fault campaigns; see tests/campaign."
    )
    known = [kind for kind in databases.KINDS if kind != "mysql" or databases.MYSQL_URL]
    parser.add_argument("--seed", type=int, default=1, help="of the events and faults (1)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"of faults, per database ({SECONDS:.0f})"
    )
    parser.add_argument(
        "--databases", default=",".join(known), help=f"to test, by name ({','.join(known)})"
    )
    parser.add_argument(
        "--out",
        help="folder for logs and tables, which is kept (a temporary one, kept after a failure)",
    )
    parser.add_argument(
        "--guarantee",
        default="exactly-once",
        help="of the pipelines; a weaker one shows that the campaign finds what it breaks",
    )
    given = parser.parse_args()
    given.databases = given.databases.split(",")
    if strange := sorted(set(given.databases) - set(known)):
        parser.error(
            f"unknown: {', '.join(strange)}; known: {', '.join(known)} "
            "(mysql needs INSTEP_TEST_MYSQL_URL)"
        )
    return given


def _play(
    kind: str, brokers: broker.LocalCluster, folder: Path, given: argparse.Namespace
) -> list[Result]:
    """Run the four scenarios of one database and print a line for each.

    A campaign that is interrupted has failed.
    """
    folder.mkdir()
    with databases.KINDS[kind](folder) as database:
        stage = Stage(kind, database, brokers, folder, given.seed, given.guarantee)
        results = [_result(kind, one) for one in stage.scenarios]
        try:
            stage.prepare()
            stage.play(given.seconds)
            stage.drain()
            _judge(stage, results)
        except Exception:
            (folder / "traceback.txt").write_text(traceback.format_exc(), encoding="utf-8")
            stage.problem(
                f"the campaign broke off: {traceback.format_exc(limit=-1).splitlines()[-1]}"
            )
        finally:
            stage.close()
        for one in results:
            one.faults, one.problems = stage.faults, stage.problems
            _report(one)
    return results


def _result(kind: str, scenario: Scenario) -> Result:
    return Result(
        kind,
        "constrained" if scenario.constrained else "plain",
        "version" if scenario.ordered else "none",
    )


def _judge(stage: Stage, results: list[Result]) -> None:
    facts = {stream.topic: stage.facts(stream.topic) for stream in stage.publisher.streams}
    for one, result in zip(stage.scenarios, results, strict=True):
        found = one.read(stage.rewinds[one.name])
        dump(stage.folder, one.name, found, one.decisions())
        result.judged = judge(
            facts[one.topic], found, ordered=one.ordered, constrained=one.constrained
        )
    stage.faults["committed transactions"] = stage.publisher.committed
    stage.faults["aborted transactions"] = stage.publisher.aborted
    for result, code in zip(results, stage.reconcile().values(), strict=True):
        result.reconciled = code


def _report(one: Result) -> None:
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(one.faults.items()))
    named = " ".join(f"{name}={cell}" for name, cell in zip(HEAD[3:], one.cells()[3:], strict=True))
    print(
        f"{one.database} table={one.table} order={one.order}: {named}; faults: {faults}", flush=True
    )
    for note in (*one.judged.notes, *one.problems):
        print(f"  {note}", flush=True)


def _failed(results: list[Result]) -> list[str]:
    return list(dict.fromkeys(one.database for one in results if not one.good))


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


if __name__ == "__main__":
    sys.exit(main())
