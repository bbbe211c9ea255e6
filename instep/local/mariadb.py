"""A local MariaDB: user root without password, database `instep`, loopback only."""

from __future__ import annotations

import os
import shutil
import socket
import struct
from collections.abc import Mapping
from typing import BinaryIO

from instep.local import database, libraries, ports

CLIENT_CONNECT_WITH_DB = 0x8
CLIENT_PROTOCOL_41 = 0x200
CLIENT_SECURE_CONNECTION = 0x8000
CLIENT_PLUGIN_AUTH = 0x80000
UTF8MB4 = 45


class MariaDB(database.Database):
    """A MariaDB server."""

    name = "mariadb"
    default_version = "11.4"
    version_variable = "INSTEP_MARIADB_VERSION"

    @property
    def url(self) -> str:
        return f"mariadb://root@{ports.HOST}:{self.port}/instep"

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "TZ": "UTC",
            "TMPDIR": str(self.root),
        }

    def prepare(self) -> None:
        """Create the data at the first start, under another name until it is complete."""
        if self.data.exists():
            return
        home = self.home
        libraries.check(home / "bin" / "mariadbd")
        new = self.root / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        first = self.root / "first.sql"
        first.write_text("CREATE DATABASE IF NOT EXISTS instep;\n", encoding="utf-8")
        first.chmod(0o644)
        # The only folder in which mariadbd reads and writes files for its clients, who may be any
        # user of this machine.
        files = self.root / "files"
        files.mkdir(exist_ok=True)
        if self.user:
            os.chown(files, self.user.uid, self.user.gid)
        arguments = [
            "--no-defaults",
            f"--basedir={home}",
            f"--datadir={new}",
            "--auth-root-authentication-method=normal",
        ]
        arguments += ["--skip-test-db", "--skip-name-resolve"]
        self.run_step([f"{home}/scripts/mariadb-install-db", *arguments])
        new.rename(self.data)

    def command(self) -> list[str]:
        home = self.home
        return [
            f"{home}/bin/mariadbd",
            "--no-defaults",
            f"--basedir={home}",
            f"--datadir={self.data}",
            f"--bind-address={ports.HOST}",
            f"--port={self.port}",
            # Relative to the data folder: an absolute path may be too long for a socket.
            "--socket=mariadb.sock",
            "--pid-file=mariadb.pid",
            f"--init-file={self.root}/first.sql",
            f"--secure-file-priv={self.root}/files",
            f"--tmpdir={self.root}",
            "--character-set-server=utf8mb4",
            "--default-time-zone=+00:00",
            "--local-infile=ON",
            "--skip-name-resolve",
            # It would create a certificate at every start, which takes up to ten seconds.
            "--skip-ssl",
        ]

    def answers(self) -> bool:
        """Log in to the database. Check the pid file first: another server may have the port."""
        if (self.data / "mariadb.pid").read_text(encoding="utf-8").strip() != str(self.pid):
            return False
        with (
            socket.create_connection((ports.HOST, self.port), timeout=1) as connection,
            connection.makefile("rb") as stream,
        ):
            greeting = _read_packet(stream)
            if greeting[:1] != b"\x0a":
                return False
            capabilities = (
                CLIENT_CONNECT_WITH_DB
                | CLIENT_PROTOCOL_41
                | CLIENT_SECURE_CONNECTION
                | CLIENT_PLUGIN_AUTH
            )
            login = (
                struct.pack("<IIB23x", capabilities, 1 << 24, UTF8MB4)
                + b"root\0"
                + b"\0"
                + b"instep\0mysql_native_password\0"
            )
            connection.sendall(struct.pack("<I", len(login) | 1 << 24) + login)
            answer = _read_packet(stream)
            connection.sendall(struct.pack("<I", 1) + b"\x01")
        return answer[:1] == b"\x00"


def _read_packet(stream: BinaryIO) -> bytes:
    header = stream.read(4)
    if len(header) < 4:
        raise ConnectionError("the server's answer is incomplete")
    return stream.read(struct.unpack("<I", header)[0] & 0xFFFFFF)
