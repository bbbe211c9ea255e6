"""Server-sent events: parts of a page, sent again when what they show has changed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from starlette.responses import Response, StreamingResponse

from instep import errors
from instep.console import rendering
from instep.console.requests import PageRequest

TICK_S = 1.0
PING_S = 10.0
RETRY_MS = 2_000

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
    mark: object = None
    silent_s = 0.0
    part: Part | None = None

    def rendered(seen: object) -> tuple[object, str | None]:
        """Return the mark of what the part shows now, and its text if it was not seen yet."""
        nonlocal part
        try:
            part = part or source(view)
            now, render = part()
            return now, render() if now != seen else None
        except Exception as error:
            now = ("error", type(error), str(error))
            if now == seen:
                return now, None
            if not isinstance(error, errors.InstepError):
                log.exception("%s failed", view.request.url.path)
            return now, rendering.render("unknown.html", error=view.problem_of(error))

    while not view.workspace.closing.is_set() and is_admitted():
        mark, text = await anyio.to_thread.run_sync(
            rendered, mark, abandon_on_cancel=True, limiter=limiter
        )
        if text is not None:
            silent_s = 0.0
            yield event("part", text, mark)
        elif silent_s >= PING_S:
            silent_s = 0.0
            yield ": still here\n\n"
        await anyio.sleep(TICK_S)
        silent_s += TICK_S


def event(kind: str, text: str, mark: object = None) -> str:
    """Return an event of a stream, with the place behind it if the stream can be continued."""
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    place = f"id: {mark}\n" if isinstance(mark, StreamPlace) else ""
    return f"event: {kind}\n{place}{lines}\n"
