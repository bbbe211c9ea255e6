"""Test how Spark starts: secrets stay private, ports need a secret, bad settings are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from instep import errors, spark_options
from instep.local.ports import free
from instep.pipeline import jvm
from tests.support.private_session import HIDDEN


def test_secrets_are_in_no_argument_and_other_users_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.private_session"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert any("SparkSubmit" in arguments for arguments in found["arguments"])
    assert not [
        arguments
        for arguments in found["arguments"]
        if HIDDEN in arguments or "authenticate" in arguments
    ]
    assert found["conf"] == found["hadoop"] == f"{HIDDEN} = \\:#\u00e9"
    assert found["options"] == [HIDDEN, "two words"]
    assert not {"spark.properties", jvm.OPTIONS_FILE} & set(found["files"])
    assert "Expected SaslMessage" in found["answer"]
    assert found["rows"] == 3


def test_only_the_owner_can_read_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("older, and open to all")
    jvm.write_private(file, HIDDEN)
    assert file.read_text() == HIDDEN
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[2]", "local[2,4]", "spark://h:7077", "yarn", "k8s://https://h:1"],
)
@pytest.mark.parametrize("memory", ["640m", "2g", "1GB", "500000k"])
def test_valid_spark_options_are_accepted(master: str, memory: str) -> None:
    spark_options.check(master, memory)


@pytest.mark.parametrize(
    ("master", "memory", "words"),
    [
        ("local[0]", "640m", "at least one thread"),
        ("local[2,0]", "640m", "at least one thread"),
        ("local[x]", "640m", "not a Spark master"),
        ("spork://x", "640m", "not a Spark master"),
        ("", "640m", "not a Spark master"),
        ("local", "lots", "not an amount of memory"),
        ("local", "640", "not an amount of memory"),
        ("local", "100m", "at least 450m"),
    ],
)
def test_invalid_spark_options_are_refused_with_an_example(
    master: str, memory: str, words: str
) -> None:
    with pytest.raises(errors.SettingsError, match=words) as caught:
        spark_options.check(master, memory)
    assert '"' in caught.value.remedy


@pytest.mark.parametrize(
    "address",
    ["nohost.invalid:7077", "127.0.0.1:{port}", "127.0.0.1:x", "nohost.invalid,127.0.0.1:{port}"],
)
def test_an_unreachable_master_is_refused_at_once(address: str) -> None:
    with pytest.raises(errors.Unreachable, match="no Spark master answers at spark://") as caught:
        spark_options.refuse_silent(f"spark://{address.format(port=free()[0])}")
    assert "spark.master" in caught.value.remedy


LIMITED = (
    "import resource; resource.setrlimit(resource.RLIMIT_{what}, ({amount}, {amount})); {code}"
)


@pytest.mark.parametrize(
    ("what", "amount", "code", "says"),
    [
        (
            "NOFILE",
            128,
            "from instep.pipeline import jvm; jvm.raise_file_limit()",
            "ulimit -n 4096",
        ),
        ("AS", 1 << 29, "from instep.local import java; java.find()", "ulimit -v unlimited"),
    ],
)
def test_a_resource_limit_is_named(what: str, amount: int, code: str, says: str) -> None:
    program = LIMITED.format(what=what, amount=amount, code=code)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert says in done.stderr
    assert "Java is missing" not in done.stderr
