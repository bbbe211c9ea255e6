"""Test the settings of a bridge: what is refused, and that no secret is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from instep import errors, settings

BASE = """
[bridges.print]
topic = "print-status"
url = "https://print.example/documents/{document}"
status = "status"
ids_file = "ids.txt"
"""
LIST = (
    BASE.replace('ids_file = "ids.txt"', "") + '[bridges.print.ids_list]\nurl = "https://h/list"\n'
)


def test_defaults_and_absolute_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bridge = settings.parse(BASE, {}).bridges["print"]
    assert (bridge.ids_file, bridge.state) == (
        str(tmp_path / "ids.txt"),
        str(tmp_path / "bridge-print.db"),
    )
    assert (bridge.rate_per_s, bridge.concurrency, bridge.missing) == (10.0, 8, "ignore")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BASE.replace("/{document}", ""), "bridges.print.url does not name the document"),
        (BASE.replace('ids_file = "ids.txt"', ""), "does not say where the ids are"),
        (
            BASE + 'ids_query = "SELECT id"\nids_url = "sqlite:///x.db"',
            "sets ids_file and ids_query",
        ),
        (BASE.replace("ids_file", "ids_query"), "lacks ids_url"),
        (BASE + 'ids_url = "sqlite:///x.db"', "lacks ids_query"),
        (BASE + "rate_per_s = 0", "rate_per_s must be"),
        (BASE + "interval_min_s = 60\ninterval_max_s = 30", "interval_min_s is 60"),
        (BASE + "final_interval_s = -1", "final_interval_s is negative"),
        (BASE + 'missing = "drop"', "missing is 'drop'"),
        (BASE + 'version = "a..b"', "bridges.print.version is 'a..b'"),
        (BASE + '[bridges.print.fields]\nversion = "v"', "fields.version is a field that"),
        (BASE + '[bridges.print.headers]\nHost = "h"', "'Host' cannot be set"),
        (BASE + '[bridges.print.headers]\n"A B" = "h"', "'A B' cannot be set"),
        (BASE + '[bridges.print.headers]\nX = "${EVIL}"', "bridges.print.headers.X is empty"),
        (BASE.replace("bridges.print", 'bridges."a/b"'), "a bridge's name"),
        (BASE + "pages = 1", "unknown key 'pages'"),
        (LIST.replace("https://h", "h"), "bridges.print.ids_list.url is not"),
        (LIST + 'next = "n"\npage_parameter = "p"', "both next and page_parameter"),
        (LIST + 'next_parameter = "p"', "next_parameter needs"),
    ],
)
def test_what_cannot_work_is_refused(text: str, problem: str) -> None:
    with pytest.raises(errors.SettingsError) as refused:
        settings.parse(text, {"EVIL": "hush\r\nX-Other: 1"})
    assert problem in refused.value.what
    assert "hush" not in str(refused.value)


def test_headers_and_passwords_are_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "instep.toml"
    text = BASE.replace('ids_file = "ids.txt"', 'ids_query = "SELECT id FROM d"')
    text += 'ids_url = "postgresql://app:hush@db/print"\n'
    text += '[bridges.print.headers]\nAuthorization = "Bearer ${TOKEN}"\nX-Plain = "hush"\n'
    file.write_text(text, encoding="utf-8")
    loaded = settings.load_with_origins(file, {"TOKEN": "hush"})
    assert loaded.settings.bridges["print"].headers["Authorization"] == "Bearer hush"
    shown = dict(loaded.shown())
    assert shown["bridges.print.headers"] == {"Authorization": "***", "X-Plain": "***"}
    assert "hush" not in str(shown)


def test_an_unknown_bridge_is_named_with_the_nearest() -> None:
    declared = settings.parse(BASE, {})
    with pytest.raises(errors.SettingsError, match="did you mean 'print'"):
        settings.bridge(declared, "prnt")
    with pytest.raises(errors.SettingsError, match="declare none"):
        settings.bridge(settings.Settings(), "print")
