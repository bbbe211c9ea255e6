"""A run as one compressed file beside the published page, so that readers can check its numbers.

Verdicts, settings and timelines are complete. Of every history the first operations are kept: as
many as fit into the size limit. The same run gives the same bytes.
"""

from __future__ import annotations

import io
import itertools
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from instep import errors
from instep_lab import store

NAME = "run.tar.xz"
NOTE_FILE = "archive.json"
BYTES_MAX = 2_000_000
# Tried one after the other until the archive is small enough.
OPERATIONS_KEPT = (1_000, 300, 100, 30, 10, 0)
COMPLETE = (store.VERDICT_FILE, store.SETTINGS_FILE, store.TIMELINE_FILE)


class ArchiveNote(msgspec.Struct, frozen=True):
    """What an archive leaves out: each history has at most this many operations."""

    operations_kept: int


def pack(run: Path, most: int = BYTES_MAX) -> tuple[bytes, int]:
    """Return the archive of a run, and how many operations of each history it has."""
    for kept in OPERATIONS_KEPT:
        packed = _pack(run, kept)
        if len(packed) <= most:
            return packed, kept
    raise errors.InstepError(
        f"the archive of {run} has {len(packed):,} bytes without its histories, and the limit is"
        f" {most:,}"
    )


def unpack(file: Path, into: Path) -> tuple[Path, int]:
    """Unpack an archive; return the run's folder, and how many operations its histories have."""
    try:
        with tarfile.open(file) as archive:
            archive.extractall(into, filter="data")
    except (OSError, lzma.LZMAError, tarfile.TarError) as error:
        raise errors.InstepError(f"{file} cannot be unpacked: {error}") from error
    notes = sorted(into.glob(f"*/{NOTE_FILE}"))
    if len(notes) != 1:
        raise errors.InstepError(f"{file} is not the archive of a lab run: it has no {NOTE_FILE}")
    note = msgspec.json.decode(notes[0].read_bytes(), type=ArchiveNote)
    return notes[0].parent, note.operations_kept


def _pack(run: Path, kept: int) -> bytes:
    packed = io.BytesIO()
    name = store.read_run(run).id
    with tarfile.open(fileobj=packed, mode="w:xz", preset=6) as archive:
        for path, content in _contents(run, kept):
            entry = tarfile.TarInfo(f"{name}/{path}")  # of nobody, from 1970
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _contents(run: Path, kept: int) -> Iterator[tuple[str, bytes]]:
    yield NOTE_FILE, msgspec.json.encode(ArchiveNote(kept)) + b"\n"
    for name in (store.RUN_FILE, store.BROKERS_FILE):
        if (run / name).is_file():
            yield name, (run / name).read_bytes()
    for claim in store.read_run(run).claims:
        for name in COMPLETE:
            if (run / claim / name).is_file():
                yield f"{claim}/{name}", (run / claim / name).read_bytes()
        if not kept:
            continue
        for history in sorted((run / claim).glob("history-*.jsonl")):
            with history.open("rb") as lines:
                yield f"{claim}/{history.name}", b"".join(itertools.islice(lines, kept))
