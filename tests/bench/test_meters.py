"""Test meters on real processes.

They count what the processes use, including children that end, and not what was used before.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from instep_bench import meters
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports PSS")

BUSY = """
import time
print("ready", flush=True)
input()
kept, began = bytearray(50_000_000), time.process_time()
while time.process_time() - began < 0.5: pass
print("done", flush=True)
input()
"""
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])"


def test_cpu_and_memory_of_a_process_tree_are_measured() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        meter = meters.Meter(
            {"tree": meters.tree(parent.pid), "gone": lambda: (2**22 + 1,)}, interval_s=0.02
        )
        meter.start()
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == b"done\n"
        seen = len(meter._counters["tree"]._samples)
        wait_until(lambda: len(meter._counters["tree"]._samples) > seen + meters.PSS_EVERY)
        parent.communicate(b"\n")
        used = meter.stop()
    assert used["tree"].cpu_s >= 0.4
    assert used["tree"].rss_mb > 50
    assert used["tree"].pss_mb > 50
    assert used["tree"].samples[-1].rss_mb < used["tree"].rss_mb
    assert used["gone"].cpu_s == 0


def test_earlier_usage_is_not_counted() -> None:
    while time.process_time() < 0.2:
        pass
    meter = meters.Meter({"me": lambda: (os.getpid(),)})
    meter.start()
    assert meter.stop()["me"].cpu_s < time.process_time() - 0.1


def test_a_meter_without_processes_measures_zero() -> None:
    meter = meters.Meter({"database": lambda: ()})
    meter.start()
    used = meter.stop()["database"]
    assert (used.cpu_s, used.rss_mb, used.pss_mb) == (0, 0, 0)


def test_a_role_without_a_process_is_left_out() -> None:
    used = {
        "broker": meters.Usage(1.0, 300.0, 280.0, []),
        "database": meters.Usage(0.0, 0.0, 0.0, []),
    }
    assert list(meters.present(used)) == ["broker"]
