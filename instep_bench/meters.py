"""CPU time and memory of processes, sampled by a thread while they work.

Resident memory (RSS) counts shared memory once for each process. The proportional size (PSS)
divides it among them and is what a machine really needs. It is more expensive to read, so it is
sampled less often. Only Linux reports it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Self

import msgspec
import psutil

from instep.local import processes

INTERVAL_S = 0.1
PSS_EVERY = 10

Pids = Callable[[], Iterable[int]]


class MemorySample(msgspec.Struct, frozen=True):
    """The total memory of one role's processes at a time; PSS is that of the last measurement."""

    at_s: float
    rss_mb: float
    pss_mb: float


class Usage(msgspec.Struct, frozen=True):
    """The usage of one role's processes between start and stop."""

    cpu_s: float
    rss_mb: float  # the peaks
    pss_mb: float
    samples: list[MemorySample]


def present(used: Mapping[str, Usage]) -> dict[str, Usage]:
    """Return the roles that had a process; a user's server and a file have none here."""
    return {role: usage for role, usage in used.items() if usage.rss_mb}


def tree(pid: int) -> Pids:
    """Return a function that lists a process and all its descendants."""
    return lambda: (pid, *processes.descendants(pid))


def spark(pid: int) -> dict[str, Pids]:
    """Return the roles of a Spark application: the Python driver, its JVM, the Python workers."""

    def below(is_java: bool) -> Pids:
        return lambda: [
            one for one in processes.descendants(pid) if (command(one) == "java") is is_java
        ]

    return {"driver": lambda: (pid,), "jvm": below(True), "workers": below(False)}


def command(pid: int) -> str:
    """Return the name of a process's program; empty if the process is gone."""
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return ""


class Meter:
    """Measures roles, each a set of processes that may change, from `start` to `stop`."""

    def __init__(self, roles: Mapping[str, Pids], interval_s: float = INTERVAL_S) -> None:
        self._counters = {name: _Counter(pids) for name, pids in roles.items()}
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = 0.0

    def start(self) -> None:
        self._began = time.monotonic()
        for counter in self._counters.values():
            counter.begin()
        self._thread = threading.Thread(target=self._sample, name="instep-meter", daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, Usage]:
        self._over.set()
        if self._thread:
            self._thread.join()
        for counter in self._counters.values():
            # One last sample: it has the complete CPU time, and may be the only one of a short run.
            counter.sample(time.monotonic() - self._began, with_pss=True)
        return {name: counter.usage() for name, counter in self._counters.items()}

    def _sample(self) -> None:
        number = 0
        while not self._over.wait(self._interval_s):
            for counter in self._counters.values():
                counter.sample(time.monotonic() - self._began, with_pss=number % PSS_EVERY == 0)
            number += 1

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()


class _Counter:
    """One role. A process that has ended counts with its last sample."""

    def __init__(self, pids: Pids) -> None:
        self._pids = pids
        # A process object is equal to another one of the same process, not of the same pid.
        self._before: dict[psutil.Process, float] = {}
        self._used: dict[psutil.Process, float] = {}
        self._samples: list[MemorySample] = []
        self._pss_mb = 0.0

    def begin(self) -> None:
        """Record the CPU time that the processes have used before, which is not counted."""
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                self._before[process] = _cpu_s(process)

    def sample(self, at_s: float, *, with_pss: bool) -> None:
        living = self._processes()
        rss_mb = 0.0
        for process in living:
            with contextlib.suppress(psutil.Error), process.oneshot():
                self._used[process] = _cpu_s(process)
                rss_mb += process.memory_info().rss / 1e6
        if with_pss:
            self._pss_mb = sum(_pss_mb(process) for process in living)
        self._samples.append(MemorySample(round(at_s, 2), round(rss_mb, 1), round(self._pss_mb, 1)))

    def _processes(self) -> list[psutil.Process]:
        found = (_process(pid) for pid in self._pids())
        return [process for process in found if process is not None]

    def usage(self) -> Usage:
        cpu_s = sum(used - self._before.get(key, 0.0) for key, used in self._used.items())
        return Usage(
            round(cpu_s, 2),
            max((sample.rss_mb for sample in self._samples), default=0.0),
            max((sample.pss_mb for sample in self._samples), default=0.0),
            self._samples,
        )


def _process(pid: int) -> psutil.Process | None:
    """Return a process, or None if it is gone."""
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _pss_mb(process: psutil.Process) -> float:
    """Return the proportional memory; 0 if the process is gone or belongs to another user."""
    try:
        pss: int = getattr(process.memory_full_info(), "pss", 0)
    except psutil.Error:
        return 0.0
    return pss / 1e6
