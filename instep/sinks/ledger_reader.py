"""Read the state of a pipeline from the target database.

Read permission is enough; no temporary tables are created.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from instep import settings
from instep.document.reasons import Reason
from instep.sinks import connecting, inspection, runs, tables, target
from instep.sinks.journal_entries import LOAD_PREFIX, RESULT_MARK
from instep.sinks.runs import MinuteSample, Run
from instep.sinks.stored_values import utc_time
from instep.sinks.target import Position

LEDGER, DEAD, PARKED = tables.LEDGER, tables.DEAD_LETTERS, tables.PARKED


class LedgerView(msgspec.Struct, frozen=True):
    """The ledger, the size of the quarantine, the latest run, and the database's time.

    `dead_letters` does not count those of a topic that was replaced.
    """

    ledger: dict[int, Position]
    dead_letters: int
    parked_documents: int
    run: Run | None
    now: datetime


def read(name: str, pipeline: settings.Pipeline) -> LedgerView:
    """Read the state of a pipeline."""
    with _opened(pipeline) as opened:
        dead = sa.select(sa.func.count()).where(
            DEAD.c.pipeline == name,
            sa.or_(
                DEAD.c.topic == pipeline.topic,
                DEAD.c.topic.startswith(f"{pipeline.topic}{RESULT_MARK}", autoescape=True),
                DEAD.c.topic.startswith(LOAD_PREFIX),
            ),
        )
        parked = sa.select(sa.func.count(PARKED.c.document.distinct())).where(
            PARKED.c.pipeline == name
        )
        return LedgerView(
            ledger=_ledger(opened, name, pipeline.topic),
            dead_letters=_count(opened, dead),
            parked_documents=_count(opened, parked),
            run=runs.read(opened, name),
            now=runs.clock(opened),
        )


def ledger(name: str, pipeline: settings.Pipeline) -> dict[int, Position]:
    """Return the pipeline's ledger rows by partition."""
    with _opened(pipeline) as opened:
        return _ledger(opened, name, pipeline.topic)


def reasons(name: str, pipeline: settings.Pipeline, since: datetime) -> dict[str, int]:
    """Count the reasons of quarantined events since a time, most frequent first.

    Events that only wait behind another one do not count.
    """
    counts: dict[str, int] = {}
    with _opened(pipeline) as opened:
        for table in (DEAD, PARKED):
            query = (
                sa.select(table.c.reason, sa.func.count())
                .where(
                    table.c.pipeline == name,
                    table.c["at"] >= since,
                    table.c.reason != Reason.WAITS_BEHIND.value,
                )
                .group_by(table.c.reason)
            )
            for reason, count in opened.execute(query):
                counts[str(reason)] = counts.get(str(reason), 0) + int(count)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def latest_run(name: str, pipeline: settings.Pipeline) -> tuple[Run | None, datetime]:
    """Return the pipeline's latest run, if there was any, and the database's time."""
    with _opened(pipeline) as opened:
        return runs.read(opened, name), runs.clock(opened)


def trend(name: str, pipeline: settings.Pipeline) -> list[tuple[float, MinuteSample]]:
    """Return the figures of the last hour's minutes, each with how many seconds ago it ended."""
    with _opened(pipeline) as opened:
        now = runs.clock(opened).timestamp()
        return [(now - sample.at, sample) for sample in runs.trend(opened, name)]


def given_up(name: str, pipeline: settings.Pipeline) -> int:
    """Return the number of parked documents that redrive does not try any more."""
    if pipeline.redrive is None:
        return 0
    with _opened(pipeline) as opened:
        query = sa.select(sa.func.count()).where(
            PARKED.c.pipeline == name,
            PARKED.c.reason.in_(pipeline.redrive.reason),
            PARKED.c.attempts >= pipeline.redrive.attempts,
        )
        return _count(opened, query)


@contextmanager
def _opened(pipeline: settings.Pipeline) -> Iterator[sa.Connection]:
    url = target.database_url(pipeline.target)
    with connecting.connection(url, read_only=True) as opened:
        inspection.check_own_tables(opened, url, inspection.own_tables(sa.inspect(opened)))
        yield opened


def _count(opened: sa.Connection, query: sa.Select[Any]) -> int:
    return int(opened.execute(query).scalar() or 0)


def _ledger(opened: sa.Connection, name: str, topic: str) -> dict[int, Position]:
    columns = [LEDGER.c[column] for column in Position.__struct_fields__]
    query = sa.select(*columns).where(LEDGER.c.pipeline == name, LEDGER.c.topic == topic)
    positions = {}
    for row in opened.execute(query):
        values = dict(row._mapping)
        values["committed_at"] = utc_time(row.committed_at)
        values["totals"] = {}
        if row.totals:
            values["totals"] = msgspec.json.decode(row.totals, type=dict[str, int])
        positions[row.partition] = Position(**values)
    return positions
