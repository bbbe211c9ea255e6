"""Start a Spark session with secret settings, and print the arguments of all descendants.

The output is JSON. This is a separate program: the tests' own session has been started already, and
a process starts one JVM only.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import threading

import psutil

from instep import settings
from instep.local import class_archives, processes
from instep.pipeline import session

HIDDEN = "hush-hush"
RPC_REQUEST = 3


def main() -> None:
    spark = settings.Spark(
        master="local[1]",
        conf={
            "spark.hadoop.fs.s3a.secret.key": f"{HIDDEN} = \\:#\u00e9",
            "spark.driver.extraJavaOptions": f"-Dinstep.first={HIDDEN} '-Dinstep.second=two words'",
        },
    )
    seen: set[str] = set()
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(seen, ended))
    watcher.start()
    place = session.RunFolder()
    opened = session.open_session(spark, class_archives.spark_files(queries=True), place)
    jvm = opened.sparkContext._jvm
    assert jvm is not None
    java = jvm.java.lang.System
    ended.set()
    watcher.join()
    port = int(opened.sparkContext.getConf().get("spark.driver.port") or 0)
    found = {
        "arguments": sorted(seen),
        "conf": opened.conf.get("spark.hadoop.fs.s3a.secret.key"),
        "hadoop": opened.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key"),
        "options": [java.getProperty("instep.first"), java.getProperty("instep.second")],
        "files": sorted(file.name for file in place.path.iterdir()),
        "answer": _ask_as_a_stranger(port).decode("utf-8", "replace"),
        "rows": opened.range(3).count(),
    }
    opened.stop()
    place.remove()
    sys.stdout.write(json.dumps(found))


def _watch(seen: set[str], ended: threading.Event) -> None:
    while not ended.wait(0.005):
        for pid in processes.descendants(os.getpid()):
            with contextlib.suppress(psutil.NoSuchProcess):
                seen.add(" ".join(psutil.Process(pid).cmdline()))


def _ask_as_a_stranger(port: int) -> bytes:
    """Return what the driver answers to a request without its secret."""
    body = b"let me in"
    frame = struct.pack(">BqI", RPC_REQUEST, 1, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(struct.pack(">q", 8 + len(frame)) + frame)
        return connection.recv(64 * 1024)


if __name__ == "__main__":
    main()
