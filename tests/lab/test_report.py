"""Test a run's report: complete, no text becomes markup, and nothing is loaded from elsewhere."""

from __future__ import annotations

import itertools
import math
import random
import re
import sys
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instep import errors
from instep.report import files, markup, plots, web_page
from instep.report.tables import Cell, Plot, PlotKind, ReportTable, Series
from instep_lab import source_tree, store
from instep_lab.claim import AnomalyExample, Claim, ClaimResult, ClaimTexts, Tier
from instep_lab.report import __main__ as maintaining
from instep_lab.report import archive, contents, markdown, page
from instep_lab.report.contents import LabReport
from instep_lab.verdict import ClaimVerdict, Judgement, PartOutcome, Role, VerdictPart
from tests.lab import labs
from tests.support.web_pages import HOSTILE, ParsedPage, harmless_drawing, pictures, self_contained

KNOWN = {id_: labs.claim_of(id_) for id_ in ("probe-1", "probe-2", "probe-3")}


@pytest.fixture
def report(tmp_path: Path) -> LabReport:
    return contents.gather(labs.a_run(tmp_path), KNOWN)


def hostile_report() -> LabReport:
    """Return a run with hostile text in every field."""
    result = ClaimResult(
        claim=HOSTILE,
        tier=Tier.QUICK,
        seed=1,
        judgement=Judgement(ClaimVerdict.DEPENDS_ON_SETTING, HOSTILE),
        parts=[VerdictPart(Role.STATEMENT, HOSTILE, PartOutcome.PASS, HOSTILE)],
        tables=[ReportTable(HOSTILE, [HOSTILE, HOSTILE], [[HOSTILE, 1], [None, 2.5, HOSTILE]])],
        plots=[
            Plot(
                HOSTILE,
                HOSTILE,
                HOSTILE,
                [Series(HOSTILE, [(HOSTILE, 1.0)]), Series(HOSTILE + "2", [(HOSTILE, None)])],
                kind=kind,
            )
            for kind in PlotKind
        ],
        examples=[AnomalyExample(HOSTILE, [HOSTILE])],
        command=HOSTILE,
        begun_at=HOSTILE,
    )
    texts = ClaimTexts(
        statement=HOSTILE,
        method=HOSTILE,
        advice=HOSTILE,
        why=HOSTILE,
        scope=HOSTILE,
        sources=(HOSTILE,),
        rules=(HOSTILE,),
    )
    claim = Claim(HOSTILE, texts, 1, True, None, lambda _trial: None)
    run = store.LabRun(
        id=HOSTILE,
        tier=Tier.QUICK,
        seed=1,
        claims=[HOSTILE],
        command=HOSTILE,
        begun_at=HOSTILE,
        commit=HOSTILE,
        machine={HOSTILE: HOSTILE},
        releases={HOSTILE + "2": HOSTILE},
        cluster=HOSTILE,
    )
    settings_ = {HOSTILE.replace("\ud800", ""): {"acks": [HOSTILE.replace("\ud800", "")]}}
    brokers = {1: {HOSTILE: store.BrokerSetting(HOSTILE, HOSTILE)}}
    section = contents.Section(HOSTILE, claim, result, settings_, ({HOSTILE: HOSTILE},))
    return LabReport(run, (section,), brokers, 1_000)


def words_of(text: str) -> list[str]:
    """Return the texts of an SVG document."""
    return [one.text or "" for one in ET.fromstring(text).iter() if one.tag.endswith("}text")]


