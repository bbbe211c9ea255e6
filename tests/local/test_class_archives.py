"""Test class-data archives: made once, used by the JVM, remade for another Java, and optional."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from instep.local import artifacts, broker, class_archives, java, paths
from instep.pipeline import session


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a jar and the archives into folders of the test."""
    home = tmp_path / "home"
    (home / "jars").mkdir(parents=True)
    monkeypatch.setattr(class_archives, "spark_home", lambda: home)
    monkeypatch.setattr(
        class_archives, "SPARK", dataclasses.replace(class_archives.SPARK, home=lambda: home)
    )
    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    return Path(shutil.copy(artifacts.jars("spark-kafka")[0], home / "jars"))


def test_a_broker_starts_from_the_archive() -> None:
    """Start with `-Xshare:on`, which ends a JVM whose archive does not fit its class path."""
    messages: list[str] = []
    assert class_archives.prepare(class_archives.KAFKA, messages.append), messages
    command = broker._jvm("-Xshare:on")
    assert any(flag.startswith("-XX:SharedArchiveFile=") for flag in command)
    assert subprocess.run([*command, "-version"], check=False, capture_output=True).returncode == 0


def test_the_jvm_uses_the_archive() -> None:
    messages: list[str] = []
    assert class_archives.prepare(class_archives.SPARK, messages.append), messages
    assert class_archives.prepare(class_archives.SPARK, lambda line: pytest.fail(line)), (
        "made twice"
    )
    taken = session._archived(class_archives.spark_files(queries=False).archive)[0]
    assert taken.startswith("-XX:SharedArchiveFile=")
    options = [
        "-Xshare:on",
        taken,
        "-XX:+UseSerialGC",
        "-cp",
        class_archives.spark_class_path(),
    ]
    assert (
        subprocess.run(
            [java.find(), *options, "-version"], check=False, capture_output=True
        ).returncode
        == 0
    )


def test_an_outdated_archive_is_created_again(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[Path] = []

    def make(
        _program: class_archives.JavaProgram,
        archive: Path,
        wanted: dict[str, str],
    ) -> None:
        created.append(archive)
        archive.touch()
        archive.with_suffix(".json").write_text(json.dumps(wanted))

    monkeypatch.setattr(class_archives, "_make", make)
    messages: list[str] = []
    of_another = tmp_path / "classes" / "spark-1.jsa"
    of_another.parent.mkdir()
    of_another.touch()
    of_another.with_suffix(".json").write_text('{"home": "/no/such/place"}')
    assert class_archives.prepare(class_archives.SPARK, messages.append)
    assert class_archives.prepare(class_archives.SPARK, messages.append)
    assert (len(created), len(messages), of_another.exists()) == (1, 1, False)
    jar.write_bytes(jar.read_bytes() + b"x")
    assert class_archives.prepare(class_archives.SPARK, messages.append)
    os.utime(jar, (1, 1))
    assert class_archives.prepare(class_archives.SPARK, messages.append)
    created[0].with_suffix(".json").write_text("{")
    assert class_archives.prepare(class_archives.SPARK, messages.append)
    assert len(created) == 4


def test_an_archive_is_created_in_the_background(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make the archive in a separate process, whose log has the outcome.

    Start nothing when the archive exists.
    """
    monkeypatch.setattr(class_archives, "_is_current", lambda *_: False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr(class_archives, "_current_note", lambda *_: {})
    messages: list[str] = []
    started = class_archives.prepare_in_background(class_archives.SPARK, messages.append)
    assert started is not None
    assert os.getsid(started.pid) != os.getsid(0)
    assert started.wait(120) != 0
    assert "in the background" in messages[0]
    assert "JAVA_HOME" in (tmp_path / "spark-classes.log").read_text()
    monkeypatch.setattr(class_archives, "_is_current", lambda *_: True)
    assert class_archives.prepare_in_background(class_archives.SPARK, messages.append) is None
    assert len(messages) == 1


def test_a_jvm_that_cannot_create_archives_is_reported_and_leaves_nothing(
    jar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "odd"
    odd.mkdir()
    program = odd / "java"
    program.write_text("#!/bin/sh\necho no archives here\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(java, "find", lambda: program)
    messages: list[str] = []
    assert not class_archives.prepare(class_archives.SPARK, messages.append)
    assert "no archives here" in messages[-1]
    assert jar.exists()
    assert not list(tmp_path.rglob("*.js*"))
