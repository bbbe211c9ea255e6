"""Test how signals end a run: while Spark starts, and while it works."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from instep.pipeline.stop import SIGNALS, Stop


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts_the_start_of_spark(number: signal.Signals) -> None:
    stop = Stop()
    signal.signal(number, signal.SIG_DFL)
    with pytest.raises(SystemExit) as exited, stop.signals():
        signal.raise_signal(number)
    assert exited.value.code == 128 + number
    assert stop.is_requested()


def test_the_previous_handler_decides_how_the_start_is_interrupted() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), Stop().signals():
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_request_survives_an_exception_that_python_ignores() -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    stop = Stop()
    with stop.signals():
        Finalized()
        assert stop.is_requested()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_only_sets_the_request_once_spark_has_started(number: signal.Signals) -> None:
    stop = Stop()
    signal.signal(number, signal.SIG_DFL)
    with stop.signals():
        signal.signal(number, signal.SIG_DFL)  # Spark installs its own
        stop.started()
        assert not stop.is_requested()
        signal.raise_signal(number)
        assert stop.wait(0)
        assert stop.requested_at
    assert signal.getsignal(number) == signal.SIG_DFL


def test_a_run_under_nohup_outlives_its_terminal() -> None:
    stop = Stop()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop.signals():
        stop.started()
        signal.raise_signal(signal.SIGHUP)
        assert not stop.is_requested()


def test_an_event_leaves_the_signals_to_the_program() -> None:
    requested = threading.Event()
    stop = Stop(requested)
    before = [signal.getsignal(number) for number in SIGNALS]
    with stop.signals():
        stop.started()
        assert [signal.getsignal(number) for number in SIGNALS] == before
    requested.set()
    assert stop.is_requested()
