"""An object store on this machine, as archives use one."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_until

BUCKET = "archives"
RUNNING = re.compile(r"Running on (http://[\d.:]+)")


@contextmanager
def object_store(log: Path) -> Iterator[dict[str, str]]:
    """Start an S3 server with a bucket; return the environment of a process that uses it."""
    arguments = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("wb") as opened, subprocess.Popen(arguments, stderr=opened) as server:

        def is_running() -> bool:
            assert server.poll() is None, log.read_text(encoding="utf-8")
            return RUNNING.search(log.read_text(encoding="utf-8")) is not None

        try:
            wait_until(is_running, "the object store")
            [url] = RUNNING.findall(log.read_text(encoding="utf-8"))
            made = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
            urllib.request.urlopen(made).close()
            yield {
                "AWS_ENDPOINT_URL": url,
                "AWS_ACCESS_KEY_ID": "instep",
                "AWS_SECRET_ACCESS_KEY": "archive-secret",
                "AWS_REGION": "us-east-1",
                "AWS_ALLOW_HTTP": "true",
            }
        finally:
            server.terminate()
