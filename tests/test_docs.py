"""The docs are true: references come from the code, links lead somewhere, and every example runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from instep import cli, errors, settings
from instep.kafka import topics
from instep.kafka.connection import Cluster as Connection
from instep.local.broker import LocalCluster
from tests import reference

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
STOP_SECTIONS = ("What happened", "What is safe", "How to look", "What to run", "How to avoid it")
SECRETS = {"KAFKA_PASSWORD": "secret", "DB_PASSWORD": "secret"}


def blocks(language: str) -> list[tuple[str, str]]:
    """(page and number, text) of every fenced block in a language, without the indentation of a list around it."""
    found = []
    for page in PAGES:
        pattern = rf"^( *)```{language}\n(.*?)^ *```"
        for number, (indent, text) in enumerate(
            re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        ):
            found.append(
                (
                    f"{page.relative_to(ROOT)} {number}",
                    re.sub(rf"^{indent}", "", text, flags=re.MULTILINE),
                )
            )
    return found


@pytest.fixture(scope="module")
def print_status(broker: LocalCluster) -> LocalCluster:
    """The broker, with the topic that the examples name."""
    with Connection(settings.Kafka(), broker.bootstrap) as cluster:
        topics.create(cluster, "print-status", 4)
    return broker


@pytest.mark.parametrize("name", reference.pages())
def test_the_reference_is_current(name: str) -> None:
    assert (reference.FOLDER / name).read_text(encoding="utf-8") == reference.pages()[name], (
        "run: make docs"
    )


def test_no_page_is_left_of_a_rule_that_is_gone() -> None:
    assert {f"rules/{page.name}" for page in ROOT.glob("docs/rules/*")} <= reference.pages().keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_is_named_exists(page: Path) -> None:
    """In code, whether in a line or in a block: `instep show C-1`."""
    text = page.read_text(encoding="utf-8")
    fenced = "\n".join(re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL))
    named = {
        *re.findall(r"`instep ([a-z]+)", text),
        *re.findall(r"^ *instep ([a-z]+)", fenced, re.MULTILINE),
    }
    assert named <= cli.command_names()


def test_every_stop_has_a_page_and_every_page_a_stop() -> None:
    codes = {kind.code for kind in errors.NamedStop.__subclasses__()}
    pages = {page.stem: page.read_text(encoding="utf-8") for page in ROOT.glob("docs/stops/*.md")}
    assert pages.keys() == codes
    index = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    for code, text in pages.items():
        assert re.findall(r"^#+ .*", text, re.MULTILINE) == [
            f"# {code}",
            *(f"## {title}" for title in STOP_SECTIONS),
        ]
        assert "    instep " in text
        assert not re.search(r"\b(UPDATE|DELETE FROM|INSERT INTO)\b .*instep_", text), (
            "no statement by hand"
        )
        assert f"(stops/{code}.md)" in index


@pytest.mark.parametrize(("name", "text"), blocks("toml"), ids=[name for name, _ in blocks("toml")])
def test_settings_examples_are_valid(name: str, text: str) -> None:
    settings.parse(text, SECRETS)


@pytest.mark.parametrize(
    ("name", "text"), blocks("python"), ids=[name for name, _ in blocks("python")]
)
def test_python_examples_run(
    name: str, text: str, print_status: LocalCluster, tmp_path: Path
) -> None:
    program = text.replace("localhost:9092", print_status.bootstrap)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("page", "ends_with"),
    [("README.md", r"contracts\s+0\s+0\.0"), ("docs/guides/set-aside.md", "")],
)
def test_the_story_of_a_page(
    page: str, ends_with: str, print_status: LocalCluster, tmp_path: Path
) -> None:
    """Its settings and its commands, as they stand; only the broker and the topic's name are the tests' own."""
    (declared,) = [text for name, text in blocks("toml") if name.startswith(page)]
    (tmp_path / "instep.toml").write_text(declared, encoding="utf-8")
    (console,) = [text for name, text in blocks("console") if name.startswith(page)]
    commands = [line.removeprefix("$ ") for line in console.splitlines() if line.startswith("$ ")]
    assert len(commands) >= 5
    topic = re.sub(r"\W", "-", page)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "INSTEP__KAFKA__BOOTSTRAP": print_status.bootstrap,
        "INSTEP__PIPELINES__CONTRACTS__TOPIC": topic,
    }
    said = {}
    for command in commands:
        done = subprocess.run(
            command.replace("create print-status", f"create {topic}"),
            shell=True,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        said[command] = done.stdout
    assert re.search(ends_with, done.stdout), done.stdout
    if "instep show C-1" in said:
        verdicts = re.findall(
            r"^0:(\d).* (applied|skipped|released|parked)", said["instep show C-1"], re.MULTILINE
        )
        assert verdicts == [("0", "applied"), ("1", "skipped"), ("2", "released")]
        assert "the printer spoke too soon" in said["instep show C-1"]
        assert "CREATED  ┬─▶ QUEUED" in said["instep settings"]
