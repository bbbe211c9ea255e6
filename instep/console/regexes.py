"""Search with a viewer's regular expressions, in a process that can be killed.

Some expressions take years for a short text. In the console's own process, such a search could
not be ended: it would hold Python's lock, and with it all pages. Refusing dangerous expressions
is no way out either: neither nested repetitions nor long texts are needed for a slow one.
"""

from __future__ import annotations

import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from instep import errors
from instep.kafka.admin.filters import Search

SEARCH_S = 5.0  # in one text
START_S = 10.0  # of the process, on a busy machine
CPU_S = 20  # for all texts of a page; the process ends then, even if the console is gone
PROGRAM = """
import re, resource, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
asked, answers = sys.stdin.buffer, sys.stdout.buffer
def read():
    return asked.read(int.from_bytes(asked.read(4), "big")).decode("utf-8", "surrogatepass")
pattern = re.compile(read())
while True:
    answers.write(b"1" if pattern.search(read()) else b"0")
    answers.flush()
"""


class RegexProcess:
    """A process that searches one expression in one text after the other."""

    def __init__(self, pattern: str) -> None:
        """Start it; raise re.error for a wrong expression."""
        re.compile(pattern)
        self._pattern, self._patience_s = pattern, START_S
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PROGRAM, str(CPU_S)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._answers = select.poll()
        assert self._process.stdout is not None
        self._answers.register(self._process.stdout, select.POLLIN)
        self._send(pattern)

    def search(self, text: str) -> bool:
        """Return whether the expression matches anywhere in a text."""
        assert self._process.stdout is not None
        self._send(text)
        ready = self._answers.poll(self._patience_s * 1000)
        answer = self._process.stdout.read(1) if ready else b""
        if not answer:
            self._process.kill()
            raise errors.SettingsError(
                f"the search for {self._pattern!r} was ended: it takes too long",
                "write an expression without repetitions of repetitions, or choose fewer records",
            )
        self._patience_s = SEARCH_S
        return answer == b"1"

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what was not sent is of no use any more
                pipe.close()

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        sent = text.encode("utf-8", "surrogatepass")
        with suppress(BrokenPipeError):  # a process that has ended gives no answer
            self._process.stdin.write(len(sent).to_bytes(4, "big") + sent)
            self._process.stdin.flush()


class Regexes:
    """The expressions of one search."""

    def __init__(self) -> None:
        self._processes: list[RegexProcess] = []

    def compile(self, pattern: str) -> Search:
        """Return a function that tells whether a text has a match."""
        process = RegexProcess(pattern)
        self._processes.append(process)
        process.search("")  # wait until it runs: from now on, only searches take time
        return process.search

    def end(self) -> None:
        """End what was started."""
        for process in self._processes:
            process.end()


@contextmanager
def opened() -> Iterator[Regexes]:
    """Yield expressions for one search, and end their processes afterwards."""
    found = Regexes()
    try:
        yield found
    finally:
        found.end()
