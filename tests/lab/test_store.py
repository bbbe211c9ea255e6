"""Test folders of runs: killed runs are marked, damage is named, and a run can be resumed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from instep import errors
from instep_lab import store
from instep_lab.claim import Tier
from instep_lab.verdict import ClaimVerdict
from tests.lab import labs


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = labs.a_run(tmp_path)
    assert store.read_run(run) == labs.run_of("probe-1", "probe-2", "probe-3")
    written = labs.result_of(
        "probe-1", tables=[labs.COUNTS], plots=[labs.LOST, labs.SEEK, labs.GRID]
    )
    assert store.read_results(run)["probe-1"] == written
    assert store.read_settings(run / "probe-1") == {"acks=all": {"acks": "all", "linger.ms": 5}}
    assert not list(run.rglob("*.new"))


def test_a_killed_claim_is_inconclusive_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    run = labs.a_run(tmp_path)
    results = store.read_results(run)
    assert list(results) == ["probe-1", "probe-2"]
    assert (results["probe-2"].verdict, results["probe-2"].ended) == (
        ClaimVerdict.INCONCLUSIVE,
        False,
    )
    assert store.remaining(store.read_run(run).claims, results) == ["probe-2", "probe-3"]
    store.write_result(run, labs.result_of("probe-2"))
    assert store.remaining(store.read_run(run).claims, store.read_results(run)) == ["probe-3"]


def test_results_are_in_the_order_of_the_run(tmp_path: Path) -> None:
    run = store.begin(tmp_path, labs.run_of("b-1", "a-1"))
    for claim in ("a-1", "b-1"):
        store.write_result(run, labs.result_of(claim))
    assert list(store.read_results(run)) == ["b-1", "a-1"]


def test_a_timeline_ends_before_an_incomplete_line(tmp_path: Path) -> None:
    run = labs.a_run(tmp_path)
    assert store.read_timeline(run / "probe-1") == [{"at_s": 1.5, "fault": "kill -9", "pid": 4711}]
    assert store.read_timeline(run / "probe-3") == []
    assert store.read_settings(run / "probe-3") == {}


DAMAGE = [
    b"",
    b"{",
    b"[]",
    b'{"id": 1}',
    b"\xff\xfe",
    b'"\xff"',
    b'{"id": "\xff"}',
    b"[" * 100_000,
    b"\x00" * 64,
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: repr(damage[:12]))
@pytest.mark.parametrize("name", ["run.json", "probe-1/verdict.json", "probe-1/settings.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage: bytes) -> None:
    run = labs.a_run(tmp_path)
    (run / name).write_bytes(
        damage if name != "probe-1/settings.json" or damage != b'{"id": 1}' else b'{"id": 1'
    )
    with pytest.raises(errors.InstepError, match=r"cannot be read") as raised:
        store.read_settings(run / "probe-1") if "settings" in name else store.read_results(run)
    assert str(run / name) in raised.value.what
    assert raised.value.remedy == "the run was changed: run it again"


@pytest.mark.parametrize("damage", [b"\xff\n", b"[]\n", b"{\n"])
def test_a_damaged_timeline_is_named(tmp_path: Path, damage: bytes) -> None:
    run = labs.a_run(tmp_path)
    (run / "probe-1" / "timeline.jsonl").write_bytes(damage)
    with pytest.raises(errors.InstepError, match=r"timeline\.jsonl cannot be read"):
        store.read_timeline(run / "probe-1")


def test_a_run_is_found_by_id_by_path_or_as_the_newest(tmp_path: Path) -> None:
    with pytest.raises(errors.SettingsError, match="no lab runs"):
        store.find(tmp_path, None)
    old, new = (
        labs.a_run(tmp_path, "20261101T080000-quick-7"),
        labs.a_run(tmp_path, "20261102T080000-full-7"),
    )
    (tmp_path / "not-a-run").mkdir()
    assert store.runs(tmp_path) == [old, new]
    assert store.find(tmp_path, None) == new
    assert store.find(tmp_path, old.name) == old
    assert store.find(tmp_path / "elsewhere", str(old)) == old
    for unknown in ("20261103T080000-quick-7", "not-a-run", "..", "x" * 5000):
        with pytest.raises(errors.SettingsError, match="no run") as raised:
            store.find(tmp_path, unknown)
        assert new.name in raised.value.remedy


def test_a_run_begins_once(tmp_path: Path) -> None:
    labs.a_run(tmp_path)
    with pytest.raises(errors.InstepError):
        store.begin(tmp_path, labs.run_of())


def test_ids_sort_by_time() -> None:
    at = datetime(2026, 11, 1, 8, tzinfo=UTC)
    assert store.new_id(Tier.QUICK, 7, at) == labs.ID
    assert store.new_id(Tier.FULL, 1, at.replace(hour=9)) > labs.ID


def test_releases_of_servers_are_added_to_a_run(tmp_path: Path) -> None:
    store.add_releases(tmp_path, {"Redis": "7.2"})
    assert list(tmp_path.iterdir()) == []
    run = labs.a_run(tmp_path)
    store.add_releases(run, {"Redis": "7.2"})
    assert store.read_run(run).releases == {"kafka": "4.3.1", "Redis": "7.2"}


def test_created_resources_are_recorded(tmp_path: Path) -> None:
    run = labs.a_run(tmp_path)
    assert store.read_created(run) == []
    created = [store.CreatedResource("topic", "lab-1"), store.CreatedResource("group", "lab-g")]
    for one in created:
        store.record_created(run, one)
    with (run / "made.jsonl").open("ab") as stream:
        stream.write(b'{"kind": "to')
    assert store.read_created(run) == created


@pytest.mark.parametrize("text", ["acks=all, 3 brokers", "../../etc", "a/b\x00c", "ü"])
def test_a_file_name_stays_within_its_folder(text: str, tmp_path: Path) -> None:
    assert (tmp_path / f"history-{store.file_name(text)}.jsonl").resolve().parent == tmp_path


def test_a_folder_that_cannot_be_created_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSTEP_HOME", str(tmp_path))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "lab").write_text("in the way", encoding="utf-8")
    with pytest.raises(errors.InstepError, match="INSTEP_HOME"):
        store.folder()
