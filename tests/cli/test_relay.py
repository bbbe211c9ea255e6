"""Test `instep relay` as a command: what it prints, what it changes, and what a plan leaves."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from instep import settings
from instep.cli.output import DRY_RUN
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.local.broker import LocalCluster
from instep.sinks import target
from instep.sources.lease import Lease
from tests.support.cli import instep, refused, refused_in_process, reported
from tests.support.databases import run_sql
from tests.support.print_shop import published
from tests.support.sql_clients import run_script

NewDatabase = Callable[[str], str]

NO_CLUSTER = "127.0.0.1:1"
COST = re.compile(
    r"the trigger adds -?\d+\.\d\d ms to a transaction: \d+\.\d\d ms without and \d+\.\d\d ms with"
    r" it \(median of 200 updates of one row\)"
)


def prepare(folder: Path, source: str, bootstrap: str = NO_CLUSTER) -> str:
    """Write the settings of one relay. Return its name, which is also that of its topic."""
    name = f"relay-{uuid.uuid4().hex[:8]}"
    (folder / "instep.toml").write_text(
        f"[kafka]\nbootstrap = {bootstrap!r}\n"
        f"[relays.{name}]\nsource = {source!r}\ntopic = {name!r}\nversion = 'version'\n",
        encoding="utf-8",
    )
    return name


@pytest.fixture
def relay(broker: LocalCluster, tmp_path: Path) -> str:
    """Return the name of a relay of a SQLite database, with its topic, before `relay init`."""
    name = prepare(tmp_path, f"sqlite:///{tmp_path}/shop.db", broker.bootstrap)
    with Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        topics.create(cluster, name, 2)
    return name


def add(url: str, *documents: str) -> None:
    """Add an event of each document to the outbox."""
    insert = "INSERT INTO instep_outbox (document, value) VALUES ('{}', '{{}}')"
    run_sql(url, *(insert.format(document) for document in documents))


def documents(broker: LocalCluster, topic: str) -> set[str]:
    """Return the documents of the records that committed readers see."""
    with Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        return set(published(cluster, topic))


def test_the_printed_statements_leave_only_the_topic_to_create(
    database_url: str, broker: LocalCluster, tmp_path: Path
) -> None:
    """Let an administrator run them, and let the relay's own user do the rest."""
    name = prepare(tmp_path, database_url, broker.bootstrap)
    printed = instep(tmp_path, "relay", "init", "--sql")
    assert (printed.returncode, printed.stderr) == (0, "")
    assert "CREATE TABLE" in printed.stdout
    assert f"VALUES ('{name}', '" in printed.stdout
    assert reported(tmp_path, "relay", "init", "--sql")["executed"] is False
    assert ": instep relay init" in refused(tmp_path, "relay", "status")
    if not database_url.startswith("sqlite"):  # there, a relay waits for the file
        assert ": instep relay init" in refused(tmp_path, "relay", "run")
    run_script(database_url, printed.stdout)
    assert instep(tmp_path, "relay", "init", "--sql").stdout == ""
    done = instep(tmp_path, "relay", "init")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == [
        f"{name}: created topic instep-relay.{name}",
        f"{name}: ready",
    ]
    again = instep(tmp_path, "relay", "init")
    assert (again.stdout, again.stderr) == ("", f"{name}: ready\n")


def test_triggers_are_printed_for_the_database_and_their_cost_is_measured(
    database_url: str, broker: LocalCluster, tmp_path: Path
) -> None:
    prepare(tmp_path, database_url, broker.bootstrap)
    assert instep(tmp_path, "relay", "init").returncode == 0
    run_sql(database_url, "CREATE TABLE job (id integer PRIMARY KEY, status varchar(9), n integer)")
    trigger = ("relay", "init", "--trigger", "job", "--columns", "status, n")
    printed = instep(tmp_path, *trigger, "--sql")
    assert (printed.returncode, printed.stderr) == (0, "")
    has_delimiter = database_url.startswith("m")
    created = re.search(r"DELIMITER \$\$\nCREATE (OR REPLACE )?TRIGGER", printed.stdout)
    assert (created is not None) == has_delimiter
    assert ("END $$\nDELIMITER ;\n" in printed.stdout) == has_delimiter
    run_sql(database_url, "INSERT INTO job VALUES (1, 'NEW', 1)")
    count = "SELECT count(*) FROM instep_outbox"
    assert run_sql(database_url, count) == [(0,)]
    run_script(database_url, printed.stdout)
    run_sql(database_url, "UPDATE job SET status = 'DONE'")
    assert run_sql(database_url, count) == [(1,)]
    done = instep(tmp_path, *trigger, "--execute")
    assert done.returncode == 0, done.stderr
    locked = "LOCK TABLES" in done.stdout  # because there are triggers to replace now
    assert locked == database_url.startswith("mysql")
    job = f"`{target.database_url(database_url).database}`.`job`"
    expected = f"LOCK TABLES {job} WRITE;\n\n{printed.stdout}UNLOCK TABLES;\n\n"
    assert done.stdout == (expected if locked else printed.stdout)
    assert COST.search(done.stderr), done.stderr
    assert run_sql(database_url, count) == [(1,)]
    cost = reported(tmp_path, *trigger, "--execute")["cost"]
    assert cost["transactions"] == 200
    assert cost["with_ms"] > 0


