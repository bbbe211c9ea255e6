"""Where things are kept: fetched files in the cache, the data and logs of lent servers in the state.

    cache   $INSTEP_HOME/cache, else $XDG_CACHE_HOME/instep, else ~/.cache/instep
    state   $INSTEP_HOME/state, else $XDG_STATE_HOME/instep, else ~/.local/state/instep

The databases refuse to run as root, so root lends them as `nobody`, who can enter neither root's home nor any
other closed folder. What they must read or own then lies under /var/cache/instep and /var/lib/instep.
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

from instep import errors
from instep.local import keeper_client

FULL_DISK_WORDS = ("No space left on device", "Disk quota exceeded", "out of disk space")


def cache() -> Path:
    """The folder of fetched files, made when it is not there."""
    return _make(_home("cache", "XDG_CACHE_HOME", ".cache"))


def state() -> Path:
    """The folder of what lent servers keep, made when it is not there."""
    return _make(_home("state", "XDG_STATE_HOME", ".local/state"))


def database_user() -> keeper_client.User | None:
    """Whom a database runs as: `nobody` for root, otherwise the user who asks."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return keeper_client.User(entry.pw_name, entry.pw_uid, entry.pw_gid)


def open_cache() -> Path:
    """A cache that the databases' user can read."""
    return _open(cache(), Path("/var/cache/instep"))


def open_state() -> Path:
    """A state folder that the databases' user can enter."""
    closed = state()
    marked = hashlib.sha256(str(closed).encode()).hexdigest()[:12]
    return _open(closed, Path("/var/lib/instep") / marked)


def open_temporary(folder: Path) -> Path:
    """A folder for temporary data that the databases' user can enter."""
    return _open(folder, Path("/var/tmp"))  # noqa: S108 - only folders of unguessable names are made in it


def lets_through(folder: Path) -> bool:
    """Whether every user can enter the folder."""
    real = folder.resolve()
    return all(place.stat().st_mode & stat.S_IXOTH for place in (real, *real.parents))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file's lock: one process (and one thread) at a time is inside."""
    with explained(path.parent):
        file = path.open("a")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn a full disk or a folder that cannot be written into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise explain(error, folder) from error


def explain(error: OSError, folder: Path) -> errors.InstepError:
    """What to tell about an error in writing below a folder."""
    elsewhere = "or set INSTEP_HOME to a folder elsewhere"
    if is_full(error):
        return errors.InstepError(
            f"no space left below {folder}", f"free some space there, {elsewhere}"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return errors.InstepError(
            f"{folder} cannot be written: {error}",
            f"give this user the right to write there, {elsewhere}",
        )
    return errors.InstepError(f"{folder} cannot be used: {error}", f"mend it, {elsewhere}")


def is_full(error: BaseException) -> bool:
    """Whether an error says that a disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def tells_full_disk(log: str) -> bool:
    """Whether a program's output says that the disk is full. Programs tell so in words alone."""
    return any(words in log for words in FULL_DISK_WORDS)


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
