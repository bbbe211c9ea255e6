"""What a user sees of a run: text is never markup, nothing is loaded from outside, and nothing is missing."""

from __future__ import annotations

import html.parser
import itertools
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep.report import markup, plots, scales, web_page
from instep.report.tables import Plot, PlotKind, ReportTable, Series
from instep_lab import store
from instep_lab.claim import Claim, ClaimResult, Tier
from instep_lab.report import __main__ as maintaining
from instep_lab.report import contents, markdown, page
from instep_lab.report.contents import LabReport
from instep_lab.verdict import ClaimVerdict, Judgement, PartOutcome, Role, VerdictPart
from tests.lab import labs

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=y>&amp;`]]>\x1b[31m\x00\r\n\u202e\ud800|*_[a](b)</style></title>"
KNOWN = {id_: labs.claim_of(id_) for id_ in ("probe-1", "probe-2", "probe-3")}


@pytest.fixture
def report(tmp_path: Path) -> LabReport:
    return contents.gather(labs.a_run(tmp_path), KNOWN)


def evil_report() -> LabReport:
    """Return a run with hostile text in every field."""
    result = ClaimResult(
        claim=EVIL,
        tier=Tier.QUICK,
        seed=1,
        judgement=Judgement(ClaimVerdict.DEPENDS, EVIL),
        parts=[VerdictPart(Role.STATEMENT, EVIL, PartOutcome.PASS, EVIL)],
        tables=[ReportTable(EVIL, [EVIL, EVIL], [[EVIL, 1], [None, 2.5, EVIL]])],
        plots=[
            Plot(
                EVIL,
                EVIL,
                EVIL,
                [Series(EVIL, [(EVIL, 1.0)]), Series(EVIL + "2", [(EVIL, None)])],
                kind=kind,
            )
            for kind in PlotKind
        ],
        command=EVIL,
        begun_at=EVIL,
    )
    claim = Claim(EVIL, EVIL, EVIL, EVIL, (EVIL,), 1, True, None, lambda _trial: None)
    run = store.LabRun(
        id=EVIL,
        tier=Tier.QUICK,
        seed=1,
        claims=[EVIL],
        command=EVIL,
        begun_at=EVIL,
        machine={EVIL: EVIL},
        releases={EVIL + "2": EVIL},
        cluster=EVIL,
    )
    settings = {EVIL.replace("\ud800", ""): {"acks": [EVIL.replace("\ud800", "")]}}
    return LabReport(run, (contents.Section(EVIL, claim, result, settings, ({EVIL: EVIL},)),))


class Seen(html.parser.HTMLParser):
    """The elements and attributes that a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


ELEMENTS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "header",
        "nav",
        "section",
        "h1",
        "h2",
        "h3",
        "p",
        "dl",
        "dt",
        "dd",
    ),
    *(
        "div",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "a",
        "span",
        "strong",
        "code",
        "pre",
        "figure",
        "details",
    ),
    *("summary", "svg", "g", "path", "rect", "text"),
}


def self_contained(text: str) -> Seen:
    seen = Seen(text)
    assert seen.open == []
    assert set(seen.tags) <= ELEMENTS
    for name, value in seen.attributes:
        assert not name.startswith("on"), name
        assert name not in ("src", "style", "srcset", "xlink:href")
        assert name != "href" or value.startswith("#")
    assert "url(" not in text
    assert "@import" not in text
    assert re.findall(r"https?://", text) == ["http://"] * text.count(
        'xmlns="http://www.w3.org/2000/svg"'
    )
    return seen


def test_the_page_has_all_of_the_run(report: LabReport) -> None:
    seen = self_contained(page.render(report))
    text = " ".join(seen.text)
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
    anchors = {value for name, value in seen.attributes if name == "id"}
    assert {value[1:] for name, value in seen.attributes if name == "href"} == anchors
    assert seen.tags.count("svg") == 3
    assert [value for name, value in seen.attributes if name == "role"] == ["img"] * 3


def test_the_page_forbids_all_but_its_own_style(report: LabReport) -> None:
    seen = Seen(page.render(report))
    [policy] = [value for _, value in seen.attributes if value.startswith("default-src")]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert seen.tags.count("style") == 1


def test_hostile_text_stays_text() -> None:
    text = page.render(evil_report())
    seen = self_contained(text)
    assert "script" not in seen.tags
    assert "img" not in seen.tags
    assert not any(one in text for one in "\x1b\x00\r\u202e\ud800")
    assert "<script>alert(1)</script>" in "".join(seen.text)


def test_hostile_text_stays_text_in_markdown() -> None:
    files = markdown.pages(evil_report())
    text = files.pop("claims.md")
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
        ET.fromstring(drawn)


def test_the_same_run_gives_the_same_page_for_the_docs(tmp_path: Path) -> None:
    run = labs.a_run(tmp_path / "runs")
    for folder in ("one", "two"):
        (tmp_path / folder / "plots").mkdir(parents=True)
        (tmp_path / folder / "plots" / "gone-1.svg").write_text("of an older run", encoding="utf-8")
        assert maintaining.main([str(run), str(tmp_path / folder)]) == ""
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
    ]
    text = files[Path("claims.md")].decode()
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert (tmp_path / "one" / link).exists(), link
    for words in (
        "## probe-1: right",
        "## probe-2: INCONCLUSIVE",
        "## probe-3: not run",
        "| all | 20,000 | 0 |",
    ):
        assert words in text


def test_the_maintainers_entry_says_what_is_wrong(
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


def test_a_claim_that_this_release_does_not_know_is_shown(tmp_path: Path) -> None:
    report = contents.gather(labs.a_run(tmp_path), {})
    assert contents.GONE in page.render(report)
    assert contents.GONE in markdown.pages(report)["claims.md"]


def test_a_report_knows_its_own_kind(report: LabReport, tmp_path: Path) -> None:
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
    st.text(max_size=8), st.integers(-(10**18), 10**18), st.floats(), st.none(), st.just(EVIL)
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


@given(plots_of_any_kind)
def test_any_plot_is_well_formed_and_within_its_frame(plot: Plot) -> None:
    root = ET.fromstring(plots.standalone(plot))
    assert root.attrib["role"] == "img"
    assert root[0].tag.endswith("title")
    for one in root.iter():
        for name in ("x", "y", "width", "height"):
            if name in one.attrib:
                assert -50 <= float(one.attrib[name]) <= 2000, (one.tag, one.attrib)
        assert not re.search(r"\b(nan|inf)\b", one.attrib.get("d", ""))


@pytest.mark.parametrize("kind", PlotKind)
@pytest.mark.parametrize(
    "series", [[], [Series("a", [])], [Series("a", [(1, None)])], [Series("a", [(1, math.nan)])]]
)
def test_a_plot_without_values_says_so(kind: PlotKind, series: list[Series]) -> None:
    assert "no values" in plots.draw(Plot("t", "x", "y", series, kind=kind))


def test_what_could_not_be_had_is_a_gap() -> None:
    drawn = plots.draw(
        Plot(
            "t",
            "x",
            "y",
            [Series("a", [(1, 1.0), (2, 2.0), (3, None), (4, 1.0)])],
            kind=PlotKind.LINES,
        )
    )
    assert len(re.findall(r'class="line"', drawn)) == 2
    assert len(re.findall(r'class="mark', drawn)) == 3
    bars = plots.draw(labs.LOST)
    assert "lost, acks=1: unknown" in bars
    assert len(re.findall(r"<rect[^>]*mark", bars)) == 2


@pytest.mark.parametrize("kind", [PlotKind.BARS, PlotKind.LINES])
def test_a_spread_is_drawn_labelled_and_tabulated(kind: PlotKind) -> None:
    plot = Plot("t", "x", "y", [Series("a", [(1, 10.0), (2, 20.0)], [(5.0, 30.0)])], kind=kind)
    drawn = plots.draw(plot)
    [spread] = re.findall(r'class="spread" d="M[\d.]+ ([\d.]+)V([\d.]+)M', drawn)
    assert float(spread[0]) > float(spread[1])
    assert "10 (5 to 30)" in drawn
    assert ">30</text>" in drawn
    table = plots.tabulated(plot)
    assert table.columns == ["x", "a", "a, lowest", "a, highest"]
    assert table.rows == [["1", 10.0, 5.0, 30.0], ["2", 20.0, None, None]]


def test_zero_has_its_place_on_a_logarithmic_axis() -> None:
    scale = scales.logarithmic([0, 1, 1000])
    assert scale.ticks[0] == scales.Tick(0.0, "0")
    assert [tick.text for tick in scale.ticks[1:]] == ["1", "10", "100", "1,000"]
    places = [scale.place(value) for value in (0, 1, 10, 1000)]
    assert places == sorted(places, key=lambda place: place or 0)
    assert places[1] == scales.ZERO_BAND
    assert scale.place(-1) is None
    assert scales.logarithmic([0, 0]).place(0) == 0.0
    assert scales.logarithmic([1, 10]).place(0.0) == 0.0


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0, 7], ["0", "2", "4", "6", "8"]),
        ([0.3], ["0", "0.1", "0.2", "0.3"]),
        ([-5, 5], ["-6", "-4", "-2", "0", "2", "4", "6"]),
        ([48_000], ["0", "10k", "20k", "30k", "40k", "50k"]),
        ([0, 0], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([2_400_000], ["0", "500k", "1M", "1.5M", "2M", "2.5M"]),
    ],
)
def test_ticks_are_round(values: list[float], texts: list[str]) -> None:
    assert [tick.text for tick in scales.linear(values).ticks] == texts


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
def test_figures(value: float | None, text: str) -> None:
    assert markup.figure(value) == text


def test_code_in_sentences() -> None:
    assert markup.prose("use `acks=<all>` & wait") == "use <code>acks=&lt;all&gt;</code> &amp; wait"
    assert markup.prose("one ` alone") == "one ` alone"
    assert markup.markdown("use `a|b` or a|b_c, _d_") == r"use `a\|b` or a\|b_c, \_d\_"


def test_attributes_keep_to_their_quotes() -> None:
    assert (
        markup.element("p", title="\"'><x y=1>") == '<p title="&quot;&#x27;&gt;&lt;x y=1&gt;"></p>'
    )
