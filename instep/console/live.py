"""Server-sent events: parts of a page, sent again when what they show has changed."""

from __future__ import annotations

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

# Returns a mark of what the part shows now, and the function that renders it.
Part = Callable[[], tuple[object, Callable[[], str]]]
Source = Callable[[PageRequest], Part]


def response(source: Source, view: PageRequest, limiter: CapacityLimiter) -> Response:
    """Return the response that streams a part until the browser closes it."""
    return StreamingResponse(
        _events(source, view, limiter),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


async def _events(
    source: Source, view: PageRequest, limiter: CapacityLimiter
) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    mark: object = None
    silent_s = 0.0

    def rendered(seen: object) -> tuple[object, str | None]:
        try:
            now, render = part()
            return now, render() if now != seen else None
        except errors.InstepError as error:
            return str(error), rendering.render("unknown.html", error=error)

    part = source(view)
    while not view.workspace.closing.is_set():
        mark, text = await anyio.to_thread.run_sync(
            rendered, mark, abandon_on_cancel=True, limiter=limiter
        )
        if text is not None:
            silent_s = 0.0
            yield event("part", text)
        elif silent_s >= PING_S:
            silent_s = 0.0
            yield ": still here\n\n"
        await anyio.sleep(TICK_S)
        silent_s += TICK_S


def event(kind: str, text: str) -> str:
    """Return an event of a stream."""
    lines = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {kind}\n{lines}\n"
