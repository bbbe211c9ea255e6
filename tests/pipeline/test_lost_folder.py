"""Test a run whose temporary folder is removed, as cleaners do, on a real broker and Spark."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from instep import errors
from instep.kafka.connection import Cluster
from instep.pipeline import session
from tests.support.cli import settings_text
from tests.support.databases import run_sql
from tests.support.runs import event, rows, send
from tests.support.waiting import wait_until

DOCUMENTS = 7


def test_a_run_continues_in_a_new_session_when_its_folder_is_removed(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "instep.toml").write_text(
        settings_text(bootstrap=cluster.bootstrap, topic=topic), encoding="utf-8"
    )
    url = f"sqlite:///{tmp_path}/contracts.db"
    temporary = Path(tempfile.mkdtemp(prefix="lost-"))  # short, so that Spark uses sockets in it
    instep = [sys.executable, "-m", "instep"]
    subprocess.run([*instep, "init"], cwd=tmp_path, check=True, capture_output=True)

    def has_applied(count: int) -> bool:
        assert run.poll() is None, log.read_text(encoding="utf-8")
        return int(run_sql(url, "SELECT count(*) FROM instep_history")[0][0]) >= count

    log = tmp_path / "run.log"
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with (
        log.open("wb") as opened,
        subprocess.Popen([*instep, "run"], cwd=tmp_path, env=environment, stderr=opened) as run,
    ):
        try:
            with flowing(cluster, topic) as sent:
                wait_until(lambda: has_applied(1), "the first events")
                [removed] = temporary.glob("instep-run-*")
                shutil.rmtree(removed)
                before = len(sent)
                wait_until(
                    lambda: has_applied(before + 1),
                    "events that were sent after the folder was removed",
                )
            wait_until(lambda: has_applied(len(sent)), "all events")
            wait_until(
                lambda: becomes_file(temporary),
                "a file in the folder's place, in which no folder can be made",
            )
            run.wait(90)
        finally:
            run.kill()
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.unlink(missing_ok=True)
    output = log.read_text(encoding="utf-8")
    assert run.returncode == errors.InstepError.exit_status
    assert f"the temporary folder {removed} was removed; starting a new Spark session" in output
    assert f"contracts: {len(sent):,} records: {len(sent):,} applied, 0 stale, 0 repeated" in output
    assert "; 0 restarts" in output
    assert f"cannot create a folder for Spark's temporary files below {temporary}" in output
    assert "set TMPDIR" in output
    assert "Traceback" not in output
    newest = {f"d{document}": version for document, version in sent}
    assert rows(url) == [
        (document, "PRINTED", version) for document, version in sorted(newest.items())
    ]


def becomes_file(folder: Path) -> bool:
    """Replace the folder by a file. Return False if the old Spark recreates its folders first."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@contextmanager
def flowing(cluster: Cluster, topic: str) -> Iterator[list[tuple[int, int]]]:
    """Send events continuously, and yield the list of sent events."""
    sent: list[tuple[int, int]] = []
    ended = threading.Event()

    def work() -> None:
        for number in itertools.count():
            if ended.wait(0.1):
                return
            document, version = number % DOCUMENTS, number
            send(cluster, topic, event(f"d{document}", version))
            sent.append((document, version))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield sent
    finally:
        ended.set()
        thread.join()


@pytest.mark.skipif(
    not shutil.which("systemd-tmpfiles"), reason="systemd-tmpfiles is not installed"
)
def test_systemd_tmpfiles_keeps_the_locked_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    (temporary / "another").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    place = session.RunFolder()
    (tmp_path / "cleaner.conf").write_text(f"d {temporary} - - - 0\n", encoding="utf-8")
    subprocess.run(["systemd-tmpfiles", "--clean", tmp_path / "cleaner.conf"], check=True)
    assert list(temporary.iterdir()) == [place.path]
    assert not place.is_lost()
    place.remove()


@pytest.mark.parametrize("removed", ["lock", "."])
def test_a_folder_without_its_lock_is_lost(removed: str) -> None:
    place = session.RunFolder()
    assert not place.is_lost()
    removed_path = place.path / removed
    shutil.rmtree(removed_path) if removed_path.is_dir() else removed_path.unlink()
    assert place.is_lost()
    place.remove()


def test_a_folder_with_another_lock_file_is_lost() -> None:
    place = session.RunFolder()
    (place.path / "lock").rename(place.path / "moved")
    (place.path / "lock").touch()
    assert place.is_lost()
    place.remove()
