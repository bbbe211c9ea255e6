"""URLs of a bridge: the template of a document's URL, its escaping, and what one origin is.

An id is escaped as one path segment or one query value. It can therefore reach no other path, add
no parameter, and change no host.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from instep import errors

DOCUMENT = "{document}"
SCHEMES = {"http": 80, "https": 443}
EXAMPLE = "https://print.example/api/documents/{document}/status"
_BRACES = re.compile(r"\{[^{}]*\}|[{}]")
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")


class Unescapable(ValueError):
    """No URL of the template can name this id."""


class Origin(NamedTuple):
    """Scheme, host and port: what a redirect or a link must not leave."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == SCHEMES[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"


def origin(url: str) -> Origin:
    """Return the origin of an http or https URL; raise ValueError for any other text."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ValueError("not an http or https URL")
    return Origin(parts.scheme, parts.hostname.rstrip("."), parts.port or SCHEMES[parts.scheme])


def check(url: str, place: str) -> None:
    """Refuse a text that is not the URL of a server."""
    try:
        origin(url)
        is_url = not _UNSAFE.search(url)
    except ValueError:
        is_url = False
    if not is_url:
        raise errors.SettingsError(
            f"{place} is not an http or https URL", f'write e.g. "{EXAMPLE}"'
        )
    if "@" in urlsplit(url).netloc:
        raise errors.SettingsError(
            f"{place} contains a login",
            'write it as a header: [….headers], Authorization = "Basic ${PRINT_LOGIN}"',
        )


def check_template(template: str, place: str) -> None:
    """Refuse a template that does not name the document, or not where it can be escaped."""
    others = [found for found in _BRACES.findall(template) if found != DOCUMENT]
    if others:
        raise errors.SettingsError(
            f"{place} contains {others[0]!r}", f"the only placeholder is {DOCUMENT}"
        )
    if DOCUMENT not in template:
        raise errors.SettingsError(
            f"{place} does not name the document", f'write {DOCUMENT}, as in "{EXAMPLE}"'
        )
    try:
        parts = urlsplit(template)
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if DOCUMENT in f"{parts.scheme}{parts.netloc}" or DOCUMENT in parts.fragment:
        raise errors.SettingsError(
            f"{place} has {DOCUMENT} outside of its path and its query",
            f'an id may only be in the path or the query, as in "{EXAMPLE}"',
        )
    check(template.replace(DOCUMENT, "1"), place)


def document_url(template: str, document: str) -> str:
    """Return the URL of a document; raise Unescapable if it would name another path."""
    try:
        escaped = quote(document, safe="")
    except UnicodeEncodeError:
        raise Unescapable("the id is not valid Unicode") from None
    parts = urlsplit(template)
    segments = []
    for segment in parts.path.split("/"):
        filled = segment.replace(DOCUMENT, escaped)
        # Servers and proxies resolve these, escaped or not: they would ask for another path. Some
        # do so after they have decoded the slashes within an id.
        decoded = set(re.split(r"[/\\]", unquote(filled)))
        if filled != segment and decoded & {".", ".."}:
            raise Unescapable(f"a URL's path cannot contain the id {document!r}")
        segments.append(filled)
    query = parts.query.replace(DOCUMENT, escaped)
    return urlunsplit(parts._replace(path="/".join(segments), query=query))


def with_parameter(url: str, name: str, value: str) -> str:
    """Return the URL with this query parameter, in place of an earlier value."""
    parts = urlsplit(url)
    escaped = quote(name, safe="")
    kept = [one for one in parts.query.split("&") if one and one.partition("=")[0] != escaped]
    query = "&".join([*kept, f"{escaped}={quote(value, safe='')}"])
    return urlunsplit(parts._replace(query=query, fragment=""))
