"""HTML pages that commands write. A page replaces an older one of its kind, but no other file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from instep import errors


def refuse_file(kind: str, file: Path, *, force: bool, option: str = "--out") -> None:
    """Raise an error if the file cannot be written, or is not a page of this kind.

    `force` allows any file to be overwritten.
    """
    from instep.report import web_page

    overwrite = ""
    if option == "--out":  # only commands with --out have --force
        overwrite = ", or overwrite it with --force"
    with _explain_failure(file, option):
        if not file.parent.is_dir():
            raise errors.SettingsError(
                f"there is no folder {file.parent}",
                f"create it, or name another file with {option}",
            )
        if file.exists() and not force and not web_page.is_one(kind, file):
            raise errors.SettingsError(
                f"{file} already exists and is not a report of instep {kind}",
                f"name another file with {option}{overwrite}",
            )


def write(
    kind: str, render: Callable[[], str], file: Path, *, force: bool, option: str = "--out"
) -> None:
    """Write a page of this kind. It may replace an older page of the same kind."""
    from instep.report import web_page

    # Again: a benchmark checked this minutes ago, before it began to measure.
    refuse_file(kind, file, force=force, option=option)
    with _explain_failure(file, option):
        web_page.write(render(), file)


@contextmanager
def _explain_failure(file: Path, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.SettingsError(
            f"{file} cannot be written: {error.strerror or error}",
            f"name another file with {option}",
        ) from error
