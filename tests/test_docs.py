"""Test the documentation: pages are generated from the code, links resolve, every example runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import instep
from instep import cli, errors, settings
from instep.console import access
from instep.document.reasons import Reason
from instep.kafka import topics
from instep.kafka.connection import Cluster as Connection
from instep.local.broker import LocalCluster
from instep.vet import judgement, rules
from scripts import docs_site, python_api, record_demo
from tests.support import commands

ROOT = Path(__file__).parent.parent
ROOT_PAGES = sorted(ROOT.glob("*.md"))
PAGES = [*ROOT_PAGES, *sorted(ROOT.glob("docs/**/*.md"))]
STOP_SECTIONS = (
    "What happened",
    "What is safe",
    "How to investigate",
    "What to run",
    "How to avoid it",
)
SECRETS = {"KAFKA_PASSWORD": "secret", "DB_PASSWORD": "secret", "PRINT_TOKEN": "secret"}


def blocks(language: str) -> list[tuple[str, str]]:
    """Return (page and number, text) of every fenced block in a language, without indentation."""
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
    """Return a broker with the topic that the examples use."""
    with Connection(settings.Kafka(), broker.bootstrap) as cluster:
        topics.create(cluster, "print-status", 4)
    return broker


def test_the_site_builds_without_a_broken_link_or_anchor(tmp_path: Path) -> None:
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert build.returncode == 0, build.stderr
    for page in (*docs_site.generated_pages(), "quickstart.md", "stops/FENCED.md"):
        assert (tmp_path / page).with_suffix(".html").is_file(), page


def test_the_reference_covers_every_rule_error_setting_and_public_name() -> None:
    pages = docs_site.generated_pages()
    for rule in rules.ALL:
        assert f"(../rules/{rule}.md)" in pages["reference/rules.md"]
        assert pages[f"rules/{rule}.md"].startswith(f"# {rule}\n")
    for kind in errors.NamedStop.__subclasses__():
        assert f"| `{kind.code}` |" in pages["reference/errors.md"]
    for key, *_ in settings.describe():
        assert f"| `{key}` |" in pages["reference/settings.md"]
    for command in cli.command_names():
        assert f"\n## instep {command}\n" in pages["reference/commands.md"]
    for name in instep.__all__:
        assert f"\n## {name}\n" in pages["reference/python.md"]


def test_the_quickstart_lists_every_extra() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    table = page.partition("| extra |")[2].partition("\n\n")[0]
    names = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    listed = {name for cell in names for name in re.findall(r"`(\w+)`", cell)}
    assert listed == declared["project"]["optional-dependencies"].keys()


def test_an_undocumented_public_name_is_an_error() -> None:
    package = types.ModuleType("package")
    package.__all__ = ["plain"]  # type: ignore[attr-defined]
    package.plain = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(python_api.Undocumented, match=r"package\.plain"):
        python_api.page(package)


@pytest.mark.parametrize("page", ROOT_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_outside_the_site_link_only_to_existing_files(page: Path) -> None:
    """Allow only links to files.

    README and the others are also read in the repository, where generated pages do not exist.
    """
    for link in re.findall(r"\]\((?![a-z]+:|#)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_the_docs_exists(page: Path) -> None:
    """Find commands in code spans and in code blocks: `instep show C-1`."""
    text = page.read_text(encoding="utf-8")
    fenced = "\n".join(re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL))
    named = {
        *re.findall(r"`instep ([a-z]+)", text),
        *re.findall(r"^ *instep ([a-z]+)", fenced, re.MULTILINE),
    }
    assert named <= cli.command_names()


def test_every_code_in_the_docs_exists() -> None:
    """Find codes that no longer exist, for example of a renamed rule."""
    codes = {kind.code for kind in errors.NamedStop.__subclasses__()}
    codes |= rules.ALL.keys() | {reason.value for reason in Reason}
    prefixes = "|".join(part.upper() for part in judgement.PARTS)
    for page in PAGES:
        named = re.findall(rf"\b(?:{prefixes})_[A-Z_]+\b", page.read_text(encoding="utf-8"))
        assert set(named) <= codes, page


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
def test_settings_examples_are_valid(name: str, text: str, tmp_path: Path) -> None:
    if text.startswith("# users.toml"):
        (tmp_path / "users.toml").write_text(text, encoding="utf-8")
        assert access.load_users(tmp_path / "users.toml").users
    else:
        settings.parse(text, SECRETS)


@pytest.mark.parametrize(
    ("name", "text"), blocks("python"), ids=[name for name, _ in blocks("python")]
)
def test_python_examples_run(
    name: str, text: str, print_status: LocalCluster, tmp_path: Path
) -> None:
    page = name.partition(" ")[0]
    for declaring, declared in blocks("toml"):
        if declaring == f"{page} 0":
            (tmp_path / "instep.toml").write_text(declared, encoding="utf-8")
    program = text.replace("localhost:9092", print_status.bootstrap)
    environment = {**os.environ, "INSTEP__KAFKA__BOOTSTRAP": print_status.bootstrap}
    done = commands.run([], cwd=tmp_path, env=environment, program=program)
    assert done.returncode == 0, done.stderr


def test_an_example_is_compiled_without_the_test_helpers_future_imports(tmp_path: Path) -> None:
    program = "def double(number: int): ...\nassert double.__annotations__ == {'number': int}"
    done = commands.run([], cwd=tmp_path, env=os.environ, program=program)
    assert done.returncode == 0, done.stderr


def run_in_shell(
    line: str, folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line,
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run_in_fork(
    line: str, folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `instep ...` or `... | instep ...` with a command that starts quickly."""
    before, _, command = line.rpartition(" | ")
    given = run_in_shell(before, folder, environment).stdout if before else ""
    program, *arguments = shlex.split(command)
    assert program == "instep"
    return commands.run(arguments, cwd=folder, env=environment, given=given)


