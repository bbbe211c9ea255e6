"""`instep` and `python -m instep`."""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    # until the command line is read, Ctrl-C just ends the process: nothing was begun, and a traceback would help nobody
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from instep import cli

    cli.main()


if __name__ == "__main__":
    main()
