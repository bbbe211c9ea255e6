"""Test the command line as users run it: in its own process, with good and bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from typer.main import get_command

from instep import __version__, cli, settings, sinks
from instep.cli import output
from instep.demo.pipeline_process import PipelineProcess
from instep.local.broker import LocalCluster
from instep.local.ports import free
from instep.sinks import inspection
from tests.support import probes
from tests.support.cli import EVENTS, instep, prepare_folder, reported, settings_text
from tests.support.databases import run_sql
from tests.support.transactions import apply, begun, event, record
from tests.support.waiting import wait_until


@pytest.fixture
def place(tmp_path: Path, broker: LocalCluster) -> Path:
    """Make a folder with a settings file, and the topic that it names."""
    prepare_folder(tmp_path, broker.bootstrap)
    return tmp_path


def test_help_lists_the_commands_and_version_prints_the_version(tmp_path: Path) -> None:
    assert instep(tmp_path, "--version").stdout == f"instep {__version__}\n"
    shown = instep(tmp_path, "--help").stdout
    for command in ("demo", "init", "up", "down", "status", "emit", "run"):
        assert re.search(rf"^  {command} ", shown, re.MULTILINE), command


def test_a_run_that_quarantined_most_events_warns(place: Path) -> None:
    bad = [
        json.dumps({"doc_id": f"x{number}", "status": "PRINTED", "version": "one"})
        for number in range(30)
    ]
    instep(place, "init")
    instep(place, "emit", "-", given="\n".join([EVENTS, *bad]))
    here = str(Path(__file__).parents[2])
    probed = {
        "INSTEP_PROBE": "tests.support.probes:restart_once",
        probes.FOLDER: str(place),
        "PYTHONPATH": here,
    }
    done = instep(place, "run", "--once", "--fail-on", "quarantine", **probed)
    assert done.returncode == 1, done.stderr
    assert "contracts: 50 records: 20 applied" in done.stderr
    assert re.search("30 dead letters; [1-9] restarts", done.stderr), done.stderr
    assert (
        "WARNING: contracts: 30 of 50 records went to quarantine (30 dead letters, 0 parked),"
        " all for WRONG_TYPE; list them: instep dead list contracts\n" in done.stderr
    )


def test_status_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "instep.toml").write_text(
        settings_text(bootstrap="", topic="t").replace('bootstrap = ""', "")
    )
    home = {"INSTEP_HOME": str(tmp_path / "home"), "INSTEP__SPARK__MASTER": "spark://nowhere:7077"}
    assert instep(tmp_path, "init", **home).returncode == 0
    done = instep(tmp_path, "status", **home)
    assert done.returncode == 1
    assert re.search(r"^contracts .* never run$", done.stdout, re.MULTILINE)
    assert (
        "the local Kafka is not running, so the lag is unknown\nstart it: instep up\n"
        in done.stderr
    )
    assert instep(tmp_path, "up", "status", **home).stderr == "no local server has been started\n"
    run_sql(f"sqlite:///{tmp_path}/contracts.db", "DROP TABLE instep_runs")
    reported = instep(tmp_path, "status", **home)
    assert "has no table instep_runs\nrun: instep init\n" in reported.stderr


def test_every_named_document_and_dead_letter_is_reported(place: Path) -> None:
    """Process the named parked documents and dead letters even if others do not exist."""
    text = (
        (place / "instep.toml")
        .read_text(encoding="utf-8")
        .replace('key = "doc_no"', 'key = "doc_no"\nmissing = "park"')
    )
    (place / "instep.toml").write_text(text, encoding="utf-8")
    instep(place, "init")
    pipeline = settings.pipeline(settings.load(place / "instep.toml"), "contracts")
    pipeline = msgspec.structs.replace(pipeline, target=f"sqlite:///{place}/contracts.db")
    sink = begun(sinks.open_sink(inspection.inspect("contracts", pipeline)))
    apply(
        sink,
        [
            event(0, "a", 1),
            event(1, "b", 1),
            record(2, "c", {"status": 1}),
            record(3, "c", {"status": 1}),
        ],
    )
    sink.close()
    for limit, retried in (("900", 2), ("0", 0)):
        listed = instep(
            place, "parked", "list", "--json", INSTEP__PIPELINES__CONTRACTS__RETRY_PARKED_S=limit
        )
        found = json.loads(listed.stdout)
        documents = found["documents"]
        assert found["total"] == len(documents) == 2
        assert sum(one["retried_until"] is not None for one in documents) == retried
    assert instep(place, "parked", "list", "-n", "1").stderr == (
        "1 of 2 parked documents; -n shows more\n"
    )
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    assert reported(place, "parked", "list", "--since", tomorrow) == {"total": 0, "documents": []}
    run_sql(
        f"sqlite:///{place}/contracts.db",
        "INSERT INTO contract_document (doc_no) VALUES ('a'), ('b')",
    )
    planned = instep(place, "parked", "release", "a", "b")
    assert planned.stderr == f"2 applied\n{output.DRY_RUN}\n"
    partly = instep(place, "parked", "release", "a", "x")
    assert partly.returncode == 1
    assert partly.stderr.splitlines() == [
        "instep: document 'x' is not parked",
        "run: instep parked list",
        "1 applied",
        output.DRY_RUN,
    ]
    partly = instep(place, "dead", "drop", "0:9", "0:2", "--why", "void")
    assert partly.returncode == 1
    assert partly.stderr.splitlines()[0] == "instep: there is no dead letter at 0:9"
    assert partly.stderr.splitlines()[-1] == output.DRY_RUN
    done = instep(place, "parked", "release", "a", "x", "b", "--execute")
    assert (done.returncode, done.stdout.count("applied")) == (1, 2), done
    assert "instep: document 'x' is not parked\nrun: instep parked list\n" in done.stderr
    assert "nothing was done: document 'x' is not parked" in refused(
        place, "parked", "release", "x"
    )
    dropped = instep(
        place, "dead", "drop", "0:2", "0:9", "0:3", "--why", "void", "--execute", "--json"
    )
    result = json.loads(dropped.stdout)
    assert (dropped.returncode, len(result["events"]), result["not_found"]) == (1, 2, ["0:9"])
    assert "instep: there is no dead letter at 0:9" in dropped.stderr


def test_run_shows_metrics_and_ends_cleanly_on_a_signal(place: Path) -> None:
    """Stop by SIGTERM.

    test_watch uses SIGINT, and a test below sends SIGINT while Spark starts.
    """
    instep(place, "init")
    instep(place, "emit", "-", given=EVENTS)
    port = free()[0]
    process = PipelineProcess(place / "instep.toml", "--metrics", str(port), log=place / "run.log")
    with process:
        wait_until(
            lambda: _metric(port, 'instep_applied_total{pipeline="contracts"}') == 20.0,
            "the events to be applied",
        )
        # counted just after the events
        for name, value in (("lag_records", 0.0), ("freshness_seconds_count", 20.0)):
            whole = f'instep_{name}{{pipeline="contracts"}}'
            wait_until(lambda whole=whole, value=value: _metric(port, whole) == value, whole)  # type: ignore[misc]
        # in the middle of a backlog; the process itself stops waiting for Spark after 4 s
        instep(place, "emit", "-", given="\n".join([EVENTS] * 1_000))
        wait_until(
            lambda: (_metric(port, 'instep_records_total{pipeline="contracts"}') or 0) > 20,
            "the backlog to be begun",
        )
        process.signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def _metric(port: int, name: str) -> float | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            lines = page.read().decode().splitlines()
    except OSError:
        return None
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), None)


def refused(folder: Path, *arguments: str, **changes: Any) -> str:
    done = instep(folder, *arguments, **changes)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    said = [
        line
        for line in done.stderr.strip().splitlines()
        if not line.endswith("waiting; starting Spark")
    ]
    assert len(said) <= 2, done.stderr
    return done.stderr


def test_bad_settings_are_refused(tmp_path: Path, place: Path) -> None:
    assert "does not exist" in refused(tmp_path, "--config", "nowhere.toml", "run")
    assert "does not exist" in refused(tmp_path, "run", "--config", "nowhere.toml")
    assert "did you mean 'contracts'?" in refused(place, "run", "contract")
    assert "run: instep init" in refused(place, "run", "--once")
    file = place / "instep.toml"
    file.write_text(file.read_text().replace("topic =", "topik ="), encoding="utf-8")
    assert "did you mean 'topic'?" in refused(place, "run")


WRONG_USE: list[tuple[tuple[str, ...], str]] = [
    (("dead", "drop", "0:1"), "why"),
    (("dead", "drop", "0:1", "--why", " "), "--why is empty"),
    (("dead", "drop", "--why", "x"), "no dead letters are selected"),
    (("dead", "replay"), "no dead letters are selected"),
    (("dead", "replay", "1745"), "PARTITION:OFFSET"),
    (("dead", "show", "a:b"), "PARTITION:OFFSET"),
    (("dead", "show", "0:99"), "no dead letter at 0:99"),
    (("dead", "list", "--reason", "NOT_JASON"), "did you mean 'NOT_JSON'?"),
    (("dead", "list", "--since", "yesterday-ish"), "'yesterday-ish' is not a time"),
    (("parked", "release"), "no documents are selected"),
    (("parked", "release", "nobody"), "is not parked"),
    (("parked", "skip", "nobody", "--why", "x"), "is not parked"),
    (("parked", "skip", "nobody", "--why", "x", "--event", "0"), "'0' is not a place"),
    (("parked", "release", "--until", "soon"), "'soon' is not a time"),
    (("parked", "show", "nobody"), "is not parked"),
    (("show", "nobody\x1b[31m"), "no pipeline knows document 'nobody\\x1b[31m'"),
    (("show", "x", "--pipeline", "contract"), "did you mean 'contracts'?"),
    (("replay",), "no range and no document is selected"),
    (("replay", "--from", "@soon"), "not a place in a log"),
    (("history", "prune", "--older-than", "long"), "'long' is not a time"),
]


def test_wrong_use_gives_a_short_error_and_changes_nothing(place: Path) -> None:
    instep(place, "init")
    for arguments, words in WRONG_USE:
        done = instep(place, *arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert words in done.stderr, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
        assert "\x1b" not in done.stderr
    for arguments in (
        ("dead", "list"),
        ("parked", "list"),
        ("history", "prune", "--older-than", "90d"),
        ("settings",),
    ):
        assert instep(place, *arguments).returncode == 0, arguments
    assert json.loads(instep(place, "dead", "list", "--json").stdout) == {"reasons": []}
    nothing = {"total": 0, "documents": []}
    assert json.loads(instep(place, "parked", "list", "--json").stdout) == nothing


def test_a_document_is_shown_although_another_pipeline_has_keys_of_another_type(
    tmp_path: Path,
) -> None:
    text = settings_text(bootstrap="127.0.0.1:1", topic="t")
    numbered = (
        text.partition("[pipelines.contracts]")[2]
        .replace("contracts.", "numbered.", 2)
        .replace("contract_document", "n")
    )
    numbered = numbered.replace("pipelines.contracts", "pipelines.numbered").replace(
        "sqlite:///numbered.db", "sqlite:///contracts.db"
    )
    (tmp_path / "instep.toml").write_text(
        f"{text}\n[pipelines.numbered]{numbered}", encoding="utf-8"
    )
    url = f"sqlite:///{tmp_path}/contracts.db"
    run_sql(
        url,
        "CREATE TABLE n (doc_no INTEGER PRIMARY KEY, print_status TEXT,"
        " print_version BIGINT, printed_at TIMESTAMP)",
    )
    assert instep(tmp_path, "init").returncode == 0
    run_sql(url, "INSERT INTO contract_document (doc_no, print_status) VALUES ('abc', 'PRINTED')")
    shown = instep(tmp_path, "show", "abc")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "document abc of pipeline contracts" in shown.stdout
    assert "PRINTED" in shown.stdout
    assert "no pipeline knows document '7' (searched: contracts, numbered)" in refused(
        tmp_path, "show", "7"
    )
    assert "is not a document id of this table" in refused(
        tmp_path, "show", "abc", "--pipeline", "numbered"
    )


def test_a_missing_topic_names_the_command_that_creates_it(place: Path) -> None:
    instep(place, "init")
    # a long name: with one that resembles another test's topic, the remedy would suggest that topic
    file, topic = place / "instep.toml", f"missing-{uuid.uuid4().hex}"
    file.write_text(
        re.sub(r'topic = ".*"', f'topic = "{topic}"', file.read_text()), encoding="utf-8"
    )
    for arguments in (("run", "--once"), ("emit", "-")):
        command = refused(place, *arguments).splitlines()[-1]
        assert command.startswith(f"instep topics create {topic}")
    assert instep(place, *command.split()[1:]).returncode == 0
    assert instep(place, "emit", "-", given=EVENTS).returncode == 0


def test_an_unreachable_broker_is_reported(place: Path) -> None:
    instep(place, "init")
    port = free()[0]
    message = refused(place, "run", INSTEP__KAFKA__BOOTSTRAP=f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in message
    assert re.search(r"\d+ s", message)


def test_a_bad_line_in_a_file_is_reported(place: Path) -> None:
    file = place / "events.jsonl"
    file.write_text(EVENTS + "\n{oops\n", encoding="utf-8")
    message = refused(place, "emit", "events.jsonl")
    assert "line 21" in message
    assert "20 records before it were published" in message
    assert "cannot be read" in refused(place, "emit", "gone.jsonl")
    assert "suffix" in refused(place, "emit", "instep.toml")


def test_csv_and_deletes_are_published_too(place: Path) -> None:
    """Read the id from a nested object, as the settings say, into an integer column."""
    file, database = place / "instep.toml", f"sqlite:///{place}/contracts.db"
    file.write_text(
        file.read_text(encoding="utf-8").replace('"doc_id"', '"document.no"'), encoding="utf-8"
    )
    (place / "events.csv").write_text(
        "document.no,status,version\n1,PRINTED,1\n2,FAILED,2\n3,QUEUED,1\n", encoding="utf-8"
    )
    assert "ids are published as text" in instep(place, "emit", "events.csv").stderr, (
        "there is no table yet to say more"
    )
    columns = (
        "doc_no INTEGER PRIMARY KEY, print_status TEXT, print_version INTEGER, printed_at TIMESTAMP"
    )
    run_sql(database, f"CREATE TABLE contract_document ({columns})")
    instep(place, "init")
    assert instep(place, "emit", "events.csv").returncode == 0
    assert "2 deletions published" in instep(place, "emit", "--delete", "3", "7").stderr
    assert "not the file events.csv" in refused(place, "emit", "--delete", "events.csv")
    assert instep(place, "run", "--once").returncode == 0
    rows = run_sql(
        database, "SELECT doc_no, print_status, print_version FROM contract_document ORDER BY 1"
    )
    assert rows == [(1, "PRINTED", 1), (2, "FAILED", 2)]
    assert run_sql(database, "SELECT COUNT(*) FROM instep_dead_letters") == [(3,)]


@pytest.mark.parametrize("delay_s", [0.0, 0.5, 1.5])
def test_a_stop_while_spark_starts_leaves_nothing_behind(place: Path, delay_s: float) -> None:
    instep(place, "init")
    with PipelineProcess(place / "instep.toml", log=place / "run.log") as process:
        wait_until(lambda: process.children() != [], "the JVM to be started")
        moment = time.monotonic() + delay_s
        wait_until(lambda: time.monotonic() > moment, "a later moment of the start")
        process.signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)
        wait_until(lambda: process.children() == [], "its children to be gone")
    assert "Traceback" not in process.tail()


def test_a_dead_jvm_ends_the_run_with_an_error(place: Path) -> None:
    instep(place, "init")
    with PipelineProcess(place / "instep.toml", log=place / "run.log") as process:
        wait_until(lambda: "contracts: running" in process.tail(), "the pipeline to run")
        java = next(pid for pid in process.children() if psutil.Process(pid).name() == "java")
        os.kill(java, signal.SIGKILL)
        assert process.wait(90) == 1
    assert "Spark's JVM is gone" in process.tail()
    assert "Traceback" not in process.tail()


def test_impossible_spark_settings(place: Path) -> None:
    instep(place, "init")
    assert 'write e.g. memory = "640m"' in refused(place, "run", INSTEP__SPARK__MEMORY="lots")
    assert "not a Spark master" in refused(place, "run", "--master", "spork://x")
    assert "no Spark master answers at spark://127.0.0.1:1" in refused(
        place, "run", "--master", "spark://127.0.0.1:1"
    )
    given = {"INSTEP__SPARK__CONF": '{"spark.driver.cores": "none"}'}
    assert "Spark could not start" in refused(place, "run", **given)
    assert "65535" in instep(place, "run", "--metrics", "99999").stderr


def test_quick_commands_import_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, instep.cli; print(sorted({'pyspark', 'sqlalchemy', 'pyarrow',"
        " 'confluent_kafka'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--execute"], "--execute and --delete-extra require --fix"),
        (
            ["--source", "a.csv", "--source-url", "sqlite:///x.db", "--query", "SELECT 1"],
            "cannot be used together",
        ),
        (["--source-url", "sqlite:///x.db"], "--source-url and --query must be used together"),
        (["--source", "a.csv", "--from", "start"], "--from is a place in the log"),
        (["nobody"], "there is no pipeline 'nobody'"),
        (["--out", "nowhere/rows.jsonl"], "cannot be written"),
    ],
)
def test_reconcile_refuses_impossible_options(place: Path, arguments: list[str], says: str) -> None:
    refused = instep(place, "reconcile", *arguments)
    assert refused.returncode == 2
    assert says in refused.stderr


def test_every_command_is_found_in_its_module() -> None:
    """Find each command in the module that the table names, and list all of them in the help."""

    def commands(wanted: list[str] | None) -> set[str]:
        return set(get_command(cli.build_app(wanted)).commands)  # type: ignore[attr-defined]

    for name in cli.COMMANDS:
        assert commands([name]) == {name}
    assert commands(["lab"]) == {"lab"}
    assert commands(None) == {*cli.COMMANDS, "lab", "bench"}


ORDERS = """
[pipelines.{name}]
topic = "{topic}"
target = "sqlite:///{name}.db"
table = "customer_order"
key = "no"

