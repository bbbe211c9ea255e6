"""The state file of a polling bridge: what was published, and when each document is polled again.

A SQLite file that one process uses at a time. A document's row is updated twice for a change:
before it is published (`pending`), and after the broker has acknowledged it. A crash in between
therefore publishes the same change again, with the same version.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from instep import errors

APPLICATION_ID = 0x696E7374  # "inst"; SQLite keeps it in the file's header
SCHEMA_VERSION = 2
SCHEMA = """
CREATE TABLE documents (
    id TEXT PRIMARY KEY,
    listing INTEGER NOT NULL,            -- the last listing that named it
    state INTEGER NOT NULL DEFAULT 1,    -- one of DROPPED, LISTED and LEAVING
    next_at REAL DEFAULT 0,              -- NULL: never
    is_final INTEGER NOT NULL DEFAULT 0,
    interval_s REAL,
    failures INTEGER NOT NULL DEFAULT 0,
    pass INTEGER NOT NULL DEFAULT 0,     -- the last pass of --once that polled it
    etag TEXT,
    modified TEXT,
    digest BLOB,
    version INTEGER,
    pending_digest BLOB,
    pending_version INTEGER,
    missing_at REAL                      -- since when the source does not have it
) WITHOUT ROWID;
CREATE INDEX documents_due ON documents (next_at) WHERE state > 0;
CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
"""
DROPPED, LISTED, LEAVING = 0, 1, 2  # LEAVING: no longer listed, polled one last time

COLUMNS = (
    "id, state, next_at, is_final, interval_s, failures, pass, etag, modified, digest, version,"
    " pending_digest, pending_version, missing_at"
)

# The bound on next_at lets SQLite skip all documents that are never polled again.
NOT_ASKED = "pass < ? AND next_at >= 0 AND (NOT is_final OR next_at <= ?)"


class PolledDocument(msgspec.Struct, frozen=True):
    """What a bridge knows about a document. `digest` is that of the last published content."""

    id: str
    state: int = LISTED
    next_at: float | None = 0.0
    is_final: int = 0
    interval_s: float | None = None
    failures: int = 0
    asked_in: int = 0
    etag: str | None = None
    modified: str | None = None
    digest: bytes | None = None
    version: int | None = None
    pending_digest: bytes | None = None
    pending_version: int | None = None
    missing_at: float | None = None


class IdListing(msgspec.Struct, frozen=True):
    """A listing of the ids: its number, and the page to continue with if it was interrupted."""

    number: int
    page: str | None = None


class BridgeState:
    """The open state file. All calls must come from one thread at a time."""

    def __init__(self, path: Path, *, mapping: str, topic: str) -> None:
        """Open the file, or create it, and lock it.

        If the mapping was changed since, every document is polled again; if the topic was changed,
        every document is published again.
        """
        self.path = path
        self._lock = _lock(path)
        try:
            with self._explained():
                # only for this user: the URL of a list's next page may contain a secret
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
                self._connection = sqlite3.connect(
                    path, isolation_level=None, check_same_thread=False, timeout=10.0
                )
                self._prepare()
                with self._transaction():
                    self._follow_settings(mapping, topic)
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Close the file and release its lock."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        self._lock.close()

    # --- documents -------------------------------------------------------------------------------

    def due(self, now: float, limit: int) -> list[PolledDocument]:
        """Return documents that are due, the longest first."""
        return self._rows("next_at <= ? ORDER BY next_at LIMIT ?", (now, limit))

    def not_in_pass(self, number: int, now: float, limit: int) -> list[PolledDocument]:
        """Return documents that this pass has not polled yet; of the final ones, those due."""
        return self._rows(f"{NOT_ASKED} ORDER BY next_at LIMIT ?", (number, now, limit))

    def next_due(self, now: float) -> float | None:
        """Return when the next document is due that is not due now; None if none is."""
        found = self._value(
            "SELECT min(next_at) FROM documents WHERE state > 0 AND next_at > ?", now
        )
        return None if found is None else float(found)

    def save(
        self, rows: Sequence[PolledDocument], postponed: Sequence[PolledDocument] = ()
    ) -> None:
        """Store the rows on disk, in one transaction; of postponed ones only the schedule."""
        with self._explained(), self._transaction():
            self._connection.executemany(
                "UPDATE documents SET next_at = ?, is_final = ?, interval_s = ?, failures = ?,"
                " pass = ?, etag = ?, modified = ?, digest = ?, version = ?, pending_digest = ?,"
                " pending_version = ?, missing_at = ?,"
                # a document that was listed again meanwhile stays
                f" state = CASE WHEN ? = {DROPPED} AND state = {LEAVING} THEN {DROPPED}"
                " ELSE state END WHERE id = ?",
                map(_values, rows),
            )
            self._connection.executemany(
                "UPDATE documents SET next_at = ?, failures = ?, pass = ? WHERE id = ?",
                ((row.next_at, row.failures, row.asked_in, row.id) for row in postponed),
            )

    def clamp(self, latest: float, now: float) -> None:
        """Make documents due that would be polled later than allowed: the clock was set back."""
        with self._explained():
            self._connection.execute(
                "UPDATE documents SET next_at = ? WHERE next_at > ?", (now, latest)
            )

    def counts(self) -> dict[str, int]:
        """Return the number of documents, and of those with a final status."""
        row = self._select(
            "SELECT count(*) FILTER (WHERE state > 0),"
            " count(*) FILTER (WHERE state > 0 AND is_final) FROM documents"
        )[0]
        return {"documents": int(row[0]), "final": int(row[1])}

    def left_in_pass(self, number: int, now: float) -> int:
        """Return how many documents this pass has not polled yet."""
        statement = f"SELECT count(*) FROM documents WHERE state > 0 AND {NOT_ASKED}"
        return int(self._value(statement, number, now))

    # --- listings of the ids ---------------------------------------------------------------------

    def begin_listing(self, *, resume: bool) -> IdListing:
        """Return the listing to work on: the interrupted one, or a new one."""
        with self._explained(), self._transaction():
            number = int(self._fact("listing") or 0)
            page = self._fact("listing_page")
            if self._fact("listing_open") and resume and page is not None:
                return IdListing(number, page)
            self._set("listing", number + 1)
            self._set("listing_open", 1)
            self._set("listing_page", None)
            return IdListing(number + 1)

    def add_ids(self, listing: IdListing, ids: Iterable[str], next_page: str | None) -> int:
        """Store the ids of a page and the page that follows; return how many ids were new to it."""
        with self._explained(), self._transaction():
            before = self._connection.total_changes
            self._connection.executemany(
                "INSERT INTO documents (id, listing) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET"
                f" listing = excluded.listing, state = {LISTED},"
                # what was dropped is due at once; what is final stays final
                f" next_at = CASE WHEN state = {DROPPED} AND NOT is_final THEN 0"
                " ELSE next_at END WHERE listing < excluded.listing",
                ((one, listing.number) for one in ids),
            )
            added = self._connection.total_changes - before
            self._set("listing_page", next_page)
        return added

    def end_listing(self, listing: IdListing, now: float) -> int:
        """End a complete listing. Documents that it did not name are polled one last time.

        Return their number.
        """
        with self._explained(), self._transaction():
            left = self._connection.execute(
                "UPDATE documents SET"
                f" state = CASE WHEN is_final THEN {DROPPED} ELSE {LEAVING} END,"
                " next_at = CASE WHEN is_final THEN next_at ELSE 0 END"
                f" WHERE listing < ? AND state = {LISTED}",
                (listing.number,),
            ).rowcount
            self._set("listing_open", 0)
            self._set("listing_page", None)
            self._set("listed_at", now)
        return left

    def listed_at(self) -> float | None:
        """Return when the last listing ended; None if there was none, or one was interrupted."""
        if self._fact("listing_open"):
            return None
        found = self._fact("listed_at")
        return None if found is None else float(found)

    # --- passes of --once ------------------------------------------------------------------------

    def begin_pass(self, now: float, resumable_s: float) -> tuple[int, bool]:
        """Return the number of the pass, and whether it continues an interrupted one."""
        with self._explained(), self._transaction():
            number = int(self._fact("pass") or 0)
            began_at = self._fact("pass_began_at")
            if began_at is not None and now - resumable_s <= began_at <= now:
                return number, True
            self._set("pass", number + 1)
            self._set("pass_began_at", now)
        return number + 1, False

    def end_pass(self) -> None:
        """Mark the pass as complete."""
        with self._explained():
            self._set("pass_began_at", None)

    # --- inside ----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        known = self._value("PRAGMA application_id")
        if known != APPLICATION_ID and self._value("SELECT count(*) FROM sqlite_master"):
            raise errors.StateUnusable(
                f"{self.path} is a database, but not the state file of a bridge",
                "name another file with `state` in the bridge's settings",
            )
        self._connection.execute("PRAGMA journal_mode = WAL")
        # A version that was published must not be given again, also after a power failure.
        self._connection.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            version = self._value("PRAGMA user_version")
            if version == 0:
                for statement in SCHEMA.split(";"):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            elif version == 1:
                self._connection.execute("ALTER TABLE documents ADD COLUMN missing_at REAL")
                self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            elif version != SCHEMA_VERSION:
                raise errors.StateUnusable(
                    f"{self.path} was written by another version of instep (schema {version})",
                    "use that version, or name another file with `state`",
                )

    def _follow_settings(self, mapping: str, topic: str) -> None:
        if self._fact("mapping") not in (None, mapping):
            # a conditional request would be answered with "unchanged"
            self._connection.execute(
                "UPDATE documents SET etag = NULL, modified = NULL, next_at = 0, is_final = 0"
            )
        if self._fact("topic") not in (None, topic):
            self._connection.execute(
                "UPDATE documents SET etag = NULL, modified = NULL, next_at = 0, is_final = 0,"
                " digest = NULL"
            )
        self._set("mapping", mapping)
        self._set("topic", topic)

    def _rows(self, condition: str, parameters: Sequence[Any]) -> list[PolledDocument]:
        statement = f"SELECT {COLUMNS} FROM documents WHERE state > 0 AND {condition}"
        return [PolledDocument(*row) for row in self._select(statement, parameters)]

    def _select(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._explained():
            return self._connection.execute(statement, parameters).fetchall()

    def _value(self, statement: str, *parameters: Any) -> Any:
        return self._select(statement, parameters)[0][0]

    def _fact(self, name: str) -> Any:
        found = self._select("SELECT value FROM facts WHERE name = ?", (name,))
        return found[0][0] if found else None

    def _set(self, name: str, value: Any) -> None:
        self._connection.execute(
            "INSERT INTO facts VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise errors.StateUnusable(f"{self.path} cannot be opened: {error.strerror}") from error
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (
                sqlite3.SQLITE_CORRUPT,
                sqlite3.SQLITE_NOTADB,
            ):
                raise errors.StateUnusable(
                    f"{self.path} is damaged, or not a SQLite file: {error}",
                    "move it away, or restore it from a backup; without it, the bridge publishes"
                    " every document again, which does no harm",
                ) from error
            raise errors.StateUnusable(f"{self.path} cannot be used: {error}") from error


def _values(row: PolledDocument) -> tuple[Any, ...]:
    return (
        row.next_at,
        row.is_final,
        row.interval_s,
        row.failures,
        row.asked_in,
        row.etag,
        row.modified,
        row.digest,
        row.version,
        row.pending_digest,
        row.pending_version,
        row.missing_at,
        row.state,
        row.id,
    )


def _lock(path: Path) -> IO[str]:
    """Lock the file beside the state file; the system releases it when the process ends."""
    beside = path.with_name(f"{path.name}.lock")
    try:
        file = beside.open("a+", encoding="utf-8")
    except OSError as error:
        raise errors.StateUnusable(
            f"{beside} cannot be written: {error.strerror}",
            "make its folder writable for this user, or name another file with `state`",
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read(40).strip()
        file.close()
        named = f" (process {holder})" if holder.isdigit() else ""
        raise errors.BridgeBusy(
            f"another process{named} already polls with the state file {path}"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
