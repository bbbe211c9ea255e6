"""The web application: routes, time limits, and errors as pages."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Literal
from urllib.parse import parse_qs, quote, urlencode

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from instep import errors
from instep.console import access, live, rendering
from instep.console.access import Doorkeeper, Person, PolicyMiddleware
from instep.console.pages import ALL, STREAMS
from instep.console.requests import REPORT, ConsolePage, PageRequest
from instep.console.threads import ThreadLimit
from instep.console.workspace import Workspace

FORM_BYTES_MAX = 4 << 20
READ_PATIENCE_S = 20.0
SIGN_IN_BYTES_MAX = 8 << 10
# Pages, streams and sign-ins have threads of their own: none of them keeps the others waiting.
PAGE_THREADS, WRITE_THREADS = 32, 8
# Checking a password takes 64 MB.
THREADS = {"stream": 8, "sign-in": 4}
LARGE_FORM_BYTES = 64 << 10  # parsed in a thread
SIGN_INS_MAX, SIGN_INS_OF_ADDRESS_MAX = 64, 16  # that are checked or wait for it
SIGN_IN_AGAIN_S = 2
FAILURE_PAUSE_S = 0.5
FOREVER = "public, max-age=31536000, immutable"

log = logging.getLogger("instep.console")
audit = logging.getLogger("instep.console.audit")


def build(workspace: Workspace, door: Doorkeeper, hosts: Sequence[str]) -> ASGIApp:
    """Return the application for requests to these host names."""
    site = _Site(workspace, door, frozenset(map(str.lower, hosts)))
    pages = [page for page in ALL if not (page.writes and workspace.options.read_only)]
    workspace.signs_in = door.signs_in
    workspace.paths = frozenset(page.path for page in pages)
    routes = [
        Mount("/static", _Assets(directory=rendering.STATIC)),
        Route("/start", site.start, methods=["GET"]),
        Route("/sign-in", site.sign_in, methods=["GET", "POST"]),
        Route("/sign-out", site.sign_out, methods=["POST"]),
        *(Route(path, site.stream(source), methods=["GET"]) for path, source in STREAMS.items()),
        *(Route(page.path, site.page(page), methods=list(page.methods)) for page in pages),
    ]

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        workspace.start()
        yield
        await anyio.to_thread.run_sync(workspace.close)

    app = Starlette(
        routes=routes,
        middleware=[Middleware(GZipMiddleware, minimum_size=500)],
        exception_handlers={HTTPException: site.not_found, Exception: site.failed},
        lifespan=lifespan,
    )
    # a redirect would name the host of the request before it was checked
    app.router.redirect_slashes = False
    # around everything: Starlette answers unexpected errors outside of its own middleware
    return PolicyMiddleware(app)


class _Assets(StaticFiles):
    """The console's own files. Their URLs change with their content."""

    def file_response(self, *arguments: object, **named: object) -> Response:
        response: Response = super().file_response(*arguments, **named)  # type: ignore[arg-type]
        response.headers["cache-control"] = FOREVER
        return response


