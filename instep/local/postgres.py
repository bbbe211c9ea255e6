"""A local PostgreSQL: user and database `instep`, no password, reached from this machine only.

The user `instep` owns its database and may make roles and databases, but is no superuser: every user of this
machine can connect, and a superuser could run programs as whoever started the server.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

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
# The superuser does not come in over the network.
host  all  superuser  {ports.HOST}/32  reject
host  all  all        {ports.HOST}/32  trust
"""
FIRST_STATEMENTS = """\
CREATE ROLE instep LOGIN CREATEDB CREATEROLE;
GRANT {roles} TO instep;
CREATE DATABASE instep OWNER instep;
"""


class Postgres(database.Database):
    name = "postgres"
    usual_version = "17"
    version_variable = "INSTEP_POSTGRES_VERSION"
    stop_signal = signal.SIGINT  # the fast shutdown: open transactions are rolled back
    end_signal = (
        signal.SIGQUIT
    )  # the immediate one: leaves no shared memory behind, as SIGKILL would

    @property
    def url(self) -> str:
        return f"postgresql://instep@{ports.HOST}:{self.port}/instep"

    @property
    def environment(self) -> Mapping[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}

    def prepare(self) -> None:
        """At the first start make the data folder, role and database; aside, so that a half-made one is never used."""
        if self.data.exists():
            self._drop_strange_lock()
            return
        programs, release = self.home / "bin", int(self.version)
        libraries.check(programs / "postgres")
        made = self.root / "data.new"
        shutil.rmtree(made, ignore_errors=True)
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
            [f"{programs}/initdb", "-D", str(made), "-U", "superuser", "--auth=trust", *locale]
        )
        alone = ["--single", "-D", str(made), "-c", "exit_on_error=on", "postgres"]
        self.run_step([f"{programs}/postgres", *alone], given=self.root / "first.sql")
        made.rename(self.data)

    def _drop_strange_lock(self) -> None:
        """Remove the lock file of a server that is gone and whose pid a stranger or a zombie has: PostgreSQL would not start."""
        data = self.data.resolve()
        try:
            pid = (data / "postmaster.pid").read_text(encoding="utf-8").split()[0]
            strange = not processes.alive(int(pid)) or Path("/proc", pid, "cwd").readlink() != data
        except (OSError, IndexError, ValueError):
            return
        if strange:
            (data / "postmaster.pid").unlink()

    def command(self) -> list[str]:
        settings = {**SETTINGS, "port": str(self.port), "hba_file": str(self.root / "access.conf")}
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.home / "bin" / "postgres"), "-D", str(self.data), *arguments]

    def answers(self) -> bool:
        """Log in and wait for ReadyForQuery; while it starts or recovers, the server answers with an error instead.

        Its own lock file says so first: on a lost port another server would answer.
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
