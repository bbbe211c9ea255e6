"""The source of the lab, by ids that are the same in every repository that contains it.

A commit gets another id when it is rebased. The tree of a folder does not: it is a hash of the
names and contents of its files, and `git rev-parse COMMIT:instep_lab` prints it. It is computed
here from the files, so that neither git nor the history is needed.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent
# What no experiment uses: the commands, the pages, and the texts that are beside the claims.
NO_EXPERIMENTS = (
    "__main__.py",
    "chooser.py",
    "commands.py",
    "outdated.py",
    "report/*",
    "seeds.py",
    "sources.py",
    "source_tree.py",
    "statements.py",
)

Files = Mapping[str, str]  # the id of each file, by its path below the folder


def files(root: Path = ROOT) -> dict[str, str]:
    """Return the id of each file of a folder as git computes it, without what Python caches."""
    return {
        path.relative_to(root).as_posix(): _id("blob", path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def tree(found: Files) -> str:
    """Return the id of the folder with these files, none of which is executable."""
    folders: dict[str, dict[str, str]] = {}
    entries: list[tuple[str, bytes]] = []
    for path, id_ in found.items():
        name, _, rest = path.partition("/")
        if rest:
            folders.setdefault(name, {})[rest] = id_
        else:
            entries.append((name, _entry("100644", name, id_)))
    for name, inner in folders.items():
        # git sorts a folder as if its name ended with a slash
        entries.append((f"{name}/", _entry("40000", name, tree(inner))))
    content = b"".join(entry for _, entry in sorted(entries, key=lambda one: one[0].encode()))
    return _id("tree", content)


def changed_experiments(then: Files, now: Files) -> list[str]:
    """Return the files that differ and that an experiment may use."""
    return sorted(
        path
        for path in then.keys() | now.keys()
        if then.get(path) != now.get(path) and not is_no_experiment(path)
    )


def is_no_experiment(path: str) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in NO_EXPERIMENTS)


def _entry(mode: str, name: str, id_: str) -> bytes:
    return f"{mode} {name}\0".encode() + bytes.fromhex(id_)


def _id(kind: str, content: bytes) -> str:
    digest = hashlib.sha1(f"{kind} {len(content)}\0".encode(), usedforsecurity=False)
    digest.update(content)
    return digest.hexdigest()
