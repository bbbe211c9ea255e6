"""Writes docs/lab from a run: `python -m instep_lab.report RUN docs/lab`.

Plots of an older run are removed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from instep import errors
from instep_lab import claims, store
from instep_lab.report import contents, markdown


def main(arguments: list[str]) -> str:
    if len(arguments) != 2:
        return "usage: python -m instep_lab.report RUN FOLDER"
    run, folder = arguments[0], Path(arguments[1])
    try:
        pages = markdown.pages(contents.gather(store.find(store.folder(), run), claims.ALL))
        for old in folder.glob("plots/*.svg"):
            old.unlink()
        for name, text in pages.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    except (errors.InstepError, OSError) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or 0)
