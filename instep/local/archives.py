"""Unpack the jars of databases and of Redis to a folder with bin/ in it."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path, PurePosixPath


def unpack_postgres(jar: Path, folder: Path) -> None:
    """Unpack PostgreSQL: the jar contains one .txz with bin/, lib/ and share/."""
    with zipfile.ZipFile(jar) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".txz"))
        with outer.open(name) as packed, tarfile.open(fileobj=packed, mode="r|xz") as archive:
            # Python before 3.11.4 has no filters. The checksum of the jar was verified either way.
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            archive.extractall(folder)  # noqa: S202
    _make_readable(folder)


def unpack_mariadb(jar: Path, folder: Path) -> None:
    """Unpack MariaDB: the jar contains …/linux/{bin,scripts,share} without execute permissions."""
    with zipfile.ZipFile(jar) as archive:
        for entry in archive.infolist():
            path = PurePosixPath(entry.filename)
            if entry.is_dir() or "linux" not in path.parts:
                continue
            inner = PurePosixPath(*path.parts[path.parts.index("linux") + 1 :])
            if inner.parts[0] not in ("bin", "scripts", "share") or ".." in inner.parts:
                continue
            target = folder / inner
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
            if inner.parts[0] != "share":
                target.chmod(0o755)
    _make_readable(folder)


def unpack_redis(jar: Path, folder: Path) -> None:
    """Unpack Redis: the jar contains one redis-server for each platform."""
    target = folder / "bin" / "redis-server"
    target.parent.mkdir()
    with zipfile.ZipFile(jar) as archive:
        name = next(name for name in archive.namelist() if name.endswith("-linux-amd64"))
        with archive.open(name) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    target.chmod(0o755)
    _make_readable(folder)


def _make_readable(folder: Path) -> None:
    """Make files readable for every user: root runs the databases as another user."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
