"""Run the pipelines of a settings file up to the end of the log, and print their progress.

python examples/run_pipelines.py instep.toml
"""

from __future__ import annotations

import sys

import instep


def show(progress: instep.PipelineProgress) -> None:
    """Print one line for each report: once a second, and at every change of state."""
    print(f"{progress.pipeline} {progress.state}: {progress.applied} applied, lag {progress.lag}")


def main(file: str) -> None:
    """Create what the pipelines lack in their databases, and run them."""
    for pipeline, statements in instep.init(file).items():
        print(f"{pipeline}: {len(statements)} statements executed")
    for ended in instep.run(file, once=True, on_progress=show):
        print(f"{ended.pipeline}: {ended.applied} of {ended.records} records applied")


if __name__ == "__main__":
    main(sys.argv[1])
