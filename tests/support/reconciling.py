"""What a reconciliation reports, counted by kind."""

from __future__ import annotations

from typing import Any

from instep.reconcile.report import ReconcileReport


def counted(report: ReconcileReport) -> tuple[int, int, int]:
    return report.missing, report.extra, report.different


def found(listed: list[dict[str, Any]]) -> list[tuple[str, str, str | None]]:
    return [(row["document"], row["kind"], row["column"]) for row in listed]