def test_init_creates_everything_and_a_run_publishes_until_the_outbox_is_empty(
    relay: str, broker: LocalCluster, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    assert "run: instep relay init" in refused(tmp_path, "relay", "status")
    created = instep(tmp_path, "relay", "init", relay)
    assert created.returncode == 0, created.stderr
    made = re.findall(r"^CREATE TABLE \W?(\w+)", created.stdout, re.MULTILINE)
    assert made == ["instep_outbox", "instep_relays", "instep_outbox_dead"]
    add(url, "a", "b", "c")
    [waiting] = reported(tmp_path, "relay", "status")["relays"]
    assert (waiting["state"], waiting["published_rows"], waiting["outbox_rows"]) == (
        "stopped",
        0,
        3,
    )
    done = instep(tmp_path, "relay", "run", "--once")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.endswith(
        f"{relay}: stopped; this process published 3 rows in 1 transactions\n"
    )
    assert documents(broker, relay) == {"a", "b", "c"}
    head, line = instep(tmp_path, "relay", "status", relay).stdout.splitlines()
    assert head.split("  ")[0] == "RELAY"
    assert line.split() == [relay, "stopped", "3", "0", "0", "0"]


def test_dead_rows_are_listed_with_their_reasons(relay: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    assert instep(tmp_path, "relay", "init").returncode == 0
    assert instep(tmp_path, "relay", "dead").stderr == f"{relay}: no dead rows\n"
    run_sql(url, "INSERT INTO instep_outbox (document, value) VALUES ('', '{}')")
    add(url, "a")
    assert instep(tmp_path, "relay", "run", "--once").returncode == 0
    head, line = instep(tmp_path, "relay", "dead", relay).stdout.splitlines()
    assert head.split() == ["ID", "OCCURRENCE", "DOCUMENT", "BYTES", "AT", "REASON"]
    assert line.endswith("must not be empty")
    [row] = reported(tmp_path, "relay", "dead")["rows"]
    assert (row["id"], row["occurrence"], row["document"], row["value_bytes"]) == (1, 0, "", 2)


def test_a_reset_shows_its_plan_and_changes_nothing_without_execute(
    relay: str, broker: LocalCluster, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    assert instep(tmp_path, "relay", "init").returncode == 0
    add(url, "a", "b")
    reset = ("relay", "reset", relay, "--to", "end")
    planned = instep(tmp_path, *reset)
    assert planned.returncode == 0
    assert planned.stdout.splitlines() == [
        f"{relay}: published 0 rows so far",
        f"{relay}: after the reset, rows now in the outbox are skipped; only rows added later are"
        " published",
    ]
    assert planned.stderr.splitlines() == [DRY_RUN]
    done = instep(tmp_path, *reset, "--execute")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == f"done; start it: instep relay run {relay}"
    add(url, "c")
    assert instep(tmp_path, "relay", "run", "--once").returncode == 0
    assert documents(broker, relay) == {"c"}
    plan = reported(tmp_path, "relay", "reset", relay, "--to", "start")
    assert (plan["executed"], plan["plan"]["published_rows"]) == (False, 1)


def test_one_run_ends_if_no_broker_answers(relay: str, tmp_path: Path) -> None:
    assert instep(tmp_path, "relay", "init").returncode == 0
    file = tmp_path / "instep.toml"
    text = re.sub(r"(?m)^bootstrap = .*$", f'bootstrap = "{NO_CLUSTER}"', file.read_text("utf-8"))
    file.write_text(text, encoding="utf-8")
    said = refused(tmp_path, "relay", "run", "--once")
    assert f"no broker answered at {NO_CLUSTER}" in said


def test_a_relay_that_is_running_is_shown_and_cannot_be_reset(relay: str, tmp_path: Path) -> None:
    assert instep(tmp_path, "relay", "init").returncode == 0
    source = settings.Relay(source=f"sqlite:///{tmp_path}/shop.db", topic=relay, take_over_s=600)
    lease = Lease(source, relay)
    assert lease.claim()
    settings_file = tmp_path / "instep.toml"
    text = settings_file.read_text(encoding="utf-8")
    settings_file.write_text(f"{text}take_over_s = 600\n", encoding="utf-8")
    line = instep(tmp_path, "relay", "status").stdout.splitlines()[1]
    assert line.split()[:3] == [relay, "running", lease.holder]
    for options in ((), ("--execute",)):
        said = refused(tmp_path, "relay", "reset", relay, "--to", "start", *options)
        assert "stop that process first" in said
    lease.close()


def test_wrong_options_name_their_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = prepare(tmp_path, f"sqlite:///{tmp_path}/shop.db")
    for arguments, words in {
        ("init", "--columns", "a"): "name the table: --trigger TABLE",
        ("init", f"{name}x"): f"did you mean '{name}'",
        ("reset", "other", "--to", "end"): "other",
    }.items():
        assert words in refused_in_process(tmp_path, monkeypatch, "relay", *arguments), arguments
    file = tmp_path / "instep.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(f"{text}[relays.second]\nsource = 'sqlite:///s.db'\ntopic = 't'\n")
    said = refused_in_process(tmp_path, monkeypatch, "relay", "run")
    assert f"name one (declared: {name}, second)" in said
