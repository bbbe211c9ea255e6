"""Test `instep bench relay` with a small run on real servers."""

from __future__ import annotations

from pathlib import Path

from instep.local.broker import LocalCluster
from instep_bench import relay
from tests.support.databases import run_sql


def test_a_small_run_measures_both_guarantees_and_leaves_nothing(
    broker: LocalCluster, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/source.db"
    run_sql(url, "CREATE TABLE theirs (id integer)")
    options = relay.RelayOptions(
        sources=(url,), rows=500, rounds=1, rate=50, seconds=1, bootstrap=broker.bootstrap
    )
    result = relay.run(options, lambda _: None, "instep bench relay")
    assert [(one.name, *one.labels.values()) for one in result.figures] == [
        ("published", url, "exactly-once"),
        ("published", url, "at-least-once"),
        ("commit to visible", url, "p50"),
        ("commit to visible", url, "p99"),
    ]
    assert all(value > 0 for one in result.figures for value in one.values)
    left = run_sql(url, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    assert [name for (name,) in left if not name.startswith("sqlite_")] == ["theirs"]
