"""Run pipelines in a thread of a service that has its own life, and end them with it.

The service here waits for the end of its standard input: press Ctrl-D.

python examples/embed_in_service.py instep.toml
"""

from __future__ import annotations

import sys
import threading

import instep


class Follower:
    """Runs the pipelines of a settings file in a thread, and knows how far they are."""

    def __init__(self, file: str) -> None:
        self.latest: dict[str, instep.PipelineProgress] = {}
        self.error: instep.errors.InstepError | None = None
        self._file = file
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            instep.run(self._file, on_progress=self._report, stop=self._stop)
        except instep.errors.InstepError as error:
            self.error = error

    def _report(self, progress: instep.PipelineProgress) -> None:
        self.latest[progress.pipeline] = progress


def main(file: str) -> None:
    """Serve until the input ends, and say what was applied meanwhile."""
    instep.init(file)
    with Follower(file) as follower:
        for _ in sys.stdin:
            for progress in follower.latest.values():
                print(f"{progress.pipeline}: {progress.applied} applied", flush=True)
    for progress in follower.latest.values():
        print(f"{progress.pipeline} {progress.state}: {progress.applied} applied")
    if follower.error:
        sys.exit(str(follower.error))


if __name__ == "__main__":
    main(sys.argv[1])
