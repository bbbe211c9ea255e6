"""The Parquet files of an archive: where they are, how they are written and read."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from instep import errors
from instep.archive.columns import DAY, IN_FILES

NO_DAY = "__HIVE_DEFAULT_PARTITION__"  # what every reader of Delta tables takes for null
ROW_GROUP_ROWS = 100_000
COMPRESSION = "zstd"
COMPRESSION_LEVEL = 1
SCHEME = "://"
# the variables from which deltalake takes addresses and credentials of object stores
STORE_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")
# It lets one writer overwrite the commit of another.
UNSAFE_VARIABLE = "AWS_S3_ALLOW_UNSAFE_RENAME"


class Location(msgspec.Struct, frozen=True):
    """Where a table is. `options` may contain credentials: never show them."""

    path: str
    options: dict[str, str] = {}

    @property
    def is_local(self) -> bool:
        """Return whether it is a folder of this machine."""
        return SCHEME not in self.path

    @property
    def full_path(self) -> str:
        """Return the path from the root of this machine, or the URL."""
        return str(Path(self.path).absolute()) if self.is_local else self.path

    def filesystem(self) -> pa_fs.FileSystem:
        """Return the file system whose root is the table's folder."""
        if self.is_local:
            return pa_fs.SubTreeFileSystem(self.path, pa_fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return pa_fs.PyFileSystem(DeltaStorageHandler(self.path, self.options))


def locate(path: str, environ: Mapping[str, str] = os.environ) -> Location:
    """Return the location of a path, with the credentials that the environment has for it."""
    if SCHEME not in path:
        return Location(path)
    if environ.get(UNSAFE_VARIABLE):
        raise errors.SettingsError(
            f"{UNSAFE_VARIABLE} is set: two writers could overwrite each other's commits in {path}",
            f"unset {UNSAFE_VARIABLE}: instep needs a store with conditional writes",
        )
    options = {name: value for name, value in environ.items() if name.startswith(STORE_VARIABLES)}
    return Location(path, options)


class DataFile(msgspec.Struct, frozen=True):
    """One Parquet file of a table, with what the table knows about its rows."""

    path: str
    size: int
    day: str | None
    rows: int
    modified_ms: int
    partitions: tuple[int, int]  # the lowest and the highest
    offsets: tuple[int, int]
    timestamps: tuple[int, int]

    def statistics(self) -> str:
        """Return the statistics as Delta tables have them."""
        bounds = (self.partitions, self.offsets, self.timestamps)
        lowest, highest = zip(*bounds, strict=True)
        names = ("partition", "offset", "timestamp_ms")
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": dict(zip(names, lowest, strict=True)),
                "maxValues": dict(zip(names, highest, strict=True)),
                "nullCount": dict.fromkeys(names, 0),
            }
        )

    def may_hold(self, partition: int, start: int, end: int) -> bool:
        """Return whether the file may have records of this range of offsets."""
        return (
            self.partitions[0] <= partition <= self.partitions[1]
            and self.offsets[0] < end
            and self.offsets[1] >= start
        )


def write(location: Location, day: str | None, rows: pa.Table) -> DataFile:
    """Write rows of one day to a new file, which the table does not know yet."""
    folder = f"{DAY}={day or NO_DAY}"
    path = f"{folder}/{uuid.uuid4().hex}.parquet"
    filesystem = location.filesystem()
    if location.is_local:
        filesystem.create_dir(folder, recursive=True)
    try:
        size = _write(filesystem, path, rows)
    except OSError:
        # A full disk would stay full if every attempt left a part of a file behind.
        with contextlib.suppress(OSError):
            filesystem.delete_file(path)
        raise
    if location.is_local:
        _sync(Path(location.path, path))
    return DataFile(
        path,
        size,
        day,
        rows.num_rows,
        int(time.time() * 1000),
        _bounds(rows, "partition"),
        _bounds(rows, "offset"),
        _bounds(rows, "timestamp_ms"),
    )


def _write(filesystem: pa_fs.FileSystem, path: str, rows: pa.Table) -> int:
    """Write a file; return its size."""
    with filesystem.open_output_stream(path) as stream:
        pq.write_table(
            rows,
            stream,
            row_group_size=ROW_GROUP_ROWS,
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=["partition", "timestamp_type", "key"],
            write_statistics=["partition", "offset", "timestamp_ms"],
        )
        return int(stream.tell())


def read(
    location: Location,
    files: Iterable[DataFile],
    where: pc.Expression | None = None,
    columns: Sequence[str] = tuple(IN_FILES.names),
) -> pa.Table:
    """Return rows and columns of files: all rows, or those that an expression selects."""
    paths = [file.path for file in files]
    if not paths:
        return IN_FILES.empty_table().select(list(columns))
    found = pq.ParquetDataset(
        paths,
        filesystem=location.filesystem(),
        filters=where,
        partitioning=None,
        schema=IN_FILES,
    )
    return found.read(columns=list(columns))


def remove(location: Location, files: Sequence[DataFile]) -> None:
    """Remove files that the table does not know, as far as that is possible."""
    filesystem = location.filesystem()
    for file in files:
        with contextlib.suppress(OSError):
            filesystem.delete_file(file.path)


def _bounds(rows: pa.Table, column: str) -> tuple[int, int]:
    found: Any = pc.min_max(rows.column(column))
    return found["min"].as_py(), found["max"].as_py()


def _sync(path: Path) -> None:
    """Bring a file and its folder to the disk, so that a commit never refers to a lost file."""
    for one in (path, path.parent):
        opened = os.open(one, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
