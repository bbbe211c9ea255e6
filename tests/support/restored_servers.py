"""Database servers whose data is set back to a copy, as by a backup or a lagging standby."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from instep.local.database import Database
from tests.support.database_servers import UnsyncedMariaDB, UnsyncedPostgres
from tests.support.databases import run_sql
from tests.support.waiting import wait_until

SERVERS: dict[str, Callable[[], Database]] = {
    "postgres": lambda: RecoveringPostgres(),
    "mariadb": UnsyncedMariaDB,
}


class RecoveringPostgres(UnsyncedPostgres):
    """PostgreSQL that becomes a new timeline when a recovery is asked for, as a standby does."""

    def command(self) -> list[str]:
        return [*super().command(), "-c", "restore_command=false"]

    def run_as_superuser(self, statement: str) -> None:
        """Run a statement in the database `instep` while the server is stopped."""
        file = self.root / "statement.sql"
        file.write_text(f"{statement};\n", encoding="utf-8")
        file.chmod(0o644)
        single_user = ["--single", "-D", str(self.data), "-c", "exit_on_error=on", "instep"]
        self.run_step([str(self.home / "bin" / "postgres"), *single_user], given=file)

    def promote(self) -> None:
        """Start on a new timeline, which begins at the end of the log."""
        (self.data / "recovery.signal").touch()
        self.start()
        wait_until(lambda: run_sql(self.url, "SELECT pg_is_in_recovery()") == [(False,)])


def copy_data(server: Database) -> Path:
    """Stop a server, copy its data, and start it again."""
    server.stop()
    copy = server.root / "copy"
    subprocess.run(["cp", "-a", str(server.data), str(copy)], check=True)
    server.start()
    return copy


def restore_data(server: Database, copy: Path) -> None:
    """Stop a server, and replace its data by the copy. It is not started."""
    server.stop()
    subprocess.run(["rm", "-rf", str(server.data)], check=True)
    subprocess.run(["cp", "-a", str(copy), str(server.data)], check=True)