def test_the_page_shows_the_whole_run(report: LabReport) -> None:
    parsed = self_contained(page.render(report))
    text = " ".join(parsed.text)
    for words in (
        *(
            "probe-1",
            "probe-2",
            "probe-3",
            "acks=all loses no records",
            "0 of 20,000 lost",
            "20,000",
            "unknown",
            "not run",
            "kill -9",
        ),
        *(
            "TOPIC_SINGLE_REPLICA",
            "instep lab run probe-1 --seed 7",
            "linger.ms",
            "4711",
            "4.3.1",
            "quick",
            labs.ID,
            "did not end",
        ),
    ):
        assert words in text, words
    anchors = {value for name, value in parsed.attributes if name == "id"}
    inner = {value[1:] for name, value in parsed.attributes if name == "href" and value[0] == "#"}
    assert inner == anchors
    assert len(pictures(parsed)) == 3
    assert "Lost records: records by acks" in [v for name, v in parsed.attributes if name == "alt"]


def test_the_page_forbids_everything_but_its_own_style(report: LabReport) -> None:
    parsed = ParsedPage(page.render(report))
    [policy] = [value for _, value in parsed.attributes if value.startswith("default-src")]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert parsed.tags.count("style") == 1


def test_hostile_text_stays_text() -> None:
    text = page.render(hostile_report())
    parsed = self_contained(text)
    assert "script" not in parsed.tags
    assert len(pictures(parsed)) == parsed.tags.count("img") == len(PlotKind)
    assert not any(one in text for one in "\x1b\x00\r\u202e\ud800")
    assert "<script>alert(1)</script>" in "".join(parsed.text)


def test_hostile_text_stays_text_in_markdown() -> None:
    files = markdown.pages(hostile_report())
    text = files.pop("claims.md")
    assert "probe" not in files.pop("statements.md")
    outside = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    outside = re.sub(r"(?<![`\\])(`+)(?!`).*?(?<!`)\1(?!`)", "", outside)
    assert "<script" not in outside
    assert "<img" not in outside
    assert "[a](b)" not in outside
    assert not any(one in text for one in "\x1b\x00\r\u202e\ud800")
    lines = text.splitlines()
    for before, line in itertools.pairwise(lines):
        if line.startswith("| --- "):
            assert len(re.findall(r"(?<!\\)\|", before)) == line.count("|")
    assert len(files) == len(PlotKind)
    for name, drawn in files.items():
        assert re.fullmatch(r"plots/[\w.=+-]+-\d\.svg", name)
        harmless_drawing(drawn)


def test_the_same_run_gives_the_same_page_for_the_docs(tmp_path: Path) -> None:
    run = labs.a_run(tmp_path / "runs")
    for folder in ("one", "two"):
        (tmp_path / folder / "plots").mkdir(parents=True)
        (tmp_path / folder / "plots" / "gone-1.svg").write_text("of an older run", encoding="utf-8")
        assert maintaining.main([str(run), str(tmp_path / folder), "--draft"]) == ""
    files = {
        file.relative_to(tmp_path / "one"): file.read_bytes()
        for file in (tmp_path / "one").rglob("*.*")
    }
    assert files == {
        file.relative_to(tmp_path / "two"): file.read_bytes()
        for file in (tmp_path / "two").rglob("*.*")
    }
    assert sorted(map(str, files)) == [
        "claims.md",
        "plots/probe-1-1.svg",
        "plots/probe-1-2.svg",
        "plots/probe-1-3.svg",
        "run.tar.xz",
        "statements.md",
    ]
    text = files[Path("claims.md")].decode()
    links = set(re.findall(r"\]\(([^)#]+)[^)]*\)", text)) - {"index.md"}
    assert {link for link in links if not (tmp_path / "one" / link).exists()} == set()
    assert "no statement rests on more than a few kills" in text
    for words in (
        "### probe-1: right",
        "### probe-2: INCONCLUSIVE",
        "### probe-3: not run",
        "| all | 20,000 | 0 |",
    ):
        assert words in text


COMMIT = "0" * 40


