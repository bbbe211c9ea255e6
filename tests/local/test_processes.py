"""Test that processes stop reliably."""

from __future__ import annotations

import subprocess
import sys

import pytest

from instep.local import processes

BUSY = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'while True: pass']);"
    " print(flush=True)\nwhile True: pass"
)


def test_a_frozen_tree_has_stopped() -> None:
    """Stop also processes that are computing: the signal alone does not stop them at once."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout
            parent.stdout.readline()
            for _ in range(5):
                tree = [parent.pid, *processes.descendants(parent.pid)]
                assert len(tree) == 2
                assert processes.freeze_tree(parent.pid)
                assert all(processes.paused(pid) for pid in tree)
                processes.thaw_tree(parent.pid)
        finally:
            processes.kill_tree(parent.pid)


def test_a_process_that_does_not_stop_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOP_TIMEOUT_S", 0.05)
    monkeypatch.setattr(processes, "send", lambda *_: True)
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            assert not processes.freeze_tree(sleeper.pid)
        finally:
            sleeper.kill()
