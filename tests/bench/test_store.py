"""Test that results are stored whole, without secrets, and found by id, path or as the latest."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from instep import errors
from instep.report.tables import Plot, ReportTable
from instep_bench import charts, store
from tests.bench import examples


def test_a_stored_result_is_read_unchanged(tmp_path: Path) -> None:
    files = [store.keep(examples.result(), tmp_path) for _ in range(3)]
    assert store.results(tmp_path) == files
    assert all(file.stem.endswith("-apply") for file in files)
    assert store.read(files[0]) == examples.result()
    assert store.find(tmp_path, "latest") == files[-1]
    assert store.find(tmp_path, files[1].stem) == files[1]
    assert store.find(tmp_path / "elsewhere", str(files[0])) == files[0]


@pytest.mark.parametrize("named", ["latest", "gone", "", "x" * 300, "\x00"])
def test_a_missing_result_is_reported(tmp_path: Path, named: str) -> None:
    with pytest.raises(
        errors.SettingsError, match=r"there (is no result|are no benchmark results)"
    ):
        store.find(tmp_path, named)
    if named != "latest":
        store.keep(examples.result(), tmp_path)
        with pytest.raises(errors.SettingsError, match="there is no result") as refused:
            store.find(tmp_path, named)
        assert "-apply" in refused.value.remedy


@pytest.mark.parametrize("text", ["", "{", "[]", '{"bench": "apply"}', "\xff", "no values"])
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    if text == "no values":
        text = msgspec.json.encode(examples.result(examples.memory([]))).decode()
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(errors.SettingsError, match="cannot be read"):
        store.read(file)


def test_no_password_is_stored(tmp_path: Path) -> None:
    url = "postgresql://me:se:cr@et@db.example/x?sslpassword=secret&a=b"
    given = examples.result(
        examples.speed([1.0], target=url), command=f"instep bench apply --target {url}", target=url
    )
    given = msgspec.structs.replace(
        given,
        notes=[f"on {url}, twice"],
        tables=[ReportTable(url, [url], [[url]])],
        releases={url: "17"},
    )
    kept = store.keep(given, tmp_path)
    text = kept.read_text(encoding="utf-8")
    assert "cr" not in text.replace("described", "")
    assert "secret" not in text
    assert (
        store.read(kept).options["target"] == "postgresql://me:***@db.example/x?sslpassword=***&a=b"
    )


def test_values_that_are_not_finite_are_left_out_and_noted(tmp_path: Path) -> None:
    plot = charts.bars("t", [examples.speed([1.0, math.inf], target="a")], x="target")
    given = examples.result(
        examples.speed([1.0, math.nan, 3.0], target="a"), examples.memory([math.inf])
    )
    given = msgspec.structs.replace(
        given, tables=[ReportTable("t", ["x"], [[math.nan, True]])], plots=[plot]
    )
    found = store.read(store.keep(given, tmp_path))
    assert [(one.name, one.values) for one in found.figures] == [("throughput", [1.0, 3.0])]
    assert "some rounds gave no finite number: throughput a, peak memory" in found.notes
    assert found.tables[0].rows == [[None, "yes"]]
    assert isinstance(found.plots[0], Plot)
    assert found.plots[0].series[0].spread == [None]
