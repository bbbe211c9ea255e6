"""A local PostgreSQL: user and database `instep`, no password, loopback only.

The user `instep` owns its database and may create roles and databases, but is no superuser: every
user of this machine can connect, and a superuser could run programs as the server's user.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

import psutil

from instep.local import database, libraries, ports, processes

SETTINGS = {
    "listen_addresses": ports.HOST,
    "unix_socket_directories": "",
    # Shared memory in the data folder: a killed server leaves nothing in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
ACCESS = f"""\
# The superuser cannot connect over the network.
host  all  superuser  {ports.HOST}/32  reject
host  all  all        {ports.HOST}/32  trust
"""
FIRST_STATEMENTS = """\
CREATE ROLE instep LOGIN CREATEDB CREATEROLE;
GRANT {roles} TO instep;
CREATE DATABASE instep OWNER instep;
"""


class Postgres(database.Database):
    """A PostgreSQL server."""

    name = "postgres"
    default_version = "17"
    version_variable = "INSTEP_POSTGRES_VERSION"
    stop_signal = signal.SIGINT  # fast shutdown: rolls back open transactions
    end_signal = signal.SIGQUIT  # immediate shutdown; SIGKILL would leave shared memory behind

    @property
    def url(self) -> str:
        return f"postgresql://instep@{ports.HOST}:{self.port}/instep"

    @property
    def environment(self) -> Mapping[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}

    def prepare(self) -> None:
        """Create data, role and database at the first start, under another name until complete."""
        if self.data.exists():
            self._remove_foreign_lock()
            return
        programs, release = self.home / "bin", int(self.version)
        libraries.check(programs / "postgres")
        new = self.root / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        roles = "pg_monitor, pg_signal_backend" + (", pg_checkpoint" if release >= 15 else "")
        for name, text in (
            ("access.conf", ACCESS),
            ("first.sql", FIRST_STATEMENTS.format(roles=roles)),
        ):
            (self.root / name).write_text(text, encoding="utf-8")
            (self.root / name).chmod(0o644)
        locale = ["--encoding=UTF8", "--locale=C"]
        if release >= 17:
            locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        self.run_step(
            [f"{programs}/initdb", "-D", str(new), "-U", "superuser", "--auth=trust", *locale]
        )
        single_user = ["--single", "-D", str(new), "-c", "exit_on_error=on", "postgres"]
        self.run_step([f"{programs}/postgres", *single_user], given=self.root / "first.sql")
        new.rename(self.data)

    def _remove_foreign_lock(self) -> None:
        """Remove the lock file of a dead server whose pid now belongs to another process.

        PostgreSQL would refuse to start.
        """
        data = self.data.resolve()
        lock = data / "postmaster.pid"
        try:
            pid = int(lock.read_text(encoding="utf-8").split()[0])
            if processes.alive(pid) and Path(psutil.Process(pid).cwd()) == data:
                return
        except (OSError, IndexError, ValueError, psutil.Error):
            return
        lock.unlink()

    def command(self) -> list[str]:
        settings = {**SETTINGS, "port": str(self.port), "hba_file": str(self.root / "access.conf")}
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.home / "bin" / "postgres"), "-D", str(self.data), *arguments]

    def answers(self) -> bool:
        """Log in and wait for ReadyForQuery; a server that starts or recovers sends an error.

        Check the lock file first: another server may have the port.
        """
        lock = (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        if len(lock) < 8 or lock[0] != str(self.pid) or lock[7].strip() != "ready":
            return False
        names = b"user\0instep\0database\0instep\0\0"
        with (
            socket.create_connection((ports.HOST, self.port), timeout=1) as connection,
            connection.makefile("rb") as stream,
        ):
            connection.sendall(struct.pack(">ii", 8 + len(names), 196608) + names)
            while header := stream.read(5):
                kind, size = struct.unpack(">ci", header)
                stream.read(size - 4)
                if kind == b"Z":
                    connection.sendall(b"X\0\0\0\4")
                    return True
                if kind == b"E":
                    return False
        return False
