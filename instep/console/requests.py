"""One request as the pages see it, and the declaration of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from instep import errors
from instep.console import rendering
from instep.console.access import Person
from instep.console.workspace import Purpose, Workspace
from instep.pipeline.apply.maintenance import MaintenanceSession

REPORT = "look at the console's output; if it happens again, report it with that output"
# errors whose text is a database's, which quotes the row, or names the key of a record
WITH_VALUES = (
    errors.RowRefused,
    errors.KeyNotUnique,
    errors.OutputKeyMissing,
    errors.OutputTooLarge,
    errors.RecordNotTransformed,
)
VALUES_HIDDEN = "it may contain values: run the command, or start the console without --hide-values"
READ_ONLY = "This console is read-only."
DECODING = frozenset({"/dead/replay", "/parked/release"})  # actions that decode records
VIEWER = "You are signed in as a viewer; this needs the role operator."


class PageRequest:
    """A request with its person, parameters and form."""

    def __init__(
        self,
        workspace: Workspace,
        person: Person,
        request: Request,
        form: Mapping[str, list[str]],
    ) -> None:
        self.workspace, self.person, self.request, self._form = workspace, person, request, form

    @property
    def hides_values(self) -> bool:
        """Return whether the contents of records and rows are hidden."""
        return self.workspace.options.hide_values

    @property
    def no_writes(self) -> str | None:
        """Return why this person cannot change anything, or None."""
        if self.workspace.options.read_only:
            return READ_ONLY
        return VIEWER if self.person.role != "operator" else None

    def disabled(self, path: str, pipeline: str) -> str | None:
        """Return why this person cannot act on a pipeline in this way, or None."""
        if self.no_writes or path not in DECODING:
            return self.no_writes
        return self.workspace.needs_spark(pipeline)

    def problem_of(self, error: Exception) -> errors.InstepError:
        """Return an error for a page. The text of some, and of unexpected ones, may have values."""
        if self.hides_values and isinstance(error, WITH_VALUES):
            return errors.InstepError(
                f"{errors.code_of(error)}: this console hides its text", VALUES_HIDDEN
            )
        if isinstance(error, errors.InstepError):
            return error
        what = f"unexpected error: {type(error).__name__}"
        return errors.InstepError(what if self.hides_values else f"{what}: {error}", REPORT)

    @property
    def can_sign_out(self) -> bool:
        """Return whether the person has signed in with a password."""
        return self.workspace.signs_in

    @property
    def is_fragment(self) -> bool:
        """Return whether only a part of the page is wanted."""
        return self.request.headers.get("x-fragment") == "true"

    def text(self, name: str, default: str = "") -> str:
        """Return a parameter of the form, else of the URL."""
        values = self.texts(name)
        return values[0] if values else default

    def texts(self, name: str) -> list[str]:
        """Return all values of a parameter, without empty ones; see `rendering.field`."""
        given = self._given(name)
        given += [unquote(value) for value in self._given(name + rendering.ENCODED)]
        return [value for value in given if value]

    def integer(self, name: str, default: int, highest: int) -> int:
        """Return a parameter that is a number from 1 to the highest one."""
        text = self.text(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
            raise errors.SettingsError(
                f"{name} is {text!r}, which is not a number", "correct the URL"
            )
        return min(int(text), highest)

    def require(self, name: str) -> str:
        """Return a parameter; raise if it is missing."""
        value = self.text(name)
        if not value:
            raise errors.SettingsError(
                f"the URL has no {name}", "start from another page and follow its links"
            )
        return value

    def pipeline(self) -> str:
        """Return the pipeline that the URL names, or the only one that is declared."""
        names = self.workspace.pipelines()
        name = self.text("pipeline") or (names[0] if len(names) == 1 else "")
        if not name:
            raise errors.SettingsError("the URL names no pipeline", "choose one on the overview")
        self.workspace.sampler(name)
        return name

    @property
    def names_no_pipeline(self) -> bool:
        """Return whether the person has to choose a pipeline first."""
        return not self.text("pipeline") and len(self.workspace.pipelines()) != 1

    def session(
        self, pipeline: str, purpose: Purpose = "read"
    ) -> AbstractContextManager[MaintenanceSession]:
        """Open a maintenance session as this person."""
        return self.workspace.session(pipeline, self.person.name, purpose)

    def _given(self, name: str) -> list[str]:
        return list(self._form.get(name) or self.request.query_params.getlist(name))

    def render(
        self, template: str, title: str, *, http_status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Return a page."""
        return HTMLResponse(
            rendering.render(template, title=title, view=self, **values), status_code=http_status
        )

    def redirect(self, url: str) -> Response:
        """Answer a write: the browser continues with a page that can be reloaded."""
        return RedirectResponse(url, status_code=303)


class ConsolePage(msgspec.Struct, frozen=True):
    """A page: its path, and the function that answers."""

    path: str
    answer: Callable[[PageRequest], Response]
    methods: Sequence[str] = ("GET",)
    of_pipeline: bool = False  # if the URL names none of several, they are offered
    writes: bool = False  # needs the role operator; does not exist with --read-only