class _Site:
    """The endpoints."""

    def __init__(self, workspace: Workspace, door: Doorkeeper, hosts: frozenset[str]) -> None:
        self._workspace, self._door, self._hosts = workspace, door, hosts
        self._limiters: dict[str, CapacityLimiter] = {}
        self._pages, self._writes = ThreadLimit(PAGE_THREADS), ThreadLimit(WRITE_THREADS)
        self._signing_in: Counter[str] = Counter()  # by address

    # --- pages -----------------------------------------------------------------------------------

    def page(self, page: ConsolePage) -> Callable[[Request], object]:
        """Return the endpoint of a page."""

        async def answer(request: Request) -> Response:
            person = self._admit(request, leads_to_write=page.writes)
            if isinstance(person, Response):
                return person
            form: dict[str, list[str]] = {}
            if request.method == "POST":
                form = await _form(request)
            view = PageRequest(self._workspace, person, request, form)
            if page.writes and view.no_writes:
                return _problem(view, errors.InstepError(view.no_writes, "ask an operator"), 403)
            return await self._in_thread(lambda: _answered(page, view), view)

        return answer

    def stream(self, source: live.Source) -> Callable[[Request], object]:
        """Return the endpoint of a stream of events."""

        async def answer(request: Request) -> Response:
            person = self._admit(request)
            if isinstance(person, Response):
                return person
            view = PageRequest(self._workspace, person, request, {})

            def is_admitted() -> bool:
                return self._door.person(request) == person

            return live.response(source, view, self._threads("stream"), is_admitted)

        return answer

    async def _in_thread(self, work: Callable[[], Response], view: PageRequest) -> Response:
        """Answer in a thread. A page that takes too long is given up; a write never is."""
        try:
            if view.request.method not in access.READING:
                return await self._writes.run(work)
            return await self._pages.run(work, READ_PATIENCE_S)
        except errors.Unreachable as busy:
            return _problem(view, busy, 503)
        except TimeoutError:
            late = errors.Unreachable(
                f"this page was given up after {READ_PATIENCE_S:.0f} s: a server does not answer",
                "try again; the other pages do not need to wait for it",
            )
            return _problem(view, late, 504)

    def _threads(self, kind: Literal["stream", "sign-in"]) -> CapacityLimiter:
        """Return the limiter of a kind of work. It belongs to the event loop that serves."""
        return self._limiters.setdefault(kind, CapacityLimiter(THREADS[kind]))

    # --- persons ---------------------------------------------------------------------------------

    def _admit(self, request: Request, *, leads_to_write: bool = False) -> Person | Response:
        """Return who sent the request, or the answer to a request that is refused.

        A page that leads to a write is opened from another site only if the person goes on.
        """
        if reason := access.refusal(request.headers, request.method, self._hosts):
            return _refused(reason, 403)
        if leads_to_write and access.is_from_elsewhere(request.headers):
            if not _is_link_from_elsewhere(request):
                return _refused("This request comes from a page of another site.", 403)
            return _again(request, by_itself=False)
        person = self._door.person(request)
        if person is not None:
            return person
        if _is_link_from_elsewhere(request):
            # The cookie is only sent if the console's own page asks for the page.
            return _again(request, by_itself=True)
        if self._door.signs_in and request.method == "GET":
            return RedirectResponse(f"/sign-in?{urlencode({'next': _path(request)})}", 303)
        if self._door.users is not None:
            return _refused("You are not one of the users of this console.", 401)
        return _refused(
            "Open the start URL that `instep console` printed: it has a token."
            " It is valid until the console ends.",
            401,
        )

    async def start(self, request: Request) -> Response:
        """Turn the token of the start URL into a cookie."""
        if reason := access.refusal(request.headers, request.method, self._hosts):
            return _refused(reason, 403)
        cookie = self._door.by_token(request.query_params.get("token", ""))
        if cookie is None:
            return _refused(
                "The token in this URL is wrong: the console was started again since, or it was a"
                " token for one use. Use the start URL that the console printed last.",
                401,
            )
        return self._signed_in(request, cookie, "/")

    async def sign_in(self, request: Request) -> Response:
        """Show the form, or check name and password."""
        if reason := access.refusal(request.headers, request.method, self._hosts):
            return _refused(reason, 403)
        if not self._door.signs_in:
            return RedirectResponse("/", 303)
        following = request.query_params.get("next", "/")
        if request.method == "GET":
            return _sign_in_page(following)
        try:
            form = parse_qs((await _body(request, SIGN_IN_BYTES_MAX)).decode("utf-8", "replace"))
        except HTTPException as error:
            return _sign_in_page(following, "The form is too large.", error.status_code)
        name, password = (form.get(field, [""])[0] for field in ("name", "password"))
        address = access.client_address(request, self._door.users)
        if wait_s := math.ceil(self._door.failures.wait_s(name, address)):
            return _later(following, f"Too many wrong passwords. Try again in {wait_s} s.", wait_s)
        with self._queue(address) as has_room:
            if not has_room:
                problem = "Many people are signing in. Wait a moment, and try again."
                return _later(following, problem, SIGN_IN_AGAIN_S)
            cookie = await anyio.to_thread.run_sync(
                self._door.by_password, name, password, address, limiter=self._threads("sign-in")
            )
            if cookie is None:
                await anyio.sleep(FAILURE_PAUSE_S)
                return _sign_in_page(following, "Name or password is wrong.", 401)
        return self._signed_in(request, cookie, following)

    @contextmanager
    def _queue(self, address: str) -> Iterator[bool]:
        """Wait among those who sign in. One address takes only a part of the places."""
        own, all_of_them = self._signing_in[address], self._signing_in.total()
        has_room = own < SIGN_INS_OF_ADDRESS_MAX and all_of_them < SIGN_INS_MAX
        if has_room:
            self._signing_in[address] += 1
        try:
            yield has_room
        finally:
            if has_room:
                self._signing_in[address] -= 1
                self._signing_in += Counter()  # drops those at 0

    async def sign_out(self, request: Request) -> Response:
        """Close the session."""
        person = self._admit(request)
        if isinstance(person, Response):
            return person
        name = self._door.sessions.cookie
        self._door.sessions.close(request.cookies.get(name))
        audit.info("signed out: %s", person.name)
        response = _refused("You are signed out.", 200)
        response.delete_cookie(name)
        return response

    def _signed_in(self, request: Request, cookie: str, following: str) -> Response:
        response = RedirectResponse(following if access.is_own_path(following) else "/", 303)
        response.set_cookie(
            self._door.sessions.cookie,
            cookie,
            httponly=True,
            samesite="strict",
            path="/",
            secure=access.uses_https(request.headers),
        )
        return response

    # --- errors ----------------------------------------------------------------------------------

    async def not_found(self, request: Request, error: Exception) -> Response:
        """Answer a request for a page that does not exist."""
        assert isinstance(error, HTTPException)
        person = self._admit(request)
        if isinstance(person, Response):
            return person
        view = PageRequest(self._workspace, person, request, {})
        what = errors.InstepError(f"there is no page {request.url.path}", "start from the overview")
        if error.status_code == 413:
            what = errors.InstepError("the form is too large", "select fewer lines, or a reason")
        if error.status_code == 405 and self._workspace.options.read_only:
            what = errors.InstepError("this console is read-only", "start it without --read-only")
        return _problem(view, what, error.status_code)

    async def failed(self, _request: Request, error: Exception) -> Response:
        """Answer a request that failed in a way that nobody foresaw."""
        return PlainTextResponse(f"unexpected error: {type(error).__name__}\n{REPORT}\n", 500)


