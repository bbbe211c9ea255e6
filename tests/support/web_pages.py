"""Checks that an HTML page loads nothing, runs nothing and shows hostile text as text."""

from __future__ import annotations

import base64
import html.parser
import xml.etree.ElementTree as ET

HOSTILE = (
    "<script>alert(1)</script>\"'><img src=x onerror=y>&amp;`]]>\x1b[31m\x00\r\n"
    "\u202e\ud800|*_[a](b)"
    "</style></title>"
)
PICTURE = "data:image/svg+xml;base64,"
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
    *("summary", "img"),
}


class ParsedPage(html.parser.HTMLParser):
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
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def self_contained(text: str) -> ParsedPage:
    parsed = ParsedPage(text)
    assert parsed.open == []
    assert set(parsed.tags) <= ELEMENTS
    for name, value in parsed.attributes:
        assert not name.startswith("on"), name
        assert name not in ("style", "srcset", "xlink:href")
        assert name != "src" or value.startswith(PICTURE)
        assert name != "href" or value.startswith("#")
    assert "url(" not in text
    assert "@import" not in text
    assert "://" not in text
    for drawing in pictures(parsed):
        harmless_drawing(drawing)
    return parsed


def pictures(parsed: ParsedPage) -> list[str]:
    """Return the embedded SVG documents."""
    sources = [value for name, value in parsed.attributes if name == "src"]
    return [base64.b64decode(one.removeprefix(PICTURE)).decode() for one in sources]


def harmless_drawing(text: str) -> ET.Element:
    """Check that an SVG document is well-formed, loads nothing and runs nothing."""
    root = ET.fromstring(text)
    for one in root.iter():
        assert one.tag.rpartition("}")[2] not in ("script", "image", "foreignObject", "a")
        for name, value in one.attrib.items():
            assert not name.startswith("on"), name
            assert not name.endswith("href") or value.startswith("#"), value
            assert "url(" not in value.replace("url(#", "")
    return root