def publishable(into: Path, **changed: Any) -> Path:
    """Write a complete run at one commit, with what is given changed in the run or a result."""
    request = msgspec.structs.replace(labs.run_of("probe-1", "probe-2"), commit=COMMIT)
    result_changes = {
        key: changed.pop(key) for key in ("ended", "commit_of_result") if key in changed
    }
    run = store.begin(into, msgspec.structs.replace(request, **changed))
    for id_ in ("probe-1", "probe-2"):
        result = labs.result_of(id_, ended=result_changes.get("ended", True))
        commit = result_changes.get("commit_of_result", COMMIT) if id_ == "probe-2" else COMMIT
        store.write_result(run, msgspec.structs.replace(result, commit=commit))
    return run


@pytest.mark.parametrize(
    ("changed", "known", "reason"),
    [
        ({}, ("probe-1", "probe-2"), ""),
        ({"commit": None}, ("probe-1", "probe-2"), "its commit is not known"),
        ({"commit": f"{COMMIT} with local changes"}, ("probe-1", "probe-2"), "commit first"),
        ({"ended": False}, ("probe-1", "probe-2"), "probe-1 has not ended"),
        ({"commit_of_result": "1" * 40}, ("probe-1", "probe-2"), "probe-2 ran at commit 111"),
        ({}, ("probe-1", "probe-2", "probe-3"), "it does not have probe-3"),
        ({}, ("probe-1",), "this release does not have probe-2"),
    ],
)
def test_the_docs_take_only_a_complete_run_at_one_commit(
    tmp_path: Path, changed: dict[str, Any], known: tuple[str, ...], reason: str
) -> None:
    report = contents.gather(publishable(tmp_path, **changed), KNOWN)
    refusal = maintaining.unpublishable(report, list(known))
    assert reason in refusal
    assert bool(reason) == bool(refusal)


def test_a_refused_run_changes_nothing(tmp_path: Path) -> None:
    page_ = tmp_path / "docs" / "claims.md"
    page_.parent.mkdir()
    page_.write_text("of an older run", encoding="utf-8")
    refusal = maintaining.main([str(labs.a_run(tmp_path)), str(page_.parent)])
    assert "cannot be published" in refusal
    assert [file.name for file in page_.parent.iterdir()] == ["claims.md"]
    assert page_.read_text(encoding="utf-8") == "of an older run"


def test_the_archive_gives_the_same_pages_as_the_run(tmp_path: Path) -> None:
    run = labs.a_run(tmp_path / "runs")
    history = run / "probe-1" / "history-acks.jsonl"
    history.write_text("".join(f'{{"n":{n}}}\n' for n in range(5_000)), encoding="utf-8")
    (run / "made.jsonl").write_text("{}\n", encoding="utf-8")
    one, two = tmp_path / "one", tmp_path / "two"
    assert maintaining.main([str(run), str(one), "--draft"]) == ""
    assert maintaining.main([str(one / archive.NAME), str(two), "--draft"]) == ""
    for file in one.rglob("*.*"):
        assert file.read_bytes() == (two / file.relative_to(one)).read_bytes()
    unpacked, kept = archive.unpack(one / archive.NAME, tmp_path / "unpacked")
    assert unpacked.name == labs.ID
    assert kept == 1_000
    assert "at most the first 1,000 operations" in (one / "claims.md").read_text(encoding="utf-8")
    assert (unpacked / "probe-1" / history.name).read_bytes().count(b"\n") == kept
    assert not (unpacked / "made.jsonl").exists()


def test_the_archive_keeps_fewer_operations_to_stay_small(tmp_path: Path) -> None:
    run = labs.a_run(tmp_path)
    noise = random.Random(1)
    lines = [f'{{"value":"{noise.getrandbits(400):x}"}}\n' for _ in range(2_000)]
    (run / "probe-1" / "history-a.jsonl").write_text("".join(lines), encoding="utf-8")
    assert archive.pack(run)[1] == 1_000
    packed, kept = archive.pack(run, 20_000)
    assert kept == 300
    assert len(packed) <= 20_000
    with pytest.raises(errors.InstepError, match="without its histories"):
        archive.pack(run, 100)


