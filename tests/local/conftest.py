"""A home folder for local servers, with the real cache, and folders that every user can enter."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from instep.local import paths


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield an empty folder that every user can enter, unlike root's folders of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="instep-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def home(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set INSTEP_HOME to an empty folder, with the user's real cache."""
    (open_folder / "cache").symlink_to(paths.cache())
    monkeypatch.setenv("INSTEP_HOME", str(open_folder))
    return open_folder


@pytest.fixture
def bare_home(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set INSTEP_HOME to an empty folder with nothing fetched."""
    monkeypatch.setenv("INSTEP_HOME", str(open_folder))
    return open_folder
