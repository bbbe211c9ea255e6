"""A command on its own terminal: what it draws, its input, and how it leaves the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Self

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# colour and title, line breaks, a carriage return, C1 controls, directions, separators, private
# use, a zero width
HOSTILE = (
    "\x1b[2J\x1b[31mred\x1b]0;owned\x07\r\ncontracts: ready\t\x08\x7f\x80\x9b31m"
    "\u202egnp.exe\u2066\u2028\u2029\ue000\u200b\U000e0041"
)


class OnTerminal:
    """A run of `instep ...` with stdin, stdout and stderr on one terminal."""

    def __init__(
        self, folder: Path, *arguments: str, columns: int = 100, lines: int = 30, **environment: str
    ) -> None:
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        surroundings = {**os.environ, "TERM": "xterm", **environment}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            if name not in environment:
                surroundings.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "instep", *arguments],
            cwd=folder,
            env=surroundings,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.drawn = ""

    @property
    def text(self) -> str:
        """What was drawn, without escapes.

        Lines that were drawn over each other follow each other.
        """
        return ESCAPE.sub("", self.drawn).replace("\r", "\n")

    def wait_for(self, pattern: str, patience_s: float = 90.0) -> str:
        """Read until the text has this pattern, and return the match."""
        deadline = time.monotonic() + patience_s
        while not (found := re.search(pattern, self.text, re.MULTILINE)):
            assert self._read(0.1) or self._process.poll() is None, (
                f"ended without {pattern!r}:\n{self.text}"
            )
            assert time.monotonic() < deadline, f"waited for {pattern!r}:\n{self.text}"
        return found.group()

    def end(self, number: signal.Signals = signal.SIGINT, patience_s: float = 90.0) -> int:
        """Send the signal, read the rest, and return the exit status."""
        self._process.send_signal(number)
        return self.rest(patience_s)

    def rest(self, patience_s: float = 90.0) -> int:
        """Read to the end and return the exit status."""
        deadline = time.monotonic() + patience_s
        while self._process.poll() is None:
            self._read(0.1)
            assert time.monotonic() < deadline, f"it does not end:\n{self.text}"
        while self._read(0.1):
            pass
        return self._process.returncode

    def _read(self, patience_s: float) -> bool:
        if not select.select([self._mine], [], [], patience_s)[0]:
            return False
        try:
            found = os.read(self._mine, 65536)
        except OSError:  # the other side is closed
            return False
        self.drawn += found.decode("utf-8", "replace")
        return bool(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._mine)
