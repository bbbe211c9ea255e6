"""Kill a relay at each step of a transaction: what both guarantees keep, and what one repeats."""

from __future__ import annotations

import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from instep.kafka.connection import Cluster
from tests.support.databases import run_sql
from tests.support.killed_relay import run_killed
from tests.support.print_shop import PrintShop, difference, published
from tests.support.relays import declare, run_once, write_settings

# The first commit of a relay is that of its first position, without rows.
STEPS = (
    "before commit 1",
    "after next 1",
    "after add 3",
    "before settle 1",
    "after settle 2",
    "before commit 2",
    "after commit 2",
    "before done 1",
    "after done 1",
    "before done 2",
)
LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("kind", "guarantee"),
    [
        ("sqlite", "at-least-once"),
        pytest.param("postgres", "at-least-once", marks=LONG),
        pytest.param("mariadb", "at-least-once", marks=LONG),
        pytest.param("mysql", "at-least-once", marks=LONG),
        pytest.param("sqlite", "exactly-once", marks=LONG),
        ("postgres", "exactly-once"),
        pytest.param("mariadb", "exactly-once", marks=LONG),
        pytest.param("mysql", "exactly-once", marks=LONG),
    ],
)
def test_a_relay_that_is_killed_at_any_step_loses_nothing(
    kind: str,
    guarantee: str,
    new_database: Callable[[str], str],
    cluster: Cluster,
    tmp_path: Path,
) -> None:
    """Allow repetitions with at-least-once, if they are in order, too."""
    options = {"guarantee": guarantee, "batch_rows_max": 4}
    name, relay = declare(new_database(kind), cluster, **options)
    write_settings(tmp_path, name, relay, cluster.bootstrap)
    shop = PrintShop(relay, name)
    for seed, step in enumerate(STEPS):
        shop.work(6, seed)
        assert run_killed(tmp_path, step) == -signal.SIGKILL, step
        # the next process need not wait for the lease
        run_sql(relay.source, "UPDATE instep_relays SET heartbeat_s = 0")
    run_once(name, relay, cluster)
    if guarantee == "exactly-once":
        assert not difference(shop, cluster, relay.topic)
        return
    found, counts = published(cluster, relay.topic), shop.counts()
    assert found.keys() == counts.keys()
    for document, versions in found.items():
        assert set(versions) == set(range(1, counts[document] + 1)), document
        # The next one, or again from an earlier one.
        assert all(new <= old + 1 for old, new in pairwise([0, *versions])), (document, versions)
    repeated = sum(map(len, found.values())) - sum(counts.values())
    assert repeated > 0, "no step was between a record and its position"
