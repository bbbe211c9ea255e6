"""The archive of Spark's classes: made once, taken by the JVM, made anew for another Java, and never in anybody's way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from instep.local import artifacts, java, places, spark
from instep.pipeline import session


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The connector's jars in a folder of the test's own."""
    copied = [Path(shutil.copy(jar, tmp_path)) for jar in artifacts.jars("spark-kafka")]
    monkeypatch.setattr(artifacts, "jars", lambda _bundle: copied)
    return copied


def test_the_jvm_takes_the_archive() -> None:
    said: list[str] = []
    assert spark.prepare(said.append), said
    assert spark.prepare(lambda line: pytest.fail(line)), "made twice"
    jars = artifacts.jars("spark-kafka")
    taken = session._archived(jars)[0]
    assert taken.startswith("-XX:SharedArchiveFile=")
    options = ["-Xshare:on", taken, "-XX:+UseSerialGC", "-cp", spark._class_path(jars)]
    assert subprocess.run([java.find(), *options, "-version"], check=False, capture_output=True).returncode == 0


def test_one_that_was_made_for_something_else_is_made_anew(jars: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def make(archive: Path, _jars: list[Path], wanted: dict[str, str]) -> None:
        made.append(archive)
        archive.touch()
        archive.with_suffix(".json").write_text(json.dumps(wanted))

    monkeypatch.setattr(spark, "_make", make)
    said: list[str] = []
    of_another = jars[0].with_name("classes-1.jsa")
    of_another.touch()
    of_another.with_suffix(".json").write_text('{"spark": "/no/such/place"}')
    assert spark.prepare(said.append)
    assert spark.prepare(said.append)
    assert (len(made), len(said), of_another.exists()) == (1, 1, False)
    jars[0].write_bytes(jars[0].read_bytes() + b"x")
    assert spark.prepare(said.append)
    os.utime(jars[0], (1, 1))
    assert spark.prepare(said.append)
    made[0].with_suffix(".json").write_text("{")
    assert spark.prepare(said.append)
    assert len(made) == 4


def test_it_is_made_in_the_background(jars: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process of its own, whose log says what became of it; nothing is started when the archive is there."""
    monkeypatch.setattr(artifacts, "is_kept", lambda _bundle: True)
    monkeypatch.setattr(spark, "_is_there", lambda *_: False)
    monkeypatch.setattr(places, "cache", lambda: tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr(spark, "_archive", lambda _jars: (jars[0], {}))
    said: list[str] = []
    started = spark.prepare_in_background(said.append)
    assert started is not None
    assert os.getsid(started.pid) != os.getsid(0)
    assert started.wait(60) != 0
    assert "in the background" in said[0]
    assert "JAVA_HOME" in (tmp_path / "spark-classes.log").read_text()
    monkeypatch.setattr(spark, "_is_there", lambda *_: True)
    assert spark.prepare_in_background(said.append) is None
    assert len(said) == 1


def test_a_jvm_that_cannot_is_told_and_nothing_is_left(jars: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "odd"
    odd.mkdir()
    program = odd / "java"
    program.write_text("#!/bin/sh\necho no archives here\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(java, "find", lambda: program)
    said: list[str] = []
    assert not spark.prepare(said.append)
    assert "no archives here" in said[-1]
    assert not list(jars[0].parent.glob("*.js*"))
