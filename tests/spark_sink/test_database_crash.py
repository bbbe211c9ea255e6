"""Kill the database at every step of a merge whose rows are staged. Spark itself is not needed."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from instep.local.mariadb import MariaDB
from instep.local.postgres import Postgres
from instep.pipeline.apply.batch import ProbeEvent
from instep.sinks.batches import Batches
from instep.spark_sink import definition, merge
from instep.spark_sink.merge import TaskMessage
from tests.support.databases import run_sql
from tests.support.spark_sinks import SinkQuery

pytestmark = pytest.mark.long

ROW = pa.schema([("order_id", pa.int32()), ("status", pa.string()), ("version", pa.int64())])
STEPS = range(1, 10)


@pytest.fixture(params=[Postgres, MariaDB])
def server(request: pytest.FixtureRequest) -> Iterator[Postgres | MariaDB]:
    """Yield a server that waits for the disk: what it has committed survives a kill."""
    started: Postgres | MariaDB = request.param()
    started.start()
    try:
        yield started
    finally:
        started.close()


def test_staged_rows_are_written_once_whenever_the_database_is_killed(
    server: Postgres | MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sql(
        server.url,
        "CREATE TABLE orders (order_id INTEGER PRIMARY KEY, status VARCHAR(20), version BIGINT)",
    )
    table = definition.table("orders", key="order_id", order="version")
    query = SinkQuery(server.url, table, schema=ROW)
    killed: list[int] = []
    kill_at = 0

    def probe(event: ProbeEvent) -> None:
        if event.step == kill_at and event.step not in killed:
            killed.append(event.step)
            server.kill()
            server.start()

    monkeypatch.setattr(merge, "find_probe", lambda: probe)
    for batch, step in enumerate(STEPS):
        rows = [{"order_id": batch * 10 + n, "status": "new", "version": 1} for n in range(10)]
        message = query.message(rows)
        token = f"token {batch}"
        with query.session_open() as opened:
            stage = Batches(opened.connection, "orders").stage
            stage(token, "run", batch, 0, message.chunks)
        kill_at = step
        query.merge(
            batch,
            [TaskMessage(message.query_id, "run", message.digest, [], token, len(message.chunks))],
        )
    query.close()

    assert killed == list(STEPS)
    found = run_sql(server.url, "SELECT count(*), count(DISTINCT order_id) FROM orders")
    assert found == [(len(STEPS) * 10, len(STEPS) * 10)]
    state = run_sql(server.url, "SELECT batch_id, next_row FROM instep_sinks")
    assert state == [(len(STEPS) - 1, len(STEPS) * 10)]
    assert run_sql(server.url, "SELECT count(*) FROM instep_staged_rows") == [(0,)]
