"""Server-sent events: parts of a page, sent again when what they show has changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from starlette.responses import Response, StreamingResponse

from instep import errors
from instep.console import rendering
from instep.console.requests import PageRequest

TICK_S = 1.0
PING_S = 10.0  # browsers take a longer silence for a lost connection
RETRY_MS = 2_000
# A proxy that checks who the user is sees a request only when it begins: let it see another one.
LIFE_S = 300.0

log = logging.getLogger("instep.console")


class StreamPlace(str):
    """A mark from which a browser that has lost the stream can continue."""


# Returns a mark of what the part shows now, and the function that renders it.
Part = Callable[[], tuple[object, Callable[[], str]]]
Source = Callable[[PageRequest], Part]


def response(
    source: Source, view: PageRequest, limiter: CapacityLimiter, is_admitted: Callable[[], bool]
) -> Response:
    """Return the response that streams a part until the browser closes it, or the person leaves."""
    return StreamingResponse(
        _events(source, view, limiter, is_admitted),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


async def _events(
    source: Source, view: PageRequest, limiter: CapacityLimiter, is_admitted: Callable[[], bool]
) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    shown = _ShownPart(source, view)
    began = spoke = time.monotonic()
    while not view.workspace.closing.is_set() and is_admitted():
        reading = asyncio.ensure_future(
            anyio.to_thread.run_sync(shown.changed, abandon_on_cancel=True, limiter=limiter)
        )
        try:
            # a server that does not answer must not look like a lost connection
            while not (await asyncio.wait({reading}, timeout=PING_S))[0]:
                yield event("ping", "")
            text = reading.result()
        finally:
            reading.cancel()
        now = time.monotonic()
        if text is not None:
            spoke = now
            yield text
        elif now - spoke >= PING_S:
            spoke = now
            yield event("ping", "")
        if now - began >= LIFE_S:
            yield event("again", "")
            return
        await anyio.sleep(TICK_S)


class _ShownPart:
    """A part as a browser shows it, or the problem that it shows instead."""

    def __init__(self, source: Source, view: PageRequest) -> None:
        self._source, self._view = source, view
        self._part: Part | None = None
        self._mark: object = None

    def changed(self) -> str | None:
        """Return an event with what is to be shown; None if it is shown already."""
        seen = self._mark
        try:
            self._part = self._part or self._source(self._view)
            self._mark, render = self._part()
            return event("part", render(), self._mark) if self._mark != seen else None
        except Exception as error:
            self._mark = ("error", type(error), str(error))
            if self._mark == seen:
                return None
            if not isinstance(error, errors.InstepError):
                log.exception("%s failed", self._view.request.url.path)
            problem = self._view.problem_of(error)
            return event("problem", rendering.render("unknown.html", error=problem))


def event(kind: str, text: str, mark: object = None) -> str:
    """Return an event of a stream, with the place behind it if the stream can be continued."""
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    place = f"id: {mark}\n" if isinstance(mark, StreamPlace) else ""
    return f"event: {kind}\n{place}{lines}\n"
