"""Where the ids come from: a file, a query, or the pages of a list endpoint.

Each source yields pages: ids, and the place of the page that follows. A listing of a list endpoint
continues there after an interruption; a file and a query are read from the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import msgspec

from instep import bridge_urls, errors, settings
from instep.bridge import extraction
from instep.bridge.failures import FailureCode, PollFailed
from instep.bridge.http_client import Answer, HttpClient, headers_for, linked
from instep.document import event
from instep.sinks import source_query

PAGE_IDS = 5_000


class IdPage(msgspec.Struct, frozen=True):
    """Ids, how many entries were no ids, and the place of the next page; None at the end."""

    ids: list[str]
    refused: list[str]
    next_page: str | None = None


class IdSource(Protocol):
    """Yields the ids of all documents, in pages."""

    is_resumable: bool

    def pages(self, page: str | None) -> AsyncGenerator[IdPage]:
        """Yield the pages, from this place on."""


def open_source(name: str, bridge: settings.Bridge, client: HttpClient) -> IdSource:
    """Return the source of ids that the settings declare."""
    if bridge.ids_list is not None:
        return ListSource(bridge.ids_list, headers_for(bridge, bridge.ids_list.url), client)
    return RowsSource(name, bridge)


def id_page(values: list[Any], next_page: str | None = None) -> IdPage:
    """Return a page; a value that no record's key can be is refused, not an error."""
    ids, refused = [], []
    for value in values:
        document = extraction.document_id(value)
        try:
            event.key(document or "")
        except ValueError as error:
            refused.append(f"{str(value)[:100]!r}: {error}")
        else:
            ids.append(document or "")
    return IdPage(ids, refused, next_page)


class RowsSource:
    """The lines of a file, or the rows of a query, read in a thread."""

    is_resumable = False

    def __init__(self, name: str, bridge: settings.Bridge) -> None:
        self._place = f"bridges.{name}"
        self._bridge = bridge

    async def pages(self, _page: str | None) -> AsyncGenerator[IdPage]:
        """Yield the ids in pages."""
        rows = self._lines() if self._bridge.ids_file else self._query()
        loop = asyncio.get_running_loop()
        # One thread for all steps: a connection to SQLite belongs to the thread that opened it.
        with ThreadPoolExecutor(1, "instep-ids") as thread:
            try:
                while values := await loop.run_in_executor(thread, _some, rows):
                    yield id_page(values)
            finally:
                thread.submit(rows.close)

    def _lines(self) -> Generator[Any]:
        file = self._bridge.ids_file or ""
        try:
            with Path(file).open(encoding="utf-8-sig") as lines:
                for line in lines:
                    if text := line.strip():
                        yield text
        except (OSError, UnicodeDecodeError) as error:
            problem: str | None = "it is not UTF-8"
            if isinstance(error, OSError):
                problem = error.strerror
            raise errors.SettingsError(
                f"{self._place}.ids_file: {file} cannot be read: {problem}",
                "name a UTF-8 file that this user can read, with one id per line",
            ) from error

    def _query(self) -> Generator[Any]:
        bridge = self._bridge
        try:
            with contextlib.closing(
                source_query.rows(bridge.ids_url or "", bridge.ids_query or "")
            ) as rows:
                yield from map(_only_value, rows)
        except errors.Unreachable as error:
            raise type(error)(
                f"{self._place}.ids_url: {error.what}", "start the database, or correct ids_url"
            ) from error
        except (errors.SettingsError, errors.NamedStop, errors.RowRefused) as error:
            raise errors.SettingsError(
                f"{self._place}.ids_query: {error.what}",
                "correct ids_query and ids_url; the query returns the ids in one column",
            ) from error


def _only_value(row: dict[str, Any]) -> Any:
    if len(row) != 1:
        raise errors.SettingsError(f"the query returns {len(row)} columns", "select only the ids")
    return next(iter(row.values()))


def _some(rows: Iterator[Any]) -> list[Any]:
    found = []
    for value in rows:
        found.append(value)
        if len(found) == PAGE_IDS:
            break
    return found


class ListSource:
    """The pages of a list endpoint."""

    is_resumable = True

    def __init__(
        self, listed: settings.IdsList, headers: dict[str, str], client: HttpClient
    ) -> None:
        self._listed = listed
        self._headers = headers
        self._client = client
        self._origin = bridge_urls.origin(listed.url)

    async def pages(self, page: str | None) -> AsyncGenerator[IdPage]:
        """Yield the pages. `page` is the number of one, or its URL."""
        place = self._first()
        if page is not None and self._is_place(page):
            place = page
        while True:
            answer = await self._client.get(self._url(place), self._headers)
            is_first = place == self._first()
            if answer.code in (404, 410) and self._listed.page_parameter and not is_first:
                return  # some servers have no empty page behind the last one
            if answer.code != 200:
                raise PollFailed(
                    FailureCode.UNEXPECTED, f"the list of ids answers HTTP {answer.code}"
                )
            tree = answer.json()
            values = self._values(tree)
            following = self._next(tree, values, place, answer)
            yield id_page(values, following)
            if following is None:
                return
            place = following

    def _is_place(self, page: str) -> bool:
        """Return whether a stored place belongs to this list: the settings may have changed."""
        if self._listed.page_parameter:
            return page.isascii() and page.isdigit()
        try:
            return bridge_urls.origin(page) == self._origin
        except ValueError:
            return False

    def _first(self) -> str:
        if self._listed.page_parameter:
            return str(self._listed.first_page)
        return self._listed.url

    def _url(self, place: str) -> str:
        if self._listed.page_parameter:
            return bridge_urls.with_parameter(self._listed.url, self._listed.page_parameter, place)
        return place

    def _values(self, tree: Any) -> list[Any]:
        items, where = tree, "is not a list"
        if self._listed.items is not None:
            items = extraction.find(tree, self._listed.items)
            where = f"has no list at {self._listed.items!r}, the path `items`"
        if not isinstance(items, list):
            raise PollFailed(FailureCode.ANSWER_NOT_JSON, f"a page of the list of ids {where}")
        return [
            extraction.find(item, self._listed.id) if isinstance(item, dict) else item
            for item in items
        ]

    def _next(self, tree: Any, values: list[Any], place: str, answer: Answer) -> str | None:
        listed = self._listed
        if listed.page_parameter:
            if not values:
                return None
            return str(int(place) + 1)
        if listed.next is None:
            return None
        following = answer.next_link
        if listed.next != settings.LINK_HEADER:
            following = extraction.find(tree, listed.next)
        if following in (None, extraction.MISSING, "", False):
            return None
        if listed.next_parameter:
            value = extraction.document_id(following)
            if value is None:
                raise PollFailed(
                    FailureCode.ANSWER_NOT_JSON,
                    f"a page has neither text nor a number at {listed.next!r}",
                )
            return bridge_urls.with_parameter(listed.url, listed.next_parameter, value)
        if not isinstance(following, str):
            raise PollFailed(FailureCode.ANSWER_NOT_JSON, f"a page has no link at {listed.next!r}")
        return linked(answer.url, following)
