from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from instep import errors
from instep.local import artifacts, ivy, keeper_client, maven, ports
from tests.support.waiting import wait_until

MODULE = "org.example:thing:1.0"


def sum_of(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def bring(monkeypatch: pytest.MonkeyPatch, content: bytes, name: str = "thing-1.0.jar") -> None:
    """Make Maven return one file with this content.

    The spark-kafka bundle consists of thing-1.0.jar with the content `good`.
    """

    def retrieve(
        keeper: keeper_client.KeeperClient, work: Path, bundle: str, modules: list[str]
    ) -> list[Path]:
        (work / "jars").mkdir()
        (work / "jars" / name).write_bytes(content)
        return [work / "jars" / name]

    monkeypatch.setattr(maven, "retrieve", retrieve)
    monkeypatch.setattr(artifacts, "read_lock", lambda: {"spark-kafka": {MODULE: sum_of(b"good")}})


# --- the lock ---


def test_the_lock_names_every_bundle_and_its_modules() -> None:
    lock = artifacts.read_lock()
    assert lock.keys() == artifacts.BUNDLES.keys()
    for name, bundle in artifacts.BUNDLES.items():
        assert set(bundle.modules) <= lock[name].keys()
    assert len(lock["spark-kafka"]) == 4
    assert len({artifacts.file_name(module) for module in lock["kafka"]}) == len(lock["kafka"])


@pytest.mark.parametrize("line", ['"org:name" = "00"', f'"org:name:1" = "{"0" * 63}"'])
def test_a_lock_line_without_module_and_checksum_is_refused(line: str) -> None:
    with pytest.raises(errors.InstepError, match="not ORG:NAME:REVISION"):
        artifacts.parse_lock(f"[kafka]\n{line}\n")


def test_a_lock_is_written_as_it_was_read() -> None:
    kept = artifacts.LOCK.read_text(encoding="utf-8")
    assert artifacts.lock_text(artifacts.parse_lock(kept)) == kept


def test_a_lock_that_is_no_toml_is_refused() -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        artifacts.parse_lock("[kafka")


# --- the sums ---


def test_a_jar_with_the_right_checksum_is_accepted(
    bare_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch, b"good")
    [jar] = artifacts.jars("spark-kafka")
    assert jar.read_bytes() == b"good"


def test_a_wrong_checksum_is_reported_and_leaves_nothing(
    bare_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch, b"evil")
    with pytest.raises(errors.MissingPart) as caught:
        artifacts.jars("spark-kafka")
    for part in ("thing-1.0.jar", sum_of(b"good"), sum_of(b"evil")):
        assert part in caught.value.what
    assert not list(bare_home.rglob("*.jar"))
    assert [path.name for path in (bare_home / "cache").iterdir()] == ["spark-kafka.lock"]


def test_a_tampered_copy_of_a_real_jar_is_detected(tmp_path: Path) -> None:
    locked = artifacts.read_lock()["spark-kafka"]
    copies = [Path(shutil.copy(jar, tmp_path)) for jar in artifacts.jars("spark-kafka")]
    artifacts.verify(copies, locked)
    with copies[0].open("r+b") as file:
        file.seek(1000)
        file.write(b"x")
    with pytest.raises(errors.MissingPart, match=f"{copies[0].name} has the wrong checksum"):
        artifacts.verify(copies, locked)


def test_a_jar_that_is_not_locked_is_refused(
    bare_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch, b"good", name="other-1.0.jar")
    with pytest.raises(
        errors.MissingPart, match=r"thing-1.0.jar is in artifacts.lock but was not fetched"
    ):
        artifacts.jars("spark-kafka")
    with pytest.raises(
        errors.MissingPart, match=r"other-1.0.jar was fetched but is not in artifacts.lock"
    ):
        artifacts.verify([Path("other-1.0.jar")], {})


@pytest.mark.parametrize("damage", ["shorter", "missing"])
def test_a_damaged_bundle_is_fetched_again(
    bare_home: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    bring(monkeypatch, b"good")
    [jar] = artifacts.jars("spark-kafka")
    jar.write_bytes(b"goo") if damage == "shorter" else jar.unlink()
    assert [again.read_bytes() for again in artifacts.jars("spark-kafka")] == [b"good"]


# --- fetching for real ---


def test_the_connector_is_exactly_its_four_jars() -> None:
    assert len(artifacts.jars("spark-kafka")) == 4


def test_two_simultaneous_processes_fetch_once(bare_home: Path) -> None:
    code = "from instep.local import artifacts; print(artifacts.unpacked('postgres'))"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in "ab"
    ]
    reported = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], reported
    assert reported[0][0] == reported[1][0]
    assert sum("MB in" in messages for _, messages in reported) == 1
    assert os.access(Path(reported[0][0].strip()) / "bin" / "postgres", os.X_OK)


