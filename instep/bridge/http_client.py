"""Requests to the source: bounded in time and size, and never to another origin.

Redirects are followed only within scheme, host and port of the URL that the settings name, so that
no header reaches another server.
"""

from __future__ import annotations

import asyncio
import email.utils
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx
import msgspec

import instep
from instep import bridge_urls, errors, settings
from instep.bridge.failures import FailureCode, PollFailed
from instep.bridge.pacing import PAUSE_S, Pacer
from instep.bridge.progress import PollCounts
from instep.document.event import utc

REDIRECTS = (301, 302, 303, 307, 308)
REDIRECTS_MAX = 5
RETRY_AFTER_MAX_S = 300.0
VALIDATOR = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,1023}")
# A change in the same second does not change Last-Modified. Also, the clocks that write the two
# headers may differ (RFC 9110, 8.8.2.2).
MODIFIED_BEFORE_S = 60.0
COMPRESSED = ("gzip", "x-gzip", "deflate")
ANY_COMPRESSION = 47  # of zlib: gzip or zlib, by the data's own header


class Validators(msgspec.Struct, frozen=True):
    """What a source sent to recognise an answer that has not changed since."""

    etag: str | None = None
    modified: str | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers of a conditional request."""
        found = {"If-None-Match": self.etag, "If-Modified-Since": self.modified}
        return {name: value for name, value in found.items() if value is not None}


NONE = Validators()


class Answer(msgspec.Struct, frozen=True):
    """The source's answer: its status code, its body, and what its headers say."""

    code: int
    body: bytes
    url: str
    validators: Validators = NONE
    next_link: str | None = None

    def json(self) -> Any:
        """Return the body as a JSON value."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise PollFailed(
                FailureCode.ANSWER_NOT_JSON, f"the answer is not JSON ({error})"
            ) from error


class HttpClient:
    """Sends requests to the servers that the settings name."""

    def __init__(self, bridge: settings.Bridge, pacer: Pacer, counts: PollCounts) -> None:
        self._timeout_s = bridge.timeout_s
        self._bytes_max = bridge.body_bytes_max
        self._pacer = pacer
        self._counts = counts
        self._client = httpx.AsyncClient(
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "gzip",
                "User-Agent": f"instep/{instep.__version__}",
            },
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # keep none
            verify=_trust(bridge),
            timeout=bridge.timeout_s,
            limits=httpx.Limits(
                max_connections=bridge.concurrency + 1,
                max_keepalive_connections=bridge.concurrency + 1,
            ),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def get(
        self, url: str, headers: Mapping[str, str], validators: Validators = NONE
    ) -> Answer:
        """Request a URL, and follow redirects within its origin."""
        sent = {**headers, **validators.headers()}
        for _ in range(REDIRECTS_MAX + 1):
            started = await self._pacer.slot()
            self._counts.requests += 1
            try:
                answer, location = await self._one(url, sent)
            except PollFailed as failure:
                self._pace(failure, started)
                raise
            self._pacer.succeeded()
            if location is None:
                return answer
            url = linked(url, location)
        raise PollFailed(
            FailureCode.REDIRECT_REFUSED, f"the source redirects more than {REDIRECTS_MAX} times"
        )

    def _pace(self, failure: PollFailed, started: float) -> None:
        if failure.retry_after_s is not None:
            self._pacer.pause(failure.retry_after_s)
        if failure.is_retried:
            self._pacer.failed(started)
        else:
            self._pacer.succeeded()

    async def _one(self, url: str, headers: Mapping[str, str]) -> tuple[Answer, str | None]:
        try:
            # httpx limits each read only: a server that sends a byte now and then would never end.
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream("GET", url, headers=dict(headers)) as response,
            ):
                if response.status_code in REDIRECTS:
                    return Answer(response.status_code, b"", url), response.headers.get(
                        "location", ""
                    )
                _refuse_failure(response)
                body = await self._body(response)
                return _answer(response, body, url), None
        except (TimeoutError, httpx.TimeoutException) as error:
            raise PollFailed(
                FailureCode.TIMEOUT, f"no complete answer within {self._timeout_s:g} s"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise PollFailed(
                FailureCode.UNREACHABLE,
                f"{bridge_urls.origin(url)} does not answer correctly"
                f" ({type(error).__name__}: {' '.join(str(error).split())[:200] or 'no details'})",
            ) from error

    async def _body(self, response: httpx.Response) -> bytes:
        parts, size = [], 0
        async for part in _decompressed(response, self._bytes_max + 1):
            size += len(part)
            if size > self._bytes_max:
                raise PollFailed(
                    FailureCode.BODY_TOO_LARGE,
                    f"the answer has more than {self._bytes_max:,} bytes",
                )
            parts.append(part)
        return b"".join(parts)


def linked(url: str, location: str) -> str:
    """Return the address that a redirect or a link names; raise if it is on another server."""
    # httpx reads both addresses, as it does for a request: two parsers may see different hosts.
    here = httpx.URL(url)
    try:
        there = here.join(location)
    except (httpx.InvalidURL, ValueError):
        raise PollFailed(
            FailureCode.REDIRECT_REFUSED, "the source names an address that is not a URL"
        ) from None
    # The new address may contain a secret, so only its origin is shown.
    if _server(there) != _server(here) or there.userinfo:
        scheme, host, port = _server(there)
        raise PollFailed(
            FailureCode.REDIRECT_REFUSED,
            f"{here.scheme}://{here.netloc.decode()} redirects to"
            f" {scheme}://{host.decode()}:{port}, which is a different server: no request was sent"
            " there",
        )
    return str(there.copy_with(fragment=None))


def _server(url: httpx.URL) -> tuple[str, bytes, int | None]:
    return url.scheme, url.raw_host, url.port or bridge_urls.SCHEMES.get(url.scheme)


def retry_after(value: str | None, now: datetime) -> float | None:
    """Return the seconds of a header Retry-After, within limits; None if it says nothing."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), RETRY_AFTER_MAX_S)
    try:
        at = utc(email.utils.parsedate_to_datetime(text))
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max((at - now).total_seconds(), 0.0), RETRY_AFTER_MAX_S)


