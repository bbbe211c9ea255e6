"""Test optional dependencies: what works without them, and the command that installs each."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from instep import extras
from instep.local.broker import LocalCluster
from tests.support.cli import settings_text

ROOT = Path(__file__).parent.parent
WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
sys.argv = ["instep", *{arguments!r}]
from instep.__main__ import main
main()
"""
SPARK = ("pyspark", "py4j", "pyarrow")


def without(
    missing: tuple[str, ...], folder: Path, *arguments: str, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command where these packages are not installed."""
    code = WITHOUT.format(missing=missing, arguments=arguments)
    environment = {**os.environ, "INSTEP_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_commands_without_spark_work_when_it_is_not_installed(
    tmp_path: Path, broker: LocalCluster
) -> None:
    """Run topics, init, emit, status, groups, peek, up and down."""
    (tmp_path / "instep.toml").write_text(
        settings_text(bootstrap=broker.bootstrap, topic="no-spark"), encoding="utf-8"
    )
    event = json.dumps({"doc_id": "d1", "status": "PRINTED", "version": 1})
    for arguments, given in [
        (("topics", "create", "no-spark", "-p", "1", "--execute"), ""),
        (("topics", "list"), ""),
        (("init",), ""),
        (("emit", "-"), event),
        (("status", "--json"), ""),
        (("peek", "no-spark"), ""),
        (("groups", "list"), ""),
        (("show", "d1"), ""),
        (("up", "status"), ""),
        (("down",), ""),
    ]:
        done = without(SPARK, tmp_path, *arguments, given=given)
        assert done.returncode == (2 if arguments[0] == "show" else 0), (arguments, done.stderr)
        assert "Traceback" not in done.stderr
        assert "pyspark" not in done.stderr


def test_poll_without_httpx_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "instep.toml").write_text(
        '[bridges.print]\ntopic = "t"\nurl = "https://h/{document}"\nstatus = "s"\nids_file = "i"',
        encoding="utf-8",
    )
    done = without(("httpx",), tmp_path, "poll")
    assert done.returncode == 2
    assert "httpx is not installed" in done.stderr
    assert "httpx<1,>=0.28" in done.stderr


@pytest.mark.parametrize(
    "module",
    ["instep.local.local_servers", "instep.local.maven", "instep.emit", "instep.operate.status"],
)
def test_servers_and_publishers_import_no_spark(module: str) -> None:
    code = (
        f"import sys, {module}; print(sorted({{'pyspark', 'py4j', 'pyarrow'}} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


@pytest.mark.parametrize(
    ("missing", "target", "extra"),
    [
        (("pyspark",), "sqlite:///contracts.db", "spark"),
        (("psycopg",), "postgresql://127.0.0.1:1/contracts", "postgres"),
        (("pymysql",), "mysql://127.0.0.1:1/contracts", "mysql"),
    ],
)
def test_a_missing_part_is_named_with_a_command_that_installs_it(
    missing: tuple[str, ...], target: str, extra: str, tmp_path: Path
) -> None:
    text = settings_text(bootstrap="127.0.0.1:1", topic="t").replace(
        "sqlite:///contracts.db", target
    )
    (tmp_path / "instep.toml").write_text(text, encoding="utf-8")
    done = without(missing, tmp_path, *(("run",) if extra == "spark" else ("init",)))
    assert done.returncode == 2, done.stderr
    what, command = done.stderr.strip().splitlines()
    assert "is not installed" in what
    assert shlex.split(command)[-len(extras.PACKAGES[extra]) :] == list(extras.PACKAGES[extra])
    assert "instep[" not in command


def test_the_commands_install_what_the_project_declares() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert {
        name: tuple(packages) for name, packages in declared.items() if name != "all"
    } == extras.PACKAGES
    for extra, packages in extras.PACKAGES.items():
        own = [package for package in packages if not package.startswith("instep[")]
        assert set(own) <= set(extras.packages(extra))
        assert "instep[" not in extras.command(extra)
    assert extras.packages("report")[0] in extras.packages("lab")
