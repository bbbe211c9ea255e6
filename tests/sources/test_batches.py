"""Test how much the readers of all databases return at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from instep import sources
from instep.kafka.connection import Cluster
from instep.sources import id_reader, outbox_reader
from instep.sources.connection import SourceConnection
from tests.support.print_shop import PrintShop
from tests.support.relays import declare

BYTES_MAX = 60_000


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mariadb"])
def test_a_batch_ends_when_its_rows_have_many_bytes(
    kind: str,
    new_database: Callable[[str], str],
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let small rows come before large ones, and at most four rows be read at once."""
    name, relay = declare(new_database(kind), cluster)
    shop = PrintShop(relay, name)
    for module in (outbox_reader, id_reader):
        monkeypatch.setattr(module, "BATCH_BYTES_MAX", BYTES_MAX)
    monkeypatch.setattr(outbox_reader, "FIRST_ROW_BYTES", BYTES_MAX // 4)
    monkeypatch.setattr(outbox_reader, "PORTION_ROWS_MAX", 4)
    sizes = [20] * 10 + [20_000] * 10
    with SourceConnection(relay.source) as opened, opened.transaction():
        for number, size in enumerate(sizes):
            shop.change(opened, f"job-{number}", size=size)
    reader = sources.open_reader(relay, name)
    batches = []
    while batch := reader.next(1_000):
        batches.append(batch)
    assert [row.document for batch in batches for row in batch.rows] == [
        f"job-{number}" for number in range(len(sizes))
    ]
    assert [batch.is_full for batch in batches] == [True] * (len(batches) - 1) + [False]
    sizes_read = [sum(len(row.value or b"") for row in batch.rows) for batch in batches]
    assert max(sizes_read) < BYTES_MAX + 4 * 20_200
    assert len(batches) >= 3
    reader.close()
