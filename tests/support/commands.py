"""`instep` commands in separate processes that start quickly.

Importing the libraries takes most of a short command's time. A server process imports them once and
forks for each command. The fork then runs `python -m instep` as the interpreter would: with its own
arguments, folder, environment and standard streams, default signal handlers, and a normal exit.

    run(["status", "--json"], cwd=folder, env=os.environ)
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

LIBRARIES = (
    "confluent_kafka.admin",
    "instep_lab.commands",
    "instep_lab.lab",
    "instep_lab.report.page",
    "jinja2",
    "kafka.admin",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "psycopg",
    "pyarrow",
    "pymysql",
    "pyspark.sql",
    "rich.live",
    "rich.text",
    "sqlalchemy",
)
PACKAGES = ("instep", "instep_bench")  # not the claims of instep_lab: tests bring their own
# run something on import, or are never imported by a command
PROGRAMS = ("__main__", "daemon", "keeper")
REQUEST_BYTES_MAX = 1 << 20


def run(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    given: str = "",
    timeout_s: float = 120.0,
    program: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end.

    `program` is the code of another program to run instead of `instep`.
    """
    request = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "program": program}
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        stdin.write(given.encode())
        stdin.seek(0)
        status = _status(request, (stdin, stdout, stderr), timeout_s)
        return subprocess.CompletedProcess(list(arguments), status, _text(stdout), _text(stderr))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


def _status(request: dict[str, Any], streams: Sequence[IO[bytes]], timeout_s: float) -> int:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs, _LOCK:
            socket.send_fds(
                _server(), [b"command"], [theirs.fileno(), *(stream.fileno() for stream in streams)]
            )
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
        ours.send(json.dumps(request).encode())
        pid = int(ours.recv(64))
        ours.settimeout(timeout_s)
        try:
            return int(ours.recv(64))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(request["arguments"], timeout_s) from None


_LOCK = threading.Lock()


@functools.cache
def _server() -> socket.socket:
    """Return the connection to this process's server, which ends with the connection."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.support.commands", str(theirs.fileno())]
        root = Path(__file__).parents[2]
        process = subprocess.Popen(
            command,
            cwd=root,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    atexit.register(_end, ours, process)
    return ours


def _end(requests: socket.socket, process: subprocess.Popen[bytes]) -> None:
    requests.close()
    process.wait()


# --- the server -----------------------------------------------------------------------------------


def serve(requests: socket.socket) -> str | None:
    """Fork for each request.

    Return only in the process that is to run a command, with the program to run instead.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the forks
    _import_everything()
    gc.collect()
    gc.freeze()  # a fork need neither scan nor copy these objects
    assert threading.active_count() == 1, "a process with threads must not fork"
    while True:
        request_mark, descriptors, *_ = socket.recv_fds(requests, 16, 4)
        if not request_mark:
            sys.exit()
        if os.fork() == 0:
            requests.close()
            request = _supervise(socket.socket(fileno=descriptors[0]))
            _become(request, descriptors[1:])
            return cast("str | None", request["program"])
        for descriptor in descriptors:
            os.close(descriptor)


def _supervise(client: socket.socket) -> dict[str, Any]:
    """Fork the command and report its end. Return in the command's process only."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request: dict[str, Any] = json.loads(client.recv(REQUEST_BYTES_MAX))
    pid = os.fork()
    if pid == 0:
        client.close()
        return request
    client.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    client.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _import_everything() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if module.name.rpartition(".")[2] not in PROGRAMS:
                importlib.import_module(module.name)


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Take over the command's streams, folder, environment and arguments."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    errors = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = errors  # type: ignore[misc]
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[0] = request["cwd"]
    sys.path[1:1] = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))
    sys.argv[1:] = request["arguments"]


if __name__ == "__main__":
    program = serve(socket.socket(fileno=int(sys.argv[1])))
    if program is None:
        runpy.run_module("instep", run_name="__main__", alter_sys=True)
    else:
        # A new module: the program must not find names that it does not import. It does find
        # submodules that it does not import, as attributes of packages that it does.
        sys.modules["__main__"] = types.ModuleType("__main__")
        code = compile(program, "<string>", "exec", dont_inherit=True)
        exec(code, sys.modules["__main__"].__dict__)