def test_what_is_no_archive_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "run.tar.xz"
    file.write_bytes(b"no archive")
    assert "cannot be unpacked" in maintaining.main([str(file), str(tmp_path / "docs")])
    with tarfile.open(file, "w:xz"):
        pass
    assert "is not the archive of a lab run" in maintaining.main([str(file), str(tmp_path)])


def test_an_anomaly_is_shown_with_the_operations_around_it(tmp_path: Path) -> None:
    run = labs.a_run(tmp_path)
    operations = [
        "0.1 s  instep-lab-0a1b2c3d-probe-1-group-4/member  work  ok  k3#1  partition 0",
        "0.2 s  instep-lab-0a1b2c3d-probe-1-group-4/member  work  ok  k3#10  partition 0",
    ]
    example = AnomalyExample("inverted: k3#1 (by record)", operations)
    result = msgspec.structs.replace(labs.result_of("probe-1"), examples=[example])
    store.write_result(run, result)
    report = contents.gather(run, KNOWN)
    marked = [
        ">0.1 s  group-4/member  work  ok  k3#1  partition 0",
        " 0.2 s  group-4/member  work  ok  k3#10  partition 0",
    ]
    assert contents.example_lines(example) == marked
    assert "\n".join(f"    {line}" for line in marked) in markdown.pages(report)["claims.md"]
    assert marked[0] in "".join(ParsedPage(page.render(report)).text)


def test_the_page_names_the_tree_of_the_source(tmp_path: Path) -> None:
    run = labs.a_run(tmp_path)
    assert "tree of" not in markdown.pages(contents.gather(run, KNOWN))["claims.md"]
    files_ = {"trial.py": "0" * 40}
    files.write(run / store.RUN_FILE, msgspec.structs.replace(store.read_run(run), files=files_))
    report = contents.gather(run, KNOWN)
    tree = source_tree.tree(files_)
    text = markdown.pages(report)["claims.md"]
    assert f"| tree of instep_lab | `{tree}` |" in text
    assert "git rev-parse COMMIT:instep_lab" in text
    assert tree in "".join(ParsedPage(page.render(report)).text)


def test_broker_settings_are_shown_with_their_defaults(tmp_path: Path) -> None:
    run = labs.a_run(tmp_path)
    both, three = store.BrokerSetting("3000", "9000"), store.BrokerSetting("2", "1")
    store.write_brokers(run, 1, {"broker.session.timeout.ms": both})
    store.write_brokers(run, 3, {"broker.session.timeout.ms": both, "min.insync.replicas": three})
    text = markdown.pages(contents.gather(run, KNOWN))["claims.md"]
    assert "| `broker.session.timeout.ms` | `3000` | `9000` | 1 broker, 3 brokers |" in text
    assert "| `min.insync.replicas` | `2` | `1` | 3 brokers |" in text


def test_client_settings_are_listed_once_for_all_clients_that_share_them() -> None:
    publisher = {"type": "publish", "library": "Java", "config": {"acks": "1"}, "mode": "callback"}
    consumer = {"type": "consume", "library": "librdkafka", "config": {}, "commit": "async"}
    stored = {f"round {number}": [publisher, consumer, publisher] for number in range(6)}
    section = contents.Section("probe-1", None, None, stored, ())
    scenarios = "round 0, round 1, round 2, round 3 and 2 others"
    assert contents.client_settings(section) == [
        contents.ClientSettings(scenarios, "Java publisher", "acks=1"),
        contents.ClientSettings(scenarios, "librdkafka consumer", "commit: async"),
    ]


def test_the_producers_of_a_measurement_are_listed_one_by_one() -> None:
    variants = [
        {"name": "fast", "count": 9, "config": {"linger.ms": 0}, "mode": "callback"},
        {"name": "slow", "count": 9, "config": {"linger.ms": 5}, "mode": "wait"},
    ]
    measuring = {"type": "measure", "library": "Java", "variants": variants, "rounds": 3}
    section = contents.Section("probe-1", None, None, {"measured, Java": [measuring]}, ())
    assert contents.client_settings(section) == [
        contents.ClientSettings("fast", "Java publisher", "linger.ms=0"),
        contents.ClientSettings("slow", "Java publisher", "linger.ms=5, mode: wait"),
    ]


