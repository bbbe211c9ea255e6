"""What `instep relay run` shows while it runs: a bar on a terminal, else a line at intervals."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from instep import terminal
from instep.cli import output

if TYPE_CHECKING:
    from instep.relay.session import RelayProgress

SAY_INTERVAL_S = 10.0
BAR_INTERVAL_S = 0.25


class RelayReport:
    """Shows the progress of a relay from a separate thread. Only a run that ends has a bar."""

    def __init__(
        self, name: str, progress: RelayProgress, stop: threading.Event, *, once: bool
    ) -> None:
        self._name, self._progress, self._stop = name, progress, stop
        self._has_bar = once and terminal.is_live(sys.stderr)
        self._line = terminal.ProgressLine(sys.stderr)
        self._ended = threading.Event()
        self._lock = threading.Lock()  # of the terminal: messages come from other threads
        target = self._draw if self._has_bar else self._say_now_and_then
        self._thread = threading.Thread(target=target, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def say(self, text: str) -> None:
        """Print a message above the bar."""
        with self._lock:
            self._line.clear()
            output.say(text)

    def end(self) -> None:
        """Remove the bar, and end the thread."""
        self._ended.set()
        if self._has_bar:
            self._thread.join()
        self._line.clear()

    def _draw(self) -> None:
        while not self._ended.wait(BAR_INTERVAL_S):
            with self._lock:
                self._line.update(f"{self._name}: publishing", self._progress.rows, None, "rows")

    def _say_now_and_then(self) -> None:
        said: tuple[str, int] = ("", 0)
        while not self._stop.wait(SAY_INTERVAL_S) and not self._ended.is_set():
            now = (self._progress.state, self._progress.rows)
            if now != said and now[1]:
                self.say(f"{self._name}: {now[0]}; {now[1]:,} rows published")
            said = now