def _answered(page: ConsolePage, view: PageRequest) -> Response:
    if page.of_pipeline and view.names_no_pipeline:
        return view.render("choose.html", "Choose a pipeline", names=view.workspace.pipelines())
    try:
        return page.answer(view)
    except errors.InstepError as error:
        return _problem(view, error, _status(error))
    except Exception as error:
        log.exception("%s failed", page.path)
        return _problem(view, view.problem_of(error), 500)


def _status(error: errors.InstepError) -> int:
    if isinstance(error, (errors.NotParked, errors.TopicMissing, errors.NoSuchDocument)):
        return 404
    if isinstance(error, errors.SettingsError):
        return 400
    if isinstance(error, (errors.Unreachable, errors.Transient, errors.NotAuthorised)):
        return 503
    return 500


def _problem(view: PageRequest, error: errors.InstepError, status: int) -> Response:
    shown = view.problem_of(error)
    return view.render("problem.html", "Problem", http_status=status, error=shown)


def _refused(reason: str, status: int) -> Response:
    return HTMLResponse(rendering.render("refused.html", reason=reason), status_code=status)


def _is_link_from_elsewhere(request: Request) -> bool:
    return (
        request.method == "GET"
        and access.is_from_elsewhere(request.headers)
        and request.headers.get("sec-fetch-mode") == "navigate"
    )


def _again(request: Request, *, by_itself: bool) -> Response:
    page = rendering.render("again.html", url=_path(request), by_itself=by_itself)
    return HTMLResponse(page)


def _path(request: Request) -> str:
    """Return the path and the query of a request; the path of the overview for a hostile one."""
    path, query = quote(request.scope["path"]), request.url.query
    if not access.is_own_path(path):
        return "/"
    return f"{path}?{query}" if query else path


def _later(following: str, problem: str, wait_s: int) -> HTMLResponse:
    response = _sign_in_page(following, problem, 429)
    response.headers["retry-after"] = str(wait_s)
    return response


def _sign_in_page(following: str, problem: str = "", status: int = 200) -> HTMLResponse:
    page = rendering.render("sign_in.html", following=following, problem=problem)
    return HTMLResponse(page, status_code=status)


async def _form(request: Request) -> dict[str, list[str]]:
    text = (await _body(request, FORM_BYTES_MAX)).decode("utf-8", "replace")
    if len(text) < LARGE_FORM_BYTES:
        return parse_qs(text)
    return await anyio.to_thread.run_sync(parse_qs, text)


async def _body(request: Request, most: int) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HTTPException(413)
    return body