def test_sources_are_linked_and_unknown_ones_only_named(tmp_path: Path) -> None:
    run = labs.a_run(tmp_path)
    texts = ClaimTexts(
        statement="s", method="m", advice="a", why="Because.", sources=("KIP-98", "KIP-0")
    )
    store.write_result(run, msgspec.structs.replace(labs.result_of("probe-1"), texts=texts))
    report = contents.gather(run, KNOWN)
    address = "https://cwiki.apache.org/confluence/display/KAFKA/KIP-98+-+Exactly+Once"
    assert f"**Why.** Because. Sources: [KIP-98]({address}" in markdown.pages(report)["claims.md"]
    hrefs = [value for name, value in ParsedPage(page.render(report)).attributes if name == "href"]
    assert any(value.startswith(address) for value in hrefs)
    assert "KIP-0" in markdown.pages(report)["claims.md"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("short", "short"),
        (f"{'a' * 100}; {'b' * 100}", f"{'a' * 100}; …"),
        ("c" * 200, f"{'c' * 149}…"),
    ],
)
def test_a_reason_fits_on_a_line(text: str, line: str) -> None:
    assert contents.one_line(text) == line


def test_the_maintainers_program_reports_wrong_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSTEP_HOME", str(tmp_path))
    assert "usage" in maintaining.main([])
    assert "no lab runs" in maintaining.main(["nowhere", str(tmp_path)])


def test_rules_are_linked_in_the_docs(report: LabReport) -> None:
    assert (
        "[TOPIC_SINGLE_REPLICA](../rules/TOPIC_SINGLE_REPLICA.md)"
        in markdown.pages(report)["claims.md"]
    )


def test_a_claim_that_this_version_does_not_know_is_shown(tmp_path: Path) -> None:
    report = contents.gather(labs.a_run(tmp_path), {})
    assert contents.NO_LONGER_KNOWN in page.render(report)
    assert contents.NO_LONGER_KNOWN in markdown.pages(report)["claims.md"]


