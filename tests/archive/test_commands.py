"""Test the commands of an archive one after the other, as its operator runs them."""

from __future__ import annotations

from pathlib import Path

from instep.cli.output import DRY_RUN
from instep.kafka import offsets, topics
from instep.kafka.connection import Cluster
from instep.local.broker import LocalCluster
from tests.support import archives, cli
from tests.support.databases import run_sql

ARCHIVE = """
[archives.history]
topic = "{topic}"
path = "archive"
"""
DOCUMENTS = 20


def prepare(folder: Path, bootstrap: str) -> str:
    """Declare a pipeline and an archive of the same topic; return the topic."""
    cli.prepare_folder(folder, bootstrap)
    file = folder / "instep.toml"
    text = file.read_text(encoding="utf-8")
    topic = text.partition('topic = "')[2].partition('"')[0]
    file.write_text(text + ARCHIVE.format(topic=topic), encoding="utf-8")
    return topic


def test_an_archive_is_written_proven_replayed_and_tidied(
    broker: LocalCluster, cluster: Cluster, tmp_path: Path
) -> None:
    topic = prepare(tmp_path, broker.bootstrap)
    ran = cli.instep(tmp_path, "init", "contracts")
    assert ran.returncode == 0, ran.stderr
    load = ("load", "contracts", "--from", "archive:history")
    assert "it has never run" in cli.refused(tmp_path, *load)
    assert cli.instep(tmp_path, "emit", "-", given=cli.EVENTS).returncode == 0
    ran = cli.instep(tmp_path, "run", "--once")
    assert ran.returncode == 0, ran.stderr

    status = cli.reported(tmp_path, "status", "history")
    [one] = status["archives"]
    assert (one["records"], one["lag_records"], one["error"]) == (DOCUMENTS, 0, None)
    [proven] = cli.reported(tmp_path, "reconcile", "--archive", "history")["archives"]
    assert (proven["verdict"], proven["compared"]) == ("in step", DOCUMENTS)

    # Kafka loses everything, also what was published after the archive ended.
    assert cli.instep(tmp_path, "emit", "-", given=cli.EVENTS).returncode == 0
    ends = offsets.latest(cluster, topic, range(2))
    topics.trim(cluster, topic, ends)
    target = f"sqlite:///{tmp_path}/contracts.db"
    run_sql(target, "DELETE FROM contract_document")
    replay = ("replay", "--archive", "history", "--from", "start", "--pipeline", "contracts")
    assert DRY_RUN in cli.instep(tmp_path, *replay).stderr
    done = cli.instep(tmp_path, *replay, "--execute")
    assert done.returncode == 0, done.stderr
    assert run_sql(target, "SELECT count(*) FROM contract_document") == [(DOCUMENTS,)]

    # A load from the archive does the same for one pipeline.
    run_sql(target, "DELETE FROM contract_document")
    assert DRY_RUN in cli.instep(tmp_path, *load).stderr
    assert run_sql(target, "SELECT count(*) FROM contract_document") == [(0,)]
    done = cli.instep(tmp_path, *load, "--execute")
    assert done.returncode == 0, done.stderr
    assert run_sql(target, "SELECT count(*) FROM contract_document") == [(DOCUMENTS,)]

    # The pipeline applied what the archive lost: a delete could be among it.
    proven = cli.instep(tmp_path, "reconcile", "--archive", "history")
    assert (proven.returncode, "lost before they were archived" in proven.stderr) == (1, True)
    run_sql(target, "DELETE FROM contract_document")
    for partition, end in ends.items():
        run_sql(
            target, f"UPDATE instep_ledger SET next_offset = {end} WHERE partition = {partition}"
        )
    refused = cli.instep(tmp_path, *replay, "--execute")
    assert (refused.returncode, "OFFSETS_EXPIRED" in refused.stderr) == (3, True)
    assert run_sql(target, "SELECT count(*) FROM contract_document") == [(0,)]
    refused = cli.instep(tmp_path, *load, "--execute")
    assert (refused.returncode, "OFFSETS_EXPIRED" in refused.stderr) == (3, True)
    accepted = cli.instep(tmp_path, *replay, "--skip-lost", "--execute")
    assert (accepted.returncode, "replaying without lost" in accepted.stderr) == (0, True)
    assert run_sql(target, "SELECT count(*) FROM contract_document") == [(DOCUMENTS,)]

    lost = DRY_RUN in cli.instep(tmp_path, "archive", "skip", "history").stderr
    skipped = cli.reported(tmp_path, "archive", "skip", "history", "--execute")["skipped"]
    assert lost
    assert sum(end - start for start, end in skipped.values()) == DOCUMENTS
    shown = cli.instep(tmp_path, "reconcile", "--archive", "history")
    assert (shown.returncode, "skipped: partition" in shown.stderr) == (0, True)

    files = cli.reported(tmp_path, "archive", "compact", "history", "--execute")
    [one] = cli.reported(tmp_path, "status", "history")["archives"]
    assert one["records"] == DOCUMENTS
    assert one["files"] == files["files"] - files["joined"] + bool(files["joined"])


