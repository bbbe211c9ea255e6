"""Test the page that compares runs with different seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from instep import errors
from instep_lab import store
from instep_lab.report import seed_page
from instep_lab.verdict import ClaimVerdict, PartOutcome, Role, VerdictPart
from tests.lab import labs

DOCS = Path(__file__).parents[2] / "docs" / "lab"
INDEX = "# Kafka lab\n\n- A page.\n<!-- seeds: begin -->\n<!-- seeds: end -->\n\nMore.\n"
PASS, FAIL, OPEN = PartOutcome.PASS, PartOutcome.FAIL, PartOutcome.INCONCLUSIVE


def a_run(kept: Path, seed: int, outcomes: Mapping[str, PartOutcome], **changed: object) -> Path:
    """Write a complete run of these claims."""
    request = msgspec.structs.replace(
        labs.run_of(*outcomes, id_=f"20261101T0800{seed:02}-quick-{seed}"),
        **{"seed": seed, "commit": "abc", **changed},
    )
    run = store.begin(kept, request)
    for claim, outcome in outcomes.items():
        parts = [
            VerdictPart(Role.STATEMENT, "it *is* so", outcome, "seen"),
            VerdictPart(Role.STATEMENT, "and so", FAIL, "seen"),
        ]
        result = msgspec.structs.replace(labs.result_of(claim, parts), commit="abc")
        store.write_result(run, result)
    return run


def test_the_page_lists_what_differs_and_what_that_number_of_runs_excludes(tmp_path: Path) -> None:
    runs = [
        a_run(tmp_path, seed, {"order-1": PASS if seed < 4 else OPEN, "order-2": PASS})
        for seed in (4, 1, 3, 2)
    ]
    text = seed_page.page(seed_page.gather(runs))
    assert "4 runs of 2 claims" in text
    assert "**1 claim had the same verdict in every run, 1 had not.**" in text
    assert "4 runs are few" in text
    assert "in up to 53 % of runs" in text
    assert (
        "| [order-1](claims.md#claim-order-1) | order-1 | depends on the setting with seeds 1 to 3;"
        " INCONCLUSIVE with seed 4 |"
    ) in text
    assert (
        "| [order-1](claims.md#claim-order-1) | statement: it \\*is\\* so | PASS with seeds 1 to 3;"
        " INCONCLUSIVE with seed 4 |"
    ) in text
    assert "| 4 | `20261101T080004-quick-4` | 2026-11-01T08:00:00Z | 0.1 | 1 | 1 |" in text
    assert (
        "| [order-2](claims.md#claim-order-2) | order-2 | depends on the setting | 4 of 4 |" in text
    )


def test_a_part_that_differs_without_changing_the_verdict_is_listed(tmp_path: Path) -> None:
    limit = VerdictPart(Role.LIMIT, "not then", PASS, "seen")
    runs = []
    for seed, outcome in ((1, PASS), (2, PASS), (4, FAIL)):
        run = a_run(tmp_path, seed, {"order-1": PASS})
        parts = [
            VerdictPart(Role.STATEMENT, "it is so", PASS, "seen"),
            VerdictPart(Role.STATEMENT, "sometimes", outcome, "seen"),
            limit,
        ]
        result = labs.result_of("order-1", parts)
        store.write_result(run, msgspec.structs.replace(result, commit="abc"))
        runs.append(run)
    text = seed_page.page(seed_page.gather(runs))
    assert "No verdict." in text
    assert "Parts that differed without changing the verdict:" in text
    assert "| statement: sometimes | PASS with seeds 1, 2; FAIL with seed 4 |" in text


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    first = a_run(tmp_path, 1, {"order-1": PASS})

    def refused(run: Path) -> str:
        with pytest.raises(errors.InstepError, match="cannot be compared") as caught:
            seed_page.gather([first, run])
        return caught.value.what

    again = a_run(tmp_path / "again", 1, {"order-1": PASS})
    assert "two runs have seed 1" in refused(again)
    other = a_run(tmp_path, 2, {"order-1": PASS}, commit="def")
    assert "another commit, tier or claims" in refused(other)
    changed = a_run(tmp_path, 3, {"order-1": PASS}, commit="abc with local changes")
    assert "with local changes" in refused(changed)
    remote = a_run(tmp_path, 4, {"order-1": PASS}, cluster="broker:9092")
    assert "the lab did not start" in refused(remote)
    open_ = a_run(tmp_path, 5, {"order-1": PASS})
    store.write_result(open_, msgspec.structs.replace(labs.unfinished("order-1"), commit="abc"))
    assert "has not ended order-1" in refused(open_)
    mixed = a_run(tmp_path, 6, {"order-1": PASS})
    store.write_result(mixed, msgspec.structs.replace(labs.result_of("order-1"), commit="def"))
    assert "claims of another commit" in refused(mixed)
    with pytest.raises(errors.InstepError, match="at least 2"):
        seed_page.gather([first])


def test_the_page_is_linked_and_can_be_written_again_from_what_is_stored(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "runs", seed, {"order-1": PASS}) for seed in (1, 2, 3)]
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "index.md").write_text(INDEX, encoding="utf-8")
    assert seed_page.main([str(folder), *map(str, runs[:2])]) == ""
    assert seed_page.main([str(folder), *map(str, runs)]) == ""
    index = (folder / "index.md").read_text(encoding="utf-8")
    assert index.count("(seeds.md)") == 1
    assert "in 3 runs" in index
    assert re.search(
        r"^- A page\.\n<!-- .* -->\n- \[Other seeds\].*\n<!-- .* -->\n\nMore\.", index, re.M
    )
    written = (folder / "seeds.md").read_text(encoding="utf-8")
    (folder / "seeds.md").unlink()
    assert seed_page.main([str(folder)]) == ""
    assert (folder / "seeds.md").read_text(encoding="utf-8") == written
    (folder / "index.md").write_text("# No place for a link", encoding="utf-8")
    assert "seeds: begin" in seed_page.main([str(folder)])


def test_the_published_page_is_that_of_its_runs_or_does_not_exist() -> None:
    """Write it again with: python -m instep_lab.report.seed_page docs/lab."""
    index = (DOCS / seed_page.INDEX).read_text(encoding="utf-8")
    stored = DOCS / seed_page.STORED
    if not stored.exists():
        assert not (DOCS / seed_page.PAGE).exists()
        assert "(seeds.md)" not in index
        return
    results = msgspec.json.decode(stored.read_bytes(), type=seed_page.SeedResults)
    assert (DOCS / seed_page.PAGE).read_text(encoding="utf-8") == seed_page.page(results)
    assert index == seed_page.write_index(index, results)
    known = {verdict.value for verdict in ClaimVerdict}
    assert all(known >= one.verdicts.keys() for one in results.claims)
