from __future__ import annotations

from pathlib import Path

import pytest

from instep import errors
from instep.local import java

OUTPUTS = {
    (
        'openjdk version "17.0.15" 2025-04-15\n'
        "OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)"
    ): 17,
    (
        'java version "21.0.2" 2024-01-16 LTS\n'
        "Java(TM) SE Runtime Environment (build 21.0.2+13-LTS-58)"
    ): 21,
    'java version "1.8.0_442"\nJava(TM) SE Runtime Environment (build 1.8.0_442-b06)': 8,
    'openjdk version "11" 2018-09-25': 11,
    'openjdk version "25-ea" 2025-09-16': 25,
    'openjdk version "17.0.9" 2023-10-17\nIBM Semeru Runtime Open Edition 17.0.9.0': 17,
    (
        'Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17.0.15" 2025-04-15 LTS\n'
        "OpenJDK Corretto-17.0.15.6.1"
    ): 17,
    "openjdk 22.0.1 2024-04-16": 22,
}


@pytest.mark.parametrize(("output", "version"), OUTPUTS.items())
def test_the_version_is_parsed_in_every_vendors_format(output: str, version: int) -> None:
    assert java.parse_version(output) == version


def test_output_of_another_program_has_no_version() -> None:
    assert (
        java.parse_version("The operation couldn’t be completed. Unable to locate a Java Runtime.")
        is None
    )


def fake_java(folder: Path, script: str) -> None:
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_java_is_found_here() -> None:
    assert java.find().name == "java"


def test_a_missing_java_is_reported_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        errors.MissingPart,
        match=r"Java is missing.*\n.*openjdk-17-jre-headless.*brew install openjdk@17",
    ):
        java.find()


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "echo 'openjdk version \"21.0.2\" 2024-01-16' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.find() == tmp_path / "bin" / "java"


def test_a_wrong_java_home_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(errors.MissingPart, match=f"JAVA_HOME is {tmp_path}"):
        java.find()


def test_an_old_java_is_reported_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, "echo 'openjdk version \"11.0.22\" 2024-01-16' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(errors.MissingPart, match=r"Java 17 or newer is needed; .* is Java 11"):
        java.find()


def test_a_java_that_fails_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(errors.MissingPart, match=r"printed 'Unable to locate a Java Runtime.'"):
        java.find()