def _refuse_failure(response: httpx.Response) -> None:
    code = response.status_code
    if 200 <= code < 300 or code in (304, 404, 410):
        return
    text = f"the source answers HTTP {code}"
    wait_s = retry_after(response.headers.get("retry-after"), datetime.now(UTC))
    if code in (408, 425, 429):
        if code == 429 and wait_s is None:
            wait_s = PAUSE_S
        raise PollFailed(FailureCode.BUSY, text, retry_after_s=wait_s)
    if code >= 500:
        raise PollFailed(FailureCode.SERVER_ERROR, text, retry_after_s=wait_s)
    if code in (401, 407):
        raise PollFailed(FailureCode.LOGIN_REFUSED, text)
    if code == 403:
        raise PollFailed(FailureCode.FORBIDDEN, text)
    raise PollFailed(FailureCode.UNEXPECTED, text)


def _answer(response: httpx.Response, body: bytes, url: str) -> Answer:
    try:
        link = response.links.get("next", {}).get("url")
    except ValueError:
        link = None
    validators = Validators(_validator(response.headers.get("etag")), _modified(response.headers))
    return Answer(response.status_code, body, url, validators, link)


def _validator(value: str | None) -> str | None:
    """Return a validator that can be sent back; None for any other."""
    if value is not None and VALIDATOR.fullmatch(value):
        return value
    return None


def _modified(headers: httpx.Headers) -> str | None:
    """Return Last-Modified if the document was surely not changed again before the answer."""
    value = _validator(headers.get("last-modified"))
    if value is None:
        return None
    try:
        modified, at = (
            utc(email.utils.parsedate_to_datetime(text)) for text in (value, headers["date"])
        )
    except (KeyError, ValueError, TypeError, OverflowError):
        return None
    return value if (at - modified).total_seconds() >= MODIFIED_BEFORE_S else None


async def _decompressed(response: httpx.Response, limit: int) -> AsyncIterator[bytes]:
    """Yield the body. A small part of a compressed one may be huge: take no more than `limit`."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "", *COMPRESSED):
        raise PollFailed(
            FailureCode.ANSWER_NOT_JSON, f"the answer has the encoding {coding[:40]!r}"
        )
    decompressor = zlib.decompressobj(ANY_COMPRESSION) if coding in COMPRESSED else None
    async for part in response.aiter_raw():
        if decompressor is None:
            yield part
            continue
        try:
            yield decompressor.decompress(part, limit)
        except zlib.error as error:
            raise PollFailed(
                FailureCode.ANSWER_NOT_JSON, "the compressed answer is damaged"
            ) from error
        if decompressor.unconsumed_tail:
            yield bytes(limit)  # there is more than the limit allows
    if decompressor is not None and not decompressor.eof and response.status_code == 200:
        raise PollFailed(FailureCode.ANSWER_NOT_JSON, "the compressed answer ends too early")


def _trust(bridge: settings.Bridge) -> ssl.SSLContext | bool:
    if bridge.ca is None:
        urls = [bridge.url]
        if bridge.ids_list:
            urls.append(bridge.ids_list.url)
        # Loading the usual authorities takes a while, and plain HTTP needs none.
        return any(map(_is_encrypted, urls)) or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return ssl.create_default_context(cafile=bridge.ca)
    except (OSError, ssl.SSLError) as error:
        raise errors.SettingsError(
            f"{bridge.ca} cannot be used as `ca` ({error.strerror or error})",
            "name a PEM file with the authority's certificate",
        ) from error


def _is_encrypted(url: str) -> bool:
    return url.lower().startswith("https:")


def headers_for(bridge: settings.Bridge, url: str) -> dict[str, str]:
    """Return the headers for the list endpoint: its own, or the bridge's on the same server."""
    listed = bridge.ids_list
    if listed is not None and listed.headers:
        return listed.headers
    if bridge_urls.origin(url) == bridge_urls.origin(bridge.url.replace("{document}", "1")):
        return bridge.headers
    return {}
