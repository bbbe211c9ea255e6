"""Test that the public API is enough to publish, to run pipelines and to monitor them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

import instep
from instep.local.broker import LocalCluster
from tests.support.cli import settings_text
from tests.support.waiting import wait_until

EXAMPLES = Path(__file__).parents[1] / "examples"
TABLE = (
    "CREATE TABLE contract_document"
    " (doc_no TEXT PRIMARY KEY, print_status TEXT, print_version INTEGER, printed_at TEXT)"
)


@pytest.fixture
def broker_address(broker: LocalCluster) -> str:
    return broker.bootstrap


def event(document: str, status: str, version: int) -> instep.StatusEvent:
    return instep.StatusEvent(
        document=document, status=status, version=version, at=datetime(2026, 11, 1, tzinfo=UTC)
    )


def write_settings(folder: Path, bootstrap: str, topic: str) -> Path:
    with sqlite3.connect(folder / "contracts.db") as database:
        database.execute(TABLE)
    database.close()
    file = folder / "instep.toml"
    target = f"sqlite:///{folder}/contracts.db"
    file.write_text(settings_text(bootstrap=bootstrap, topic=topic, target=target))
    return file


def rows(folder: Path) -> list[tuple[str, str, int]]:
    database = sqlite3.connect(folder / "contracts.db")
    try:
        return database.execute(
            "SELECT doc_no, print_status, print_version FROM contract_document ORDER BY doc_no"
        ).fetchall()
    finally:
        database.close()


def test_every_public_name_exists() -> None:
    for name in instep.__all__:
        assert getattr(instep, name).__doc__, name
    assert set(instep.__all__) <= set(dir(instep))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        instep.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_importing_loads_nothing_heavy() -> None:
    """Let a source system publish without Spark, and a command start quickly."""
    heavy = "('pyspark', 'confluent_kafka', 'sqlalchemy')"
    code = f"import sys, instep; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def publish(address: str, topic: str, *events: instep.StatusEvent) -> None:
    with instep.Publisher(address, topic, source="print") as publisher:
        receipts = [publisher.send(one) for one in events]
        assert isinstance(receipts[0], instep.Receipt)
        assert isinstance(receipts[0].result(60), instep.Delivery)


def test_run_to_the_end_of_the_log(tmp_path: Path, broker_address: str, topic: str) -> None:
    file = write_settings(tmp_path, broker_address, topic)
    assert isinstance(instep.load_settings(file), instep.Settings)
    publish(broker_address, topic, event("C-1", "QUEUED", 1), event("C-1", "PRINTED", 2))
    command = [sys.executable, str(EXAMPLES / "run_pipelines.py"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith("contracts: ")
    assert lines[-2:] == ["contracts ended: 2 applied, lag 0", "contracts: 2 of 2 records applied"]
    assert "2 records waiting" in done.stderr
    assert rows(tmp_path) == [("C-1", "PRINTED", 2)]
    assert instep.init(file) == {"contracts": []}


def test_run_in_a_thread_of_a_service(tmp_path: Path, broker_address: str, topic: str) -> None:
    """Leave the service's signal handlers alone: the service ends the run by an event."""
    file = write_settings(tmp_path, broker_address, topic)
    publish(broker_address, topic, event("C-2", "QUEUED", 1))
    command = [sys.executable, str(EXAMPLES / "embed_in_service.py"), str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as service:
        try:
            wait_until(lambda: rows(tmp_path) == [("C-2", "QUEUED", 1)], "the event in the table")
            output, _ = service.communicate(timeout=90)
        finally:
            service.kill()
    assert output.decode().splitlines() == ["contracts ended: 1 applied"]
    assert service.returncode == 0


@pytest.mark.parametrize(
    ("names", "what"),
    [(["contract"], "no pipeline 'contract'"), ([], "no pipeline is declared or named")],
)
def test_wrong_names_are_refused(tmp_path: Path, names: list[str], what: str) -> None:
    file = write_settings(tmp_path, "127.0.0.1:1", "status")
    with pytest.raises(instep.errors.SettingsError, match=what):
        instep.run(file, pipelines=names)


def test_a_thread_needs_a_way_to_stop(tmp_path: Path) -> None:
    file = write_settings(tmp_path, "127.0.0.1:1", "status")
    failed: list[Exception] = []

    def work() -> None:
        try:
            instep.run(file)
        except instep.errors.InstepError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert "stop=threading.Event()" in str(failed[0])
