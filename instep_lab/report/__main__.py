"""Writes docs/lab from a run: `python -m instep_lab.report RUN docs/lab`.

The page quotes one complete run of all claims at one commit; anything else is refused, unless
`--draft` is given. RUN may also be the archive that an earlier call wrote: after a change of the
page's form, `python -m instep_lab.report docs/lab/run.tar.xz docs/lab` writes it again from the
same numbers. Plots of an older run are removed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from instep import errors
from instep_lab import claims, store
from instep_lab.report import archive, contents, markdown
from instep_lab.report.contents import LabReport

CHANGED = "with local changes"


def main(arguments: list[str]) -> str:
    """Write the pages; return an error message, or an empty string."""
    parser = argparse.ArgumentParser(prog="python -m instep_lab.report", exit_on_error=False)
    parser.add_argument("run", metavar="RUN", help="id or folder of a run, or its archive")
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--draft", action="store_true", help="accept an incomplete run")
    try:
        given = parser.parse_args(arguments)
    except (argparse.ArgumentError, SystemExit):
        return parser.format_usage().strip()
    try:
        with _opened(given.run) as (run, packed, kept):
            report = contents.gather(run, claims.ALL, kept)
            if not given.draft and (refusal := unpublishable(report, list(claims.ALL))):
                return f"run {report.run.id} cannot be published: {refusal}"
            _write(given.folder, report, packed)
    except (errors.InstepError, OSError) as error:
        return str(error)
    return ""


def unpublishable(report: LabReport, known: list[str]) -> str:
    """Return why the docs must not quote a run; an empty string if they may."""
    commit = report.run.commit
    if commit is None:
        return "its commit is not known; run the lab in a checkout"
    if commit.endswith(CHANGED):
        return f"it ran {commit}; commit first"
    for section in report.sections:
        if section.result is None or not section.result.ended:
            return f"{section.id} has not ended; instep lab run --resume completes the run"
        if section.result.commit != commit:
            return (
                f"{section.id} ran at commit {section.result.commit}, the run began at {commit};"
                " run all claims at one commit"
            )
    missing = [id_ for id_ in known if id_ not in report.run.claims]
    if missing:
        return f"it does not have {', '.join(missing)}; run all claims"
    removed = [id_ for id_ in report.run.claims if id_ not in known]
    if removed:
        return f"this release does not have {', '.join(removed)}; run the lab again"
    return ""


@contextmanager
def _opened(name: str) -> Iterator[tuple[Path, bytes, int]]:
    """Open a run; yield its folder, its archive, and the operations that the archive keeps."""
    if Path(name).is_file():
        with tempfile.TemporaryDirectory(prefix="instep-lab-") as folder:
            run, kept = archive.unpack(Path(name), Path(folder))
            yield run, Path(name).read_bytes(), kept
        return
    run = store.find(store.folder(), name)
    yield run, *archive.pack(run)


def _write(folder: Path, report: LabReport, packed: bytes) -> None:
    for old in folder.glob("plots/*.svg"):
        old.unlink()
    for name, text in markdown.pages(report).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / archive.NAME).write_bytes(packed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or 0)
