"""The Delta table of an archive: what it belongs to, its positions, and commits.

Positions are `txn` actions of the table: one per partition, whose version is the next offset, in
the same commit as the files. A commit is decided on the table as it was last read and is refused
if the table has changed since (`max_commit_retries=0`). So two writers cannot both add the records
behind the same position: one of them reads the table again, and finds the position moved.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from instep import errors, extras
from instep.archive.columns import DAY, OF_TABLE
from instep.archive.files import DataFile, Location
from instep.kafka.topics import Topic
from instep.masking import STARS, masked_text

try:
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.exceptions import (
        CommitFailedError,
        DeltaError,
        DeltaProtocolError,
        TableNotFoundError,
    )
    from deltalake.transaction import AddAction, RemoveAction
except ImportError:
    raise extras.missing("deltalake, which archives need,", "archive") from None

EPOCH = "instep/epoch"
NEXT = "instep/next/"  # and the partition: the next offset
FIRST = "instep/first/"  # and the partition: the offset at which the archive began
ROWS = "instep/rows/"  # and the partition: the number of rows that were archived
# properties of the table
TOPIC = "instep.topic"
TOPIC_ID = "instep.topic.id"
CLUSTER_ID = "instep.cluster.id"
SKIPPED = "instep.skipped"
RETENTION_OF_POSITIONS = "delta.setTransactionRetentionDuration"
LOG_RETENTION = {"delta.logRetentionDuration": "interval 7 days"}

COMMIT_PATIENCE_S = 60.0  # with others that commit to the same table
PAUSE_MAX_S = 0.05

Result = TypeVar("Result")
Ranges = dict[int, list[tuple[int, int]]]  # per partition, half-open ranges of offsets


class ArchivedTopic(msgspec.Struct, frozen=True):
    """The topic that an archive belongs to."""

    topic: str
    topic_id: str
    cluster_id: str


class ArchiveTable:
    """The table of one archive, as it was when it was last read."""

    def __init__(self, name: str, location: Location, opened: DeltaTable) -> None:
        self.name, self.location, self._delta = name, location, opened

    # --- what it is -------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Return the id that the table got when it was created."""
        return str(self._delta.metadata().id)

    @property
    def version(self) -> int:
        """Return the version that was last read."""
        return self._delta.version()

    def identity(self) -> ArchivedTopic:
        """Return what it belongs to; raise if it is not an archive of instep."""
        found = self._delta.metadata().configuration
        if not {TOPIC, TOPIC_ID, CLUSTER_ID} <= found.keys():
            raise errors.ArchiveReplaced(
                f"archive {self.name!r}: the table at {self.location.path} is not an archive",
                "set `path` to a folder of its own",
            )
        return ArchivedTopic(found[TOPIC], found[TOPIC_ID], found[CLUSTER_ID])

    def refuse_changed(self) -> None:
        """Raise if the table no longer has the columns and properties that an archive needs."""
        problem = None
        if pa.schema(self._delta.schema().to_arrow()).names != OF_TABLE.names:
            problem = "its columns were changed"
        elif self._delta.metadata().partition_columns != [DAY]:
            problem = "it is no longer partitioned by day"
        elif RETENTION_OF_POSITIONS in self._delta.metadata().configuration:
            problem = f"it has the property {RETENTION_OF_POSITIONS}, which removes positions"
        if problem:
            raise errors.ArchiveChanged(
                f"archive {self.name!r} at {self.location.path}: {problem}",
                f"undo that change; DeltaTable({self.location.path!r}).history() lists all changes",
            )

    def belongs_to(self, topic: Topic) -> bool:
        """Return whether it is the archive of this topic, and not of another one of its name."""
        return self.identity() == ArchivedTopic(topic.name, topic.id, topic.cluster_id)

    def epoch(self) -> int:
        """Return the epoch of its newest writer."""
        return self._delta.transaction_version(EPOCH) or 0

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the next offset of each partition that it knows."""
        return self._versions(NEXT, partitions)

    def firsts(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset at which the archive of each partition began."""
        return self._versions(FIRST, partitions)

    def rows(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return how many rows of each partition were archived, whatever became of them.

        Tables of earlier versions of instep do not know it.
        """
        return self._versions(ROWS, partitions)

    def _versions(self, prefix: str, partitions: Iterable[int]) -> dict[int, int]:
        found = {part: self._delta.transaction_version(f"{prefix}{part}") for part in partitions}
        return {part: version for part, version in found.items() if version is not None}

    def skipped(self) -> Ranges:
        """Return the ranges that somebody decided to leave out."""
        stored = self._delta.metadata().configuration.get(SKIPPED, "{}")
        return {int(p): [(a, b) for a, b in pairs] for p, pairs in json.loads(stored).items()}

    def files(self) -> list[DataFile]:
        """Return the files of this version."""
        found = pa.table(self._delta.get_add_actions(flatten=True)).to_pylist()
        return [_data_file(row) for row in found]

    def committed_at(self) -> datetime | None:
        """Return the time of its latest commit."""
        last = self._delta.history(1)
        return datetime.fromtimestamp(last[0]["timestamp"] / 1000, UTC) if last else None

    # --- commits ----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read the table as it is now.

        It is opened again: an object that only reads what was committed since would not notice
        that another table has taken the place of this one.
        """
        found = find(self.name, self.location)
        if found is None:
            raise errors.ArchiveGone(
                f"archive {self.name!r}: there is no longer a table at {self.location.path}"
            )
        if found.id != self.id:
            raise errors.ArchiveReplaced(
                f"archive {self.name!r}: the table at {self.location.path} was replaced by another"
            )
        self._delta = found._delta

    def take_epoch(self, begins: Mapping[int, int], mine: int = 0) -> int:
        """Take the next epoch, which fences older writers, and add partitions that it lacks.

        A writer that had an epoch before passes it, so that it does not fence a newer one.
        """

        def attempt() -> int:
            newest = self.epoch()
            if mine and newest > mine:
                raise fenced(self.name, newest, mine)
            self._commit([], {EPOCH: newest + 1} | self._added(begins))
            return newest + 1

        return self._retried(attempt)

    def add_partitions(self, epoch: int, begins: Mapping[int, int]) -> None:
        """Add new partitions of the topic."""

        def attempt() -> None:
            self.refuse_fenced(epoch)
            self._commit([], self._added(begins))

        self._retried(attempt)

    def _added(self, begins: Mapping[int, int]) -> dict[str, int]:
        known = self.positions(begins)
        new = {part: offset for part, offset in begins.items() if part not in known}
        rows = dict.fromkeys(new, 0)
        return _versions_of(NEXT, new) | _versions_of(FIRST, new) | _versions_of(ROWS, rows)

    def append(
        self,
        epoch: int,
        added: Sequence[DataFile],
        ranges: Mapping[int, tuple[int, int]],
        rows: Mapping[int, int],
    ) -> None:
        """Add files, and move the position of each partition from the start to the end of a range.

        `rows` is the number of rows of each partition in these files.

        Raise Fenced if a newer writer has taken over, StartAgain if a position is another one.
        """

        def attempt() -> None:
            self.refuse_fenced(epoch)
            positions = self.positions(ranges)
            if positions == {part: end for part, (_, end) in ranges.items()}:
                return  # an earlier attempt was committed, though its answer was lost
            if positions != {part: start for part, (start, _) in ranges.items()}:
                raise errors.StartAgain(
                    f"archive {self.name!r}: another task has archived the same partitions"
                )
            ends = {part: end for part, (_, end) in ranges.items()}
            counts = {part: before + rows[part] for part, before in self.rows(ranges).items()}
            self._commit(added, _versions_of(NEXT, ends) | _versions_of(ROWS, counts))

        self._retried(attempt)

    def replace(self, epoch: int, removed: Sequence[DataFile], added: Sequence[DataFile]) -> bool:
        """Replace files by others with the same rows; return False if some are gone already."""

        def attempt() -> bool:
            self.refuse_fenced(epoch)
            paths = {file.path for file in self.files()}
            if any(file.path not in paths for file in removed):
                return False
            self._commit(added, {}, removed)
            return True

        return self._retried(attempt)

    def skip(self, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Move positions over ranges that are lost, and note the ranges in the table."""

        def attempt() -> None:
            skipped = self.skipped()
            for part, bounds in ranges.items():
                skipped.setdefault(part, []).append(bounds)
            self._delta.alter.set_table_properties(
                {SKIPPED: json.dumps(skipped)},
                raise_if_not_exists=False,
                commit_properties=_properties(
                    self._added({part: start for part, (start, _) in ranges.items()})
                    | _versions_of(NEXT, {part: end for part, (_, end) in ranges.items()})
                ),
            )

        self._retried(attempt)

    def vacuum(self, retention_hours: int, *, execute: bool) -> list[str]:
        """Remove files that no version of the last hours needs, half-written ones included.

        With 0 hours, everybody who writes is fenced.
        """
        if execute and retention_hours == 0:
            return self._vacuum_now()
        return self._vacuum(retention_hours, execute=execute)

    def _vacuum_now(self) -> list[str]:
        """Remove every file that this version does not need.

        What a writer has written and not yet committed looks like such a file. So everybody who
        writes is fenced first. A new writer may begin at any time: only files that were there
        before are removed.
        """
        before = self._vacuum(0, execute=False)
        self.take_epoch({})
        unneeded = set(self._vacuum(0, execute=False))
        removed = [path for path in before if path in unneeded]
        filesystem = self.location.filesystem()
        for path in removed:
            with contextlib.suppress(FileNotFoundError):
                _translated(self.name, self.location, partial(filesystem.delete_file, path))
        return removed

    def _vacuum(self, retention_hours: int, *, execute: bool) -> list[str]:
        return _translated(
            self.name,
            self.location,
            lambda: self._delta.vacuum(
                retention_hours,
                dry_run=not execute,
                enforce_retention_duration=False,
                full=True,
            ),
        )

    def refuse_fenced(self, epoch: int) -> None:
        """Raise if a newer writer has taken over."""
        if (newest := self.epoch()) > epoch:
            raise fenced(self.name, newest, epoch)

    def _commit(
        self,
        added: Sequence[DataFile],
        versions: Mapping[str, int],
        removed: Sequence[DataFile] = (),
    ) -> None:
        """Commit to exactly the version that was last read."""
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, False, now_ms, file.size, {DAY: file.day}) for file in removed
        ]
        # Readers of changes do not get the rows of a compaction again.
        actions += [_add_action(file, is_change=not removed) for file in added]
        self._delta.create_write_transaction(
            actions,
            "append",
            self._delta.schema(),
            partition_by=[DAY],
            commit_properties=_properties(versions),
        )

    def _retried(self, attempt: Callable[[], Result]) -> Result:
        """Attempt a commit, again on the newest version as long as others are faster."""
        deadline = time.monotonic() + COMMIT_PATIENCE_S
        while True:
            self.refresh()
            version = self.version
            try:
                result = _translated(self.name, self.location, attempt)
            except _Conflict as conflict:
                self.refresh()
                if self.version == version or time.monotonic() > deadline:
                    raise _unusable(self.name, self.location, conflict) from conflict
                time.sleep(random.uniform(0, PAUSE_MAX_S))  # noqa: S311 - not for secrets
            else:
                self.refresh()
                return result


class _Conflict(Exception):
    """A commit was refused: another one was faster, or the commit could not be written."""


def find(name: str, location: Location) -> ArchiveTable | None:
    """Return the table of an archive; None if there is none at its location."""

    def opened() -> DeltaTable | None:
        try:
            return DeltaTable(location.path, storage_options=location.options or None)
        except TableNotFoundError:
            return None

    delta = _translated(name, location, opened)
    return None if delta is None else ArchiveTable(name, location, delta)


def require(name: str, location: Location) -> ArchiveTable:
    """Return the table of an archive; raise if there is none."""
    found = find(name, location)
    if found is None:
        raise errors.SettingsError(
            f"archive {name!r} has no table at {location.path}",
            f"create it by running the archive: instep run {name}; or correct `path`",
        )
    return found


def create(name: str, location: Location, identity: ArchivedTopic) -> ArchiveTable:
    """Create the table of an archive."""
    properties: dict[str, str | None] = {
        TOPIC: identity.topic,
        TOPIC_ID: identity.topic_id,
        CLUSTER_ID: identity.cluster_id,
        **LOG_RETENTION,
    }

    def made() -> DeltaTable:
        return DeltaTable.create(
            location.path,
            OF_TABLE,
            partition_by=[DAY],
            name=name,
            configuration=properties,
            storage_options=location.options or None,
            raise_if_key_not_exists=False,
        )

    try:
        return ArchiveTable(name, location, _translated(name, location, made))
    except _Conflict:  # another run creates it at the same time
        return require(name, location)


def fenced(name: str, newest: int, mine: int) -> errors.Fenced:
    """Return the error for a writer that a newer run has replaced."""
    return errors.Fenced(
        f"archive {name!r} was started elsewhere: epoch {newest} is newer than {mine}",
        f"the newer run continues, and nothing is lost; to take over from it: instep run {name}",
    )


def _translated(name: str, location: Location, call: Callable[[], Result]) -> Result:
    """Call deltalake; raise its errors as ours. Its texts are masked: they may quote an address."""
    try:
        return call()
    except CommitFailedError as error:
        raise _Conflict(str(error)) from error
    except DeltaProtocolError as error:
        raise errors.ArchiveChanged(
            f"archive {name!r}: the table at {location.path} can no longer be used:"
            f" {masked_text(str(error))}",
        ) from error
    except (DeltaError, OSError) as error:
        raise _unusable(name, location, error) from error


def _unusable(name: str, location: Location, error: Exception) -> errors.ArchiveUnusable:
    said = " ".join(masked_text(str(error)).split())
    for secret in location.options.values():
        said = said.replace(secret, STARS) if secret else said
    said = said[:300]
    return errors.ArchiveUnusable(
        f"archive {name!r}: the table at {location.path} cannot be read or written: {said}"
    )


def _add_action(file: DataFile, *, is_change: bool) -> AddAction:
    return AddAction(
        file.path, file.size, {DAY: file.day}, file.modified_ms, is_change, file.statistics()
    )


def _properties(versions: Mapping[str, int]) -> CommitProperties:
    return CommitProperties(
        max_commit_retries=0,
        app_transactions=[Transaction(name, version) for name, version in versions.items()],
    )


def _versions_of(prefix: str, offsets: Mapping[int, int]) -> dict[str, int]:
    return {f"{prefix}{part}": offset for part, offset in offsets.items()}


def _data_file(row: Mapping[str, Any]) -> DataFile:
    day = row.get(f"partition.{DAY}")
    return DataFile(
        row["path"],
        row["size_bytes"],
        None if day is None else str(day),
        row.get("num_records") or 0,
        row["modification_time"],
        _stored_bounds(row, "partition"),
        _stored_bounds(row, "offset"),
        _stored_bounds(row, "timestamp_ms"),
    )


def _stored_bounds(row: Mapping[str, Any], column: str) -> tuple[int, int]:
    """Return the bounds of a column; if the table does not know them, everything is possible."""
    lowest, highest = row.get(f"min.{column}"), row.get(f"max.{column}")
    if lowest is None or highest is None:
        return -(2**63), 2**63 - 1
    return lowest, highest
