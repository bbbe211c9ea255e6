"""Test `instep relay init --trigger`: a plan first, because it changes a table of the source."""

from __future__ import annotations

from pathlib import Path

from instep import settings
from instep.cli.output import DRY_RUN
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.local.broker import LocalCluster
from tests.support.cli import instep, refused, reported
from tests.support.databases import run_sql


def test_triggers_are_a_plan_until_they_are_executed(broker: LocalCluster, tmp_path: Path) -> None:
    source = f"sqlite:///{tmp_path}/shop.db"
    name = f"relay-{tmp_path.name.replace('_', '-')}"
    (tmp_path / "instep.toml").write_text(
        f"[kafka]\nbootstrap = {broker.bootstrap!r}\n"
        f"[relays.{name}]\nsource = {source!r}\ntopic = {name!r}\nversion = 'version'\n",
        encoding="utf-8",
    )
    with Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        topics.create(cluster, name, 2)
    run_sql(source, "CREATE TABLE job (id integer PRIMARY KEY, status varchar(9))")
    in_database = "SELECT type, name FROM sqlite_master WHERE type <> 'index' ORDER BY name"
    before = run_sql(source, in_database)
    trigger = ("relay", "init", "--trigger", "job")

    planned = instep(tmp_path, *trigger)
    assert planned.returncode == 0, planned.stderr
    assert "CREATE TABLE" in planned.stdout
    assert "CREATE TRIGGER" in planned.stdout
    assert planned.stderr.splitlines() == [DRY_RUN]
    assert reported(tmp_path, *trigger)["executed"] is False
    assert run_sql(source, in_database) == before

    assert "cannot be combined with --execute" in refused(tmp_path, *trigger, "--sql", "--execute")
    done = instep(tmp_path, *trigger, "--execute")
    assert done.returncode == 0, done.stderr
    assert "the trigger adds" in done.stderr
    assert done.stderr.splitlines()[-1] == f"{name}: ready"
    assert any(kind == "trigger" for kind, _ in run_sql(source, in_database))
