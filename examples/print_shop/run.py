"""Start the print shop: a print system, a contract system, and instep between them.

python examples/print_shop/run.py

It opens a page on which both systems are shown side by side. Ctrl-C stops everything.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import contract_system
import print_system
import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse

PR_SET_PDEATHSIG = 1
SETTINGS = """\
{kafka}
[relays.print-relay]
source = "sqlite:///{folder}/print.db"
topic = "{topic}"

[pipelines.contracts]
topic = "{topic}"
target = "sqlite:///{folder}/contracts.db"
table = "contract_document"
key = "doc_no"

[pipelines.contracts.event]
document = "doc_id"
status = "status"
order = "version"

[pipelines.contracts.columns]
title = {{ field = "title", type = "text" }}
print_status = "status"
print_version = "version"
changed_ms = {{ field = "changed_ms", type = "double" }}
"""


def main() -> None:
    """Start everything, and serve the page until Ctrl-C."""
    parser = argparse.ArgumentParser(description="A print system and a contract system, in step.")
    parser.add_argument("--port", type=int, default=8080, help="port of the page on localhost")
    parser.add_argument("--bootstrap", help="your brokers; default: a broker on this machine")
    parser.add_argument("--topic", default="print-status", help="topic between the two systems")
    arguments = parser.parse_args()
    # A terminal that closes, and a service manager, end it like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="print-shop-")))
        kafka = f'[kafka]\nbootstrap = "{arguments.bootstrap}"\n' if arguments.bootstrap else ""
        file = folder / "instep.toml"
        file.write_text(
            SETTINGS.format(kafka=kafka, folder=folder, topic=arguments.topic), encoding="utf-8"
        )
        if not arguments.bootstrap:
            resources.enter_context(local_broker(folder))
        instep(
            folder, "topics", "create", arguments.topic, "-p", "2", "--if-not-exists", "--execute"
        )
        instep(folder, "relay", "init")
        instep(folder, "init")
        resources.enter_context(process(folder, "relay", "run"))
        resources.enter_context(process(folder, "run"))
        system = print_system.PrintSystem(folder / "print.db")
        for title in ("Rental contract", "Loan contract", "Insurance"):
            system.add(title)
        print(f"open http://127.0.0.1:{arguments.port} (Ctrl-C stops everything)", flush=True)
        serve(application(system, folder / "contracts.db"), arguments.port)


def application(system: print_system.PrintSystem, contracts: Path) -> FastAPI:
    """Return the page, and the two systems below it."""
    app = FastAPI(title="Print shop")
    app.mount("/print", print_system.application(system))
    app.mount("/contracts", contract_system.application(contracts))
    text = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")

    @app.get("/", response_class=HTMLResponse)
    def page() -> str:
        return text

    return app


def serve(app: FastAPI, port: int) -> None:
    """Serve until Ctrl-C."""
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning")
    uvicorn.Server(config).run()


def instep(folder: Path, *arguments: str) -> None:
    """Run a command of instep; end if it fails."""
    done = subprocess.run([sys.executable, "-m", "instep", *arguments], cwd=folder, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def end_with_parent() -> None:
    """Let a process end if this one is killed. Linux only; elsewhere it would go on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def local_broker(folder: Path) -> Iterator[None]:
    """Stop the broker on this machine at the end, unless it was running before."""
    status = [sys.executable, "-m", "instep", "up", "status", "--json"]
    before = subprocess.run(status, cwd=folder, capture_output=True, check=False)
    try:
        yield
    finally:
        if not json.loads(before.stdout or b"{}").get("servers"):
            instep(folder, "down")


@contextmanager
def process(folder: Path, *arguments: str) -> Iterator[None]:
    """Run a command of instep in the background, and stop it at the end."""
    running = subprocess.Popen(
        [sys.executable, "-m", "instep", *arguments],
        cwd=folder,
        start_new_session=True,  # Ctrl-C reaches us first; we stop it in order
        preexec_fn=end_with_parent,
    )
    try:
        yield
    finally:
        running.terminate()
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped")
