"""Count the status changes of a print system per minute, and plot them.

python examples/kpi_dashboard/run.py

It publishes an hour of status events to a broker on this machine, some of them late, twice or out
of order, has instep count them, and writes `kpis.svg`. It needs the extras `spark` and `report`.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import matplotlib as mpl
from matplotlib import dates
from matplotlib.figure import Figure

import instep

SETTINGS = """\
[kafka]
bootstrap = "{bootstrap}"

[kpis.print_kpis]
topic = "{topic}"
target = "sqlite:///{folder}/kpis.db"
table = "print_kpis"
durations = {{ printing = ["QUEUED", "PRINTED"] }}

[kpis.print_kpis.event]
document = "doc_id"
status = "status"
order = "version"
at = "updated_at"
"""
COUNTS = "SELECT minute, count FROM print_kpis WHERE kind = 'status' AND name = ? ORDER BY minute"
TIMES = "SELECT minute, p50_ms, p95_ms FROM print_kpis WHERE kind = 'duration' ORDER BY minute"
JOBS = 1_500


def main() -> None:
    """Publish, count and plot."""
    parser = argparse.ArgumentParser(description="Count status changes per minute, and plot them.")
    parser.add_argument("--bootstrap", help="your brokers; default: a broker on this machine")
    parser.add_argument("--topic", default="print-kpis", help="topic of the events")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the files are written")
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    bootstrap = arguments.bootstrap or local_broker()
    settings = folder / "kpis.toml"
    settings.write_text(
        SETTINGS.format(bootstrap=bootstrap, topic=arguments.topic, folder=folder), encoding="utf-8"
    )
    command("--config", str(settings), "topics", "create", arguments.topic, "-p", "2")
    published = publish(bootstrap, arguments.topic)
    instep.init(settings)
    [ended] = instep.run(settings, once=True, on_message=lambda _: None)
    plot(folder / "kpis.db", folder / "kpis.svg")
    print(f"{published:,} events published; {ended.applied:,} counted, {ended.repeated:,} repeated")
    print(f"the plot is in {folder / 'kpis.svg'}")


def local_broker() -> str:
    """Start a broker that stays until `instep down`; return its address."""
    started = subprocess.run(
        [sys.executable, "-m", "instep", "up", "--json"], check=True, capture_output=True, text=True
    )
    servers = {one["name"]: one["address"] for one in json.loads(started.stdout)["servers"]}
    return str(servers["kafka"])


def command(*arguments: str) -> None:
    """Run a command of instep that changes something."""
    options = ("--if-not-exists", "--execute")
    subprocess.run([sys.executable, "-m", "instep", *arguments, *options], check=True)


def publish(bootstrap: str, topic: str) -> int:
    """Publish the last hour of a print system, as a network that is not perfect delivers it."""
    chance = random.Random(1)  # noqa: S311 - an example needs no secrets
    begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)
    events: list[tuple[datetime, instep.StatusEvent]] = []
    for job in range(JOBS):
        at = begin + timedelta(minutes=min(59, abs(chance.gauss(25, 15))))
        for version, status in enumerate(("QUEUED", "PRINTING", "PRINTED"), start=1):
            event = instep.StatusEvent(document=f"J-{job}", status=status, version=version, at=at)
            arrivals = 2 if chance.random() < 0.05 else 1
            for _ in range(arrivals):
                late = chance.expovariate(0.2) if chance.random() < 0.9 else chance.uniform(60, 600)
                events.append((at + timedelta(seconds=late), event))
            at += timedelta(seconds=chance.expovariate(1 / (4 + job / 100)))
    with instep.Publisher(bootstrap, topic, source="print-system") as publisher:
        for _, event in sorted(events, key=lambda pair: pair[0]):
            publisher.send(event)
    return len(events)


def plot(database: Path, file: Path) -> None:
    """Plot the KPI rows: counts above, durations below."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    with sqlite3.connect(database) as opened:
        for status in ("QUEUED", "PRINTED"):
            minutes, counts = zip(*opened.execute(COUNTS, [status]), strict=True)
            above.plot([time(one) for one in minutes], counts, label=status)
        minutes, middle, most = zip(*opened.execute(TIMES), strict=True)
    below.plot([time(one) for one in minutes], [one / 1_000 for one in middle], label="p50")
    below.plot([time(one) for one in minutes], [one / 1_000 for one in most], label="p95")
    above.set_ylabel("documents per minute")
    below.set_ylabel("QUEUED to PRINTED, s")
    below.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
    above.legend()
    below.legend()
    with mpl.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(file)


def time(text: str) -> datetime:
    """Return a minute as the table has it."""
    return datetime.fromisoformat(text)


if __name__ == "__main__":
    main()
