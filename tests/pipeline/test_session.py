"""Test how Spark is set up, where no Spark session is needed."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext, accumulators

from instep import errors, settings
from instep.pipeline import session
from instep.spark_options import SparkFiles


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("spark://h:7077", "spark://h:7077"),
    ],
)
def test_a_local_master_retries_a_failed_task(master: str, expected: str) -> None:
    assert session.with_task_retries(master) == expected


def test_the_users_spark_settings_override_the_defaults() -> None:
    given = {"spark.ui.enabled": "true", "spark.jars": "/x.jar"}
    ours = {
        "spark.ui.enabled": "false",
        "spark.jars": "/y.jar",
        "z": "1",
    }
    assert session.joined(ours, given) == {
        "spark.ui.enabled": "true",
        "spark.jars": "/y.jar,/x.jar",
        "z": "1",
    }


def test_a_jvm_that_was_killed_at_its_start_is_not_blamed_on_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "spark.log"
    log.write_text(
        "2026-11-16T10:55:04Z WARN Utils: Your hostname resolves to a loopback address\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(SparkContext, "_gateway", None)
    assert type(session._not_started(log, Exception("gone"))) is errors.SparkGone
    log.write_text("java.lang.IllegalArgumentException: spark.x\n\tat y\n", encoding="utf-8")
    found = session._not_started(log, Exception("gone"))
    assert isinstance(found, errors.SettingsError)
    assert "IllegalArgumentException: spark.x" in found.what


def test_a_lost_connection_to_the_jvm_prints_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address = str(tmp_path / "counters")
    server: Any = accumulators._start_update_server(None, True, address)  # type: ignore[arg-type]
    session.silence_lost_connections(server)
    try:
        with socket.socket(socket.AF_UNIX) as lost:
            lost.connect(address)
        with socket.socket(socket.AF_UNIX) as healthy:  # served after the lost one
            healthy.connect(address)
            healthy.sendall(struct.pack("!i", 0))
            assert healthy.recv(1) == b"\x01"
            assert "Traceback" not in capfd.readouterr().err
    finally:
        server.shutdown()


@pytest.mark.parametrize("master", ["local[2]", "spark://h:7077"])
def test_only_queries_load_the_connectors_jars(master: str, tmp_path: Path) -> None:
    place = session.RunFolder()
    spark = settings.Spark(master=master)
    jars = (tmp_path / "a.jar", tmp_path / "b.jar")
    queries = session._conf(spark, SparkFiles(jars), place, False)
    resident = session._conf(spark, SparkFiles(), place, False)
    place.remove()
    assert queries["spark.jars"] == f"{jars[0]},{jars[1]}"
    assert "spark.jars" not in resident
    assert "-XX:TieredStopAtLevel=1" in resident["spark.driver.extraJavaOptions"]
    assert ("spark.python.daemon.module" in resident) is master.startswith("local")


def test_the_folder_of_another_live_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep a folder whose process id is unknown here, as from another container."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            (
                "from instep.pipeline.session import RunFolder as W; w = W();"
                " print(w.path, flush=True); input()"
            ),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    ) as other:
        assert other.stdout is not None
        folder = Path(other.stdout.readline().strip())
        mine = session.RunFolder()
        assert folder.is_dir()
        other.kill()
    session.RunFolder().remove()
    assert not folder.exists()
    assert mine.path.is_dir()
    mine.remove()


@pytest.mark.parametrize(("characters", "uses_sockets"), [(1, "true"), (70, "false")])
def test_sockets_are_not_used_in_a_temporary_folder_with_a_long_path(
    characters: int, uses_sockets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="x" * characters) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        place = session.RunFolder()
        conf = session._conf(settings.Spark(), SparkFiles(), place, verbose=False)
        place.remove()
    assert conf["spark.python.unix.domain.socket.enabled"] == uses_sockets
