"""Database servers that do not wait for the disk.

Each test has its own database. Creating and removing one takes a dozen waits for the disk. A
server that is killed loses nothing here: what it has written is in the memory of the system.
"""

from __future__ import annotations

from instep.local.mariadb import MariaDB
from instep.local.postgres import Postgres


class UnsyncedPostgres(Postgres):
    """PostgreSQL without fsync."""

    def command(self) -> list[str]:
        return [*super().command(), "-c", "fsync=off", "-c", "full_page_writes=off"]


class UnsyncedMariaDB(MariaDB):
    """MariaDB without fsync."""

    def command(self) -> list[str]:
        return [*super().command(), "--debug-no-sync", "--innodb-flush-method=nosync"]
