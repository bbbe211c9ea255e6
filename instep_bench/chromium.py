"""A headless Chromium that was unpacked into the user's cache, with its libraries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from instep.local import paths

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PACKAGE = "chromium-headless-shell"
PROGRAM = Path("usr/lib/chromium") / PACKAGE
MARK = ".complete"


class Chromium(msgspec.Struct, frozen=True):
    """An executable, and the folders of the libraries that were unpacked with it."""

    executable: Path
    libraries: tuple[Path, ...] = ()


def kept() -> Path | None:
    """Return the folder of the latest Chromium in the cache."""
    folders = [mark.parent for mark in paths.cache().glob(f"{PACKAGE}-*/{MARK}")]
    return max(folders, key=lambda one: one.stat().st_mtime, default=None)


def unpacked(folder: Path) -> Chromium:
    """Return the Chromium of a folder into which its packages were unpacked."""
    libraries = sorted({library.parent for library in folder.rglob("*.so*")})
    return Chromium(folder / PROGRAM, tuple(libraries))


def at(executable: Path) -> Chromium:
    """Return a Chromium by its executable; one in such a folder needs the libraries beside it."""
    folder = executable.resolve().parents[len(PROGRAM.parts) - 1 :]
    if folder and (folder[0] / MARK).exists():
        return unpacked(folder[0])
    return Chromium(executable)


@contextmanager
def opened(found: Chromium) -> Iterator[Browser]:
    """Start Chromium, and close it at the end."""
    from playwright.sync_api import sync_playwright

    search = os.pathsep.join(map(str, found.libraries))
    with sync_playwright() as playwright:
        # in containers, Chromium's own sandbox needs rights that users do not have
        browser = playwright.chromium.launch(
            executable_path=found.executable,
            args=["--no-sandbox"],
            env={**os.environ, "LD_LIBRARY_PATH": search} if search else None,
        )
        yield browser
        browser.close()
