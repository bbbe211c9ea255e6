"""Test the URLs of a bridge: which templates are refused, and that an id stays one value."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instep import bridge_urls, errors

PATH = "https://print.example:8443/api/{document}/status"
QUERY = "https://print.example/api?full=1&id={document}&x=y"
HOSTILE = (
    "..a/b..",
    "a?b#c",
    "%2e%2e",
    "ü/日本",
    "a\r\nX-Evil: 1",
    "a&x=z",
    "@evil.example",
    "//h",
)


@pytest.mark.parametrize("document", HOSTILE)
def test_a_hostile_id_stays_one_segment(document: str) -> None:
    parts = urlsplit(bridge_urls.document_url(PATH, document))
    assert (parts.netloc, parts.query, parts.fragment) == ("print.example:8443", "", "")
    assert [unquote(one) for one in parts.path.split("/")] == ["", "api", document, "status"]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_id_stays_one_value_of_the_query(document: str) -> None:
    parts = urlsplit(bridge_urls.document_url(QUERY, document))
    assert parts.path == "/api"
    assert parse_qsl(parts.query, strict_parsing=True) == [
        ("full", "1"),
        ("id", document),
        ("x", "y"),
    ]


@pytest.mark.parametrize("document", [".", ".."])
def test_an_id_that_a_server_would_resolve_is_refused(document: str) -> None:
    with pytest.raises(bridge_urls.Unescapable, match="cannot contain the id"):
        bridge_urls.document_url("https://h/documents/{document}", document)
    assert bridge_urls.document_url("https://h/{document}.json", document).endswith(".json")


@pytest.mark.parametrize("template", [PATH, "https://h/v{document}", "https://h/{document}.json"])
@pytest.mark.parametrize(
    "document", ["/../admin", "a/../../admin", "a/./b", "a\\..\\admin", "a/../", "/..\\x"]
)
def test_an_id_that_a_server_would_resolve_once_it_is_decoded_is_refused(
    template: str, document: str
) -> None:
    with pytest.raises(bridge_urls.Unescapable, match="cannot contain the id"):
        bridge_urls.document_url(template, document)
    assert bridge_urls.document_url(QUERY, document).startswith("https://print.example/api?")


def test_an_id_that_begins_with_the_folder_above_is_refused() -> None:
    with pytest.raises(bridge_urls.Unescapable, match="cannot contain the id"):
        bridge_urls.document_url(PATH, "../admin")


def test_an_id_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(bridge_urls.Unescapable):
        bridge_urls.document_url(PATH, "\udcff")


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("https://h/status", "does not name the document"),
        ("https://{document}.example/", "outside of its path"),
        ("{document}://h/", "not an http or https URL"),
        ("https://h\\evil/{document}", "not an http or https URL"),
        ("https://h:{document}/", "outside of its path"),
        ("https://h/a#{document}", "outside of its path"),
        ("https://h/{document}/{tenant}", "'{tenant}'"),
        ("ftp://h/{document}", "not an http or https URL"),
        ("/documents/{document}", "not an http or https URL"),
        ("https://h/a b/{document}", "not an http or https URL"),
        ("https://user:hush@h/{document}", "contains a login"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(template: str, problem: str) -> None:
    with pytest.raises(errors.SettingsError) as refused:
        bridge_urls.check_template(template, "bridges.print.url")
    assert problem in refused.value.what
    assert "hush" not in str(refused.value)


def test_origins_compare_scheme_host_and_port() -> None:
    one = bridge_urls.origin("HTTPS://Print.Example/a")
    assert one == bridge_urls.origin("https://print.example:443/b")
    assert one != bridge_urls.origin("http://print.example:443/b")
    assert one != bridge_urls.origin("https://print.example.evil/b")
    assert str(bridge_urls.origin("http://[::1]:8080/")) == "http://[::1]:8080"


def test_a_parameter_replaces_its_earlier_value() -> None:
    assert (
        bridge_urls.with_parameter("https://h/a?size=5&page=1#x", "page", "2&size=9")
        == "https://h/a?size=5&page=2%26size%3D9"
    )
