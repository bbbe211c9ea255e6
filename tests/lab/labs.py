"""Hand-made lab runs for the tests of code that reads runs."""

from __future__ import annotations

from pathlib import Path

from instep.report.tables import Plot, PlotKind, ReportTable, Series
from instep_lab import store
from instep_lab.claim import Claim, ClaimResult, ClaimTexts, Tier
from instep_lab.verdict import ClaimVerdict, Judgement, PartOutcome, Role, VerdictPart, judge

ID = "20261101T080000-quick-7"
RIGHT = [
    VerdictPart(Role.STATEMENT, "acks=all loses no records", PartOutcome.PASS, "0 of 20,000 lost")
]
LOST = Plot(
    "Lost records",
    "acks",
    "records",
    [Series("lost", [("acks=0", 17.0), ("acks=1", None), ("acks=all", 0.0)])],
    log_y=True,
)
SEEK = Plot(
    "Seek time",
    "log length",
    "ms",
    [Series("p50", [(1, 1.5), (10, None), (100, 1.6)])],
    kind=PlotKind.LINES,
    log_x=True,
)
GRID = Plot(
    "Throughput",
    "batch.size",
    "linger.ms",
    [Series("0", [("1k", 9.0)]), Series("5", [("16k", 7.0)])],
    kind=PlotKind.HEAT,
)
COUNTS = ReportTable("Counts", ["acks", "sent", "lost"], [["all", 20_000, 0], ["0", 20_000, None]])


def run_of(*claims: str, id_: str = ID) -> store.LabRun:
    return store.LabRun(
        id=id_,
        tier=Tier.QUICK,
        seed=7,
        claims=list(claims),
        command="instep lab run --seed 7",
        begun_at="2026-11-01T08:00:00Z",
        machine={"cores": "2"},
        releases={"kafka": "4.3.1"},
    )


def result_of(
    claim: str,
    parts: list[VerdictPart] = RIGHT,
    *,
    tables: list[ReportTable] | None = None,
    plots: list[Plot] | None = None,
    ended: bool = True,
) -> ClaimResult:
    return ClaimResult(
        claim=claim,
        tier=Tier.QUICK,
        seed=7,
        judgement=judge(parts),
        parts=parts,
        tables=tables or [],
        plots=plots or [],
        command=f"instep lab run {claim} --seed 7",
        begun_at="2026-11-01T08:00:01Z",
        seconds=2.5,
        ended=ended,
    )


def unfinished(claim: str) -> ClaimResult:
    """Return what is written when an experiment starts, and what remains if it is killed."""
    return ClaimResult(
        claim=claim,
        tier=Tier.QUICK,
        seed=7,
        judgement=Judgement(ClaimVerdict.INCONCLUSIVE, "it did not end"),
        command=f"instep lab run {claim} --seed 7",
        begun_at="2026-11-01T08:00:02Z",
    )


def claim_of(
    id_: str,
    statement: str = "acks=all loses no records",
    rules: tuple[str, ...] = ("TOPIC_SINGLE_REPLICA",),
) -> Claim:
    return Claim(
        id_,
        ClaimTexts(
            statement=statement,
            method="kill -9 of the leader",
            advice="Use `acks=all`.",
            rules=rules,
        ),
        3,
        False,
        None,
        lambda _trial: None,
    )


def a_run(kept: Path, id_: str = ID) -> Path:
    """Write a run with one claim that ended, one that was killed, and one that did not start."""
    run = store.begin(kept, run_of("probe-1", "probe-2", "probe-3", id_=id_))
    store.write_result(run, result_of("probe-1", tables=[COUNTS], plots=[LOST, SEEK, GRID]))
    store.write_settings(run / "probe-1", {"acks=all": {"acks": "all", "linger.ms": 5}})
    (run / "probe-1" / "timeline.jsonl").write_text(
        '{"at_s":1.5,"fault":"kill -9","pid":4711}\n{"at_s":1.6,"st', encoding="utf-8"
    )
    store.write_result(run, unfinished("probe-2"))
    return run