def test_a_load_does_not_read_the_folder_of_an_archive(tmp_path: Path) -> None:
    text = cli.settings_text(bootstrap="127.0.0.1:1", topic="print-status")
    settings = tmp_path / "instep.toml"
    settings.write_text(text + ARCHIVE.format(topic="print-status"), encoding="utf-8")
    for folder in ("archive", "other"):
        (tmp_path / folder / "_delta_log").mkdir(parents=True)

    for source in ("history", "archive", str(tmp_path / "archive")):
        problem = cli.refused(tmp_path, "load", "contracts", "--from", source)
        assert "instep load contracts --from archive:history" in problem
    problem = cli.refused(tmp_path, "load", "contracts", "--from", "other")
    assert "is a Delta table" in problem
    assert "--from archive:NAME" in problem
    for option in (("--rate", "5"), ("--key", "id"), ("--restart",)):
        problem = cli.refused(tmp_path, "load", "contracts", "--from", "archive:history", *option)
        assert "an archive has its own order" in problem
    problem = cli.refused(
        tmp_path, "load", "contracts", "--from", "archive:history", "--no-reconcile"
    )
    assert "a load from an archive makes no comparison" in problem
    problem = cli.refused(tmp_path, "load", "contracts", "--from", "x.csv", "--skip-lost")
    assert "--skip-lost is for --from archive:NAME" in problem


def test_a_vacuum_that_never_happens_needs_its_hours(tmp_path: Path) -> None:
    text = cli.settings_text(bootstrap="127.0.0.1:1", topic="print-status")
    never = ARCHIVE.format(topic="print-status") + "vacuum_after_hours = 0\n"
    (tmp_path / "instep.toml").write_text(text + never, encoding="utf-8")
    archives.created(tmp_path / "archive")
    half = tmp_path / "archive" / "half.parquet"
    half.write_bytes(b"half")

    problem = cli.refused(tmp_path, "archive", "vacuum", "history", "--execute")
    assert "vacuum_after_hours is 0: files are never removed" in problem
    kept = cli.reported(tmp_path, "archive", "vacuum", "history", "--hours", "168", "--execute")
    assert (kept["files"], half.exists()) == ([], True)
    gone = cli.reported(tmp_path, "archive", "vacuum", "history", "--hours", "0", "--execute")
    assert (gone["files"], half.exists()) == (["half.parquet"], False)


def test_an_archive_that_never_ran_has_no_table(tmp_path: Path, broker: LocalCluster) -> None:
    prepare(tmp_path, broker.bootstrap)

    problem = cli.refused(tmp_path, "archive", "compact", "history")
    assert "has no table" in problem
    [one] = cli.reported(tmp_path, "status", "history")["archives"]
    assert (one["records"], one["error"]) == (None, None)
