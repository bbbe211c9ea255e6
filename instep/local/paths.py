"""Folders: the cache for fetched files, the state folder for data and logs of local servers.

    cache   $INSTEP_HOME/cache, else $XDG_CACHE_HOME/instep, else ~/.cache/instep
    state   $INSTEP_HOME/state, else $XDG_STATE_HOME/instep, else ~/.local/state/instep

The databases refuse to run as root, so root runs them as `nobody`, who cannot enter root's home or
any other closed folder. What they must read or own is then below /var/cache/instep and
/var/lib/instep.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

import instep
from instep import errors
from instep.local import keeper_client

FULL_DISK_WORDS = ("No space left on device", "Disk quota exceeded", "out of disk space")


def cache() -> Path:
    """Return the folder of fetched files; create it if necessary."""
    return _make(_home("cache", "XDG_CACHE_HOME", ".cache"))


def state() -> Path:
    """Return the folder of the local servers; create it if necessary."""
    return _make(_home("state", "XDG_STATE_HOME", ".local/state"))


def database_user() -> keeper_client.User | None:
    """Return the user for databases: `nobody` for root, otherwise None, the current user."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return keeper_client.User(entry.pw_name, entry.pw_uid, entry.pw_gid)


def open_cache() -> Path:
    """Return a cache that the user of the databases can read."""
    return _open(cache(), Path("/var/cache/instep"))


def open_state() -> Path:
    """Return a state folder that the user of the databases can enter."""
    own = state()
    name = hashlib.sha256(str(own).encode()).hexdigest()[:12]
    return _open(own, Path("/var/lib/instep") / name)


def open_temporary(folder: Path) -> Path:
    """Return a folder for temporary data that the user of the databases can enter."""
    return _open(folder, Path("/var/tmp"))  # noqa: S108 - for folders with random names only


def lets_through(folder: Path) -> bool:
    """Return whether every user can enter the folder."""
    real = folder.resolve()
    return all(place.stat().st_mode & stat.S_IXOTH for place in (real, *real.parents))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file: only one process, and one thread, is inside at a time."""
    with explained(path.parent):
        file = path.open("a")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Raise a full disk or an unwritable folder as an error with a remedy."""
    try:
        yield
    except OSError as error:
        raise explain(error, folder) from error


def explain(error: OSError, folder: Path) -> errors.InstepError:
    """Return the error, with a remedy, for a failure to write below a folder."""
    elsewhere = "or set INSTEP_HOME to a folder elsewhere"
    if is_full(error):
        return errors.InstepError(
            f"no space left below {folder}", f"free some space there, {elsewhere}"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return errors.InstepError(
            f"{folder} cannot be written: {error}",
            f"give this user permission to write there, {elsewhere}",
        )
    return errors.InstepError(f"{folder} cannot be used: {error}", f"repair it, {elsewhere}")


def is_full(error: BaseException) -> bool:
    """Return whether an error means that a disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def tells_full_disk(log: str) -> bool:
    """Return whether a program's output says that the disk is full."""
    return any(words in log for words in FULL_DISK_WORDS)


def python_environment() -> dict[str, str]:
    """Return the environment of a Python process that imports this copy of instep."""
    root = str(Path(instep.__file__).parents[1])
    search = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": search}


def _home(part: str, variable: str, default: str) -> Path:
    if own := os.environ.get("INSTEP_HOME"):
        return Path(own).absolute() / part
    if shared := os.environ.get(variable):
        return Path(shared).absolute() / "instep"
    try:
        return Path.home() / default / "instep"
    except RuntimeError as error:
        raise errors.SettingsError(
            "this user has no home folder", "set INSTEP_HOME to a folder that instep may use"
        ) from error


def _make(folder: Path) -> Path:
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _open(wanted: Path, spare: Path) -> Path:
    if database_user() is None or lets_through(wanted):
        return wanted
    with explained(spare):
        for place in reversed([spare, *spare.parents]):
            if not place.exists():
                place.mkdir(exist_ok=True)
                place.chmod(0o755)
    return spare
