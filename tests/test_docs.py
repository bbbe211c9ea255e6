"""The docs are true: references come from the code, links lead somewhere, and every example runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from instep import settings
from instep.kafka import topics
from instep.kafka.connection import Cluster as Connection
from instep.local.broker import Cluster
from tests import reference

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SECRETS = {"KAFKA_PASSWORD": "secret", "DB_PASSWORD": "secret"}


def blocks(language: str) -> list[tuple[str, str]]:
    """(page and number, text) of every fenced block in a language, without the indentation of a list around it."""
    found = []
    for page in PAGES:
        pattern = rf"^( *)```{language}\n(.*?)^ *```"
        for number, (indent, text) in enumerate(re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)):
            found.append((f"{page.relative_to(ROOT)} {number}", re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)))
    return found


@pytest.fixture(scope="module")
def print_status(broker: Cluster) -> Cluster:
    """The broker, with the topic that the examples name."""
    with Connection(settings.Kafka(), broker.bootstrap) as cluster:
        topics.create(cluster, "print-status", 4)
    return broker


@pytest.mark.parametrize("name", reference.pages())
def test_the_reference_is_current(name: str) -> None:
    assert (reference.FOLDER / name).read_text(encoding="utf-8") == reference.pages()[name], "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize(("name", "text"), blocks("toml"), ids=[name for name, _ in blocks("toml")])
def test_settings_examples_are_valid(name: str, text: str) -> None:
    settings.parse(text, SECRETS)


@pytest.mark.parametrize(("name", "text"), blocks("python"), ids=[name for name, _ in blocks("python")])
def test_python_examples_run(name: str, text: str, print_status: Cluster, tmp_path: Path) -> None:
    program = text.replace("localhost:9092", print_status.bootstrap)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_first_pipeline_of_the_readme(print_status: Cluster, tmp_path: Path) -> None:
    """Its settings and its commands, as they stand; only the broker is the tests' own."""
    (declared,) = [text for name, text in blocks("toml") if name.startswith("README")]
    (tmp_path / "instep.toml").write_text(declared, encoding="utf-8")
    (console,) = [text for name, text in blocks("console") if name.startswith("README")]
    commands = [line.removeprefix("$ ") for line in console.splitlines() if line.startswith("$ ")]
    assert len(commands) >= 5
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "INSTEP__KAFKA__BOOTSTRAP": print_status.bootstrap,
        "INSTEP__PIPELINES__CONTRACTS__TOPIC": "readme",
    }
    for command in commands:
        adapted = command.replace("create print-status", "create readme")
        done = subprocess.run(
            adapted, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert "readme" in done.stdout
    assert re.search(r"all\s+0\s+0\.0", done.stdout), done.stdout
