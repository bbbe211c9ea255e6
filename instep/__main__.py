"""`instep` and `python -m instep`."""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    # Until the command line is loaded, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from instep import cli

    cli.main()


if __name__ == "__main__":
    main()