def test_a_fetch_killed_half_way_leaves_nothing(bare_home: Path) -> None:
    code = "from instep.local import artifacts; artifacts.jars('kafka')"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as fetching:
        wait_until(lambda: any(bare_home.rglob("*.part")) or any(bare_home.rglob("*.jar")))
        fetching.send_signal(signal.SIGKILL)
    wait_until(lambda: [path.name for path in (bare_home / "cache").iterdir()] == ["kafka.lock"])


def test_a_fetch_is_interrupted_at_once_and_leaves_nothing(bare_home: Path) -> None:
    """Interrupt by Ctrl-C, as a user does, in the middle of the first file."""
    command = [sys.executable, "-m", "instep", "up"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as fetching:
        wait_until(lambda: any(bare_home.rglob("*.part")))
        fetching.send_signal(signal.SIGINT)
        assert fetching.wait(60) == 128 + signal.SIGINT
        assert fetching.stderr is not None
        assert "Traceback" not in fetching.stderr.read()
    assert [path.name for path in (bare_home / "cache").iterdir()] == ["kafka.lock"]


def test_no_network_is_reported(bare_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = ports.free()[0]
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{closed}")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(
        errors.MissingPart,
        match=r"spark-kafka could not be fetched from Maven Central: (?s:.)*network",
    ):
        artifacts.jars("spark-kafka")
    assert [path.name for path in (bare_home / "cache").iterdir()] == ["spark-kafka.lock"]


@pytest.fixture
def tiny_disk(bare_home: Path) -> Iterator[Path]:
    """Set INSTEP_HOME to a disk of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tiny disk needs root")
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=755", "tiny", bare_home],
        capture_output=True,
        text=True,
    )
    if mount.returncode != 0:
        pytest.skip(f"a tiny disk cannot be mounted here: {mount.stderr}")
    yield bare_home
    subprocess.run(["umount", bare_home], check=True)


def test_a_disk_that_fills_while_fetching_is_reported(tiny_disk: Path) -> None:
    with pytest.raises(errors.InstepError, match=r"no space left below .*\n.*INSTEP_HOME"):
        artifacts.unpacked("postgres")
    assert [path.name for path in (tiny_disk / "cache").iterdir()] == ["postgres.lock"]


def test_a_disk_that_fills_while_unpacking_is_reported(
    tiny_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "thing-1.0.jar"
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/linux/bin/mariadbd", bytes(8_000_000))
    monkeypatch.setattr(
        artifacts, "read_lock", lambda: {"mariadb": {MODULE: artifacts.sha256(jar)}}
    )
    monkeypatch.setattr(maven, "retrieve", lambda *_: [jar])
    with pytest.raises(errors.InstepError, match=r"no space left below .*\n.*INSTEP_HOME"):
        artifacts.unpacked("mariadb")
    assert [path.name for path in (tiny_disk / "cache").iterdir()] == ["mariadb.lock"]


def test_a_cache_that_cannot_be_written_is_reported(
    bare_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bare_home / "file").touch()
    monkeypatch.setenv("INSTEP_HOME", str(bare_home / "file"))
    with pytest.raises(errors.InstepError, match=r"cannot be used: .*Not a directory"):
        artifacts.jars("kafka")


def test_a_missing_pyspark_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(errors.MissingPart, match=r"pip install .*'pyspark==4.2.0'"):
        ivy.find()


def test_databases_are_refused_on_other_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(
        errors.MissingPart, match="only for Linux on x86-64 with glibc; this is Linux aarch64"
    ):
        artifacts.unpacked("postgres")


def test_jars_are_fetched_from_the_configured_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(maven.REPOSITORY, raising=False)
    assert maven.repository().startswith("https://")
    monkeypatch.setenv(maven.REPOSITORY, "https://jars.example/central/")
    assert maven.repository() == "https://jars.example/central"
    monkeypatch.delenv(maven.REPOSITORY)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(errors.MissingPart, match="address of Maven Central is unknown") as caught:
        maven.repository()
    assert maven.REPOSITORY in caught.value.remedy