[pipelines.{name}.event]
document = "no"

[pipelines.{name}.columns]
total = "total"
paid = "paid"
"""


def test_init_infers_types_from_the_topic_and_reports_every_problem(place: Path) -> None:
    file = place / "instep.toml"
    kafka, _, rest = file.read_text(encoding="utf-8").partition("[pipelines")
    topic = re.findall('topic = "(.*)"', rest)[0]
    file.write_text(
        kafka + "".join(ORDERS.format(name=name, topic=topic) for name in ("one", "two", "three")),
        encoding="utf-8",
    )
    reported = instep(place, "init", "one", "--no-infer", "--sql")
    assert (reported.stderr, "total TEXT" in reported.stdout) == ("", True)
    assert "no type is known for total, paid" in instep(place, "init", "one", "--sql").stderr
    rows = "\n".join(f'{{"no": {number}, "total": 20.5, "paid": true}}' for number in range(5))
    assert instep(place, "emit", "-", "--topic", topic, "--key", "no", given=rows).returncode == 0
    reported = instep(place, "init", "one", "--infer")
    assert "types inferred from 5 records" in reported.stderr
    assert re.search(r"no BIGINT NOT NULL, total NUMERIC\(38, 6\), paid BOOLEAN", reported.stdout)

    for name in ("two", "three"):
        run_sql(
            f"sqlite:///{place}/{name}.db",
            "CREATE TABLE customer_order (no INTEGER NOT NULL PRIMARY KEY, tota TEXT,"
            " x INT NOT NULL)",
        )
    reported = instep(place, "init")
    assert (reported.returncode, reported.stdout) == (2, "")
    assert "one: ready" in reported.stderr
    for name in ("two", "three"):
        assert (
            f"instep: {name}: table customer_order has no column 'total'; did you mean 'tota'?"
            in reported.stderr
        )
        assert f"instep: {name}: table customer_order has no column 'paid'" in reported.stderr
        assert (
            f"instep: {name}: table customer_order: column 'x' does not allow null"
            in reported.stderr
        )
    run_sql(f"sqlite:///{place}/two.db", "ALTER TABLE customer_order DROP COLUMN x")
    assert "cannot be combined with --execute" in refused(place, "init", "--sql", "--execute")
    add_columns = ("init", "two", "--add-columns")
    url, columns = f"sqlite:///{place}/two.db", "SELECT * FROM pragma_table_info('customer_order')"
    before = run_sql(url, columns)
    planned = instep(place, *add_columns)
    assert (planned.returncode, planned.stdout.count("ALTER TABLE")) == (0, 2)
    assert planned.stderr.splitlines()[-1] == output.DRY_RUN
    assert "ready" not in planned.stderr
    [plan] = json.loads(instep(place, *add_columns, "--json").stdout)["pipelines"]
    assert (plan["executed"], len(plan["statements"])) == (False, planned.stdout.count("two: "))
    assert run_sql(url, columns) == before
    done = instep(place, *add_columns, "--execute")
    assert (done.returncode, done.stdout) == (0, planned.stdout)
    again = instep(place, *add_columns)
    assert (again.returncode, again.stdout, "two: ready" in again.stderr) == (0, "", True)