@pytest.mark.parametrize(
    ("page", "ends_with"),
    [
        ("README.md", r"contracts\s+0\s+0\.0"),
        ("docs/quickstart.md", r"contracts\s+contract_document\s+1\s+1\s+0"),
        ("docs/guides/handle-rejected-events.md", ""),
    ],
)
def test_the_commands_of_a_page_run_in_order(
    page: str, ends_with: str, print_status: LocalCluster, tmp_path: Path
) -> None:
    """Run a page's commands with its settings. Only the broker and the topic's name differ."""
    (declared,) = [text for name, text in blocks("toml") if name.startswith(page)]
    (tmp_path / "instep.toml").write_text(declared, encoding="utf-8")
    (console,) = [text for name, text in blocks("console") if name.startswith(page)]
    lines = [line.removeprefix("$ ") for line in console.splitlines() if line.startswith("$ ")]
    assert len(lines) >= 5
    topic = re.sub(r"\W", "-", page)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "INSTEP__KAFKA__BOOTSTRAP": print_status.bootstrap,
        "INSTEP__PIPELINES__CONTRACTS__TOPIC": topic,
    }
    run = run_in_shell if page == "README.md" else run_in_fork
    outputs = {}
    for line in lines:
        done = run(line.replace("create print-status", f"create {topic}"), tmp_path, environment)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        outputs[line] = done.stdout
    assert re.search(ends_with, done.stdout), done.stdout
    if page == "docs/quickstart.md":
        assert "FIELD_MISSING" in outputs["instep dead list"]
        assert outputs["instep show C-1"].count("applied") == 2
    if page == "docs/guides/handle-rejected-events.md":
        verdicts = re.findall(
            r"^0:(\d).* (applied|skipped|released|parked)", outputs["instep show C-1"], re.MULTILINE
        )
        assert verdicts == [("0", "applied"), ("1", "skipped"), ("2", "released")]
        assert "the printer reported too early" in outputs["instep show C-1"]
        assert "CREATED  ┬─▶ QUEUED" in outputs["instep settings"]


def test_a_recording_gives_the_same_small_picture_every_time() -> None:
    lines = [
        '{"version": 2, "width": 100, "height": 30}',
        '[0.5, "o", "one\\r\\n\\u001b[32mtwo\\u001b[0m"]',
        '[9.5, "o", "\\r\\u001b[2K<three>"]',
    ]
    picture = record_demo.render("\n".join(lines))
    assert picture == record_demo.render("\n".join(lines))
    assert picture.count(">one</text>") == 1  # a line that stays is defined once
    assert "fill:#7fc98b" in picture
    assert "&lt;three&gt;" in picture
    ET.fromstring(picture)


def test_the_committed_recording_is_small_and_contains_no_machine_path() -> None:
    picture = (ROOT / "docs" / "images" / "demo.svg").read_text(encoding="utf-8")
    assert len(picture) < 200_000
    assert not re.search(r"/(work|home|root|tmp)/", picture)