def test_a_report_is_recognised_as_such(report: LabReport, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    web_page.write(page.render(report), file)
    assert web_page.is_one("lab", file)
    assert not web_page.is_one("bench", file)
    assert not list(tmp_path.glob(".*"))
    file.write_text("<html>mine</html>", encoding="utf-8")
    assert not web_page.is_one("lab", file)
    assert not web_page.is_one("lab", tmp_path)


numbers = st.one_of(
    st.none(),
    st.just(0.0),
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(0, 1e6),
    st.integers(-5, 10**9).map(float),
)
cells = st.one_of(
    st.text(max_size=8), st.integers(-(10**18), 10**18), st.floats(), st.none(), st.just(HOSTILE)
)
plots_of_any_kind = st.builds(
    Plot,
    title=st.text(max_size=9),
    x=st.text(max_size=9),
    y=st.text(max_size=9),
    series=st.lists(
        st.builds(
            Series,
            name=st.text(max_size=9),
            points=st.lists(st.tuples(cells, numbers), max_size=7),
            spread=st.lists(st.none() | st.tuples(st.floats(), st.floats(0, 1e6)), max_size=9),
        ),
        max_size=4,
    ),
    kind=st.sampled_from(PlotKind),
    log_x=st.booleans(),
    log_y=st.booleans(),
)


@settings(deadline=None, max_examples=25)
@given(plots_of_any_kind)
def test_any_plot_is_well_formed(plot: Plot) -> None:
    drawn = plots.svg(plot)
    root = harmless_drawing(drawn)
    assert root[0].tag.endswith("title")
    for one in root.iter():
        assert not re.search(r"\b(nan|inf)\b", one.attrib.get("d", ""))


def test_the_same_plot_gives_the_same_bytes() -> None:
    for plot in (labs.LOST, labs.SEEK, labs.GRID):
        assert plots.svg(plot) == plots.svg(plot)


@pytest.mark.parametrize("kind", PlotKind)
@pytest.mark.parametrize(
    "series", [[], [Series("a", [])], [Series("a", [(1, None)])], [Series("a", [(1, math.nan)])]]
)
def test_a_plot_without_values_says_so(kind: PlotKind, series: list[Series]) -> None:
    assert "no values" in words_of(plots.svg(Plot("t", "x", "y", series, kind=kind)))


def test_an_unknown_value_is_a_gap_or_a_question_mark() -> None:
    points: list[tuple[Cell, float | None]] = [(1, 1.0), (2, 2.0), (3, None), (4, 1.0)]
    [axes] = plots.draw(Plot("t", "x", "y", [Series("a", points)], kind=PlotKind.LINES)).axes
    heights = [float(y) for y in axes.lines[0].get_ydata()]  # type: ignore[arg-type, union-attr]
    assert [math.isnan(y) for y in heights] == [False, False, True, False]
    assert words_of(plots.svg(labs.LOST)).count("?") == 1


@pytest.mark.parametrize("kind", [PlotKind.BARS, PlotKind.LINES])
def test_a_spread_is_drawn_and_tabulated(kind: PlotKind) -> None:
    plot = Plot("t", "x", "y", [Series("a", [(1, 10.0), (2, 20.0)], [(5.0, 30.0)])], kind=kind)
    [axes] = plots.draw(plot).axes
    ends = [segment for one in axes.collections for segment in one.get_segments()]  # type: ignore[attr-defined]
    assert [[float(y) for _, y in segment] for segment in ends] == [[5.0, 30.0], [20.0, 20.0]]
    table = plots.tabulated(plot)
    assert table.columns == ["x", "a", "a, lowest", "a, highest"]
    assert table.rows == [["1", 10.0, 5.0, 30.0], ["2", 20.0, None, None]]


def test_zero_can_be_shown_on_a_logarithmic_axis() -> None:
    plot = Plot("t", "x", "y", [Series("a", [("p", 0.0), ("q", 1.0), ("r", 1e6)])], log_y=True)
    [axes] = plots.draw(plot).axes
    places = [axes.transData.transform((0, y))[1] for y in (0, 1, 1e6)]
    assert places == sorted(places)
    assert all(map(math.isfinite, places))


def test_dollar_signs_are_not_formulas() -> None:
    words = words_of(plots.svg(Plot("a $x^2$ b", "$", "y", [Series("s", [("q", 1.0)])])))
    assert {"a $x^2$ b", "$"} <= {*words}


@pytest.mark.parametrize(("module", "part"), [("jinja2", "Jinja2"), ("matplotlib", "matplotlib")])
def test_a_missing_library_is_named_with_its_command(
    report: LabReport, monkeypatch: pytest.MonkeyPatch, module: str, part: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(errors.MissingPart, match=f"{part} is not installed") as raised:
        page.render(report)
    assert "'jinja2>=3.1' 'matplotlib>=3.10'" in str(raised.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (math.nan, "unknown"),
        (0, "0"),
        (20_000, "20,000"),
        (1234.5, "1,234"),
        (0.12345, "0.123"),
        (1e-9, "1.00e-09"),
    ],
)
def test_figures_are_formatted(value: float | None, text: str) -> None:
    assert markup.figure(value) == text


def test_code_in_sentences_is_marked_up() -> None:
    assert markup.markdown("use `a|b` or a|b_c, _d_") == r"use `a\|b` or a\|b_c, \_d\_"
    assert markup.prose_parts("one ` alone") == [("one ` alone", False)]
    assert markup.prose_parts("use `this`") == [("use ", False), ("this", True), ("", False)]
