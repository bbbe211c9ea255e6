"""Test the doctor on this machine: what is fine, and how each fault is reported."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from instep import settings
from instep.kafka import topics
from instep.kafka.connection import Cluster
from instep.local import broker as kafka
from instep.local.mariadb import MariaDB
from instep.sinks import preparation
from instep.vet import doctor
from instep.vet.doctor import Check, CheckState

DECLARED = """
[kafka]
bootstrap = "{bootstrap}"
[pipelines.contracts]
topic = "{topic}"
target = "{target}"
table = "contract_document"
key = "doc_no"
event = {{ status = "status" }}
columns = {{ print_status = "status" }}
"""


@pytest.fixture
def topic(broker: kafka.LocalCluster) -> str:
    name = f"doctor-{uuid.uuid4().hex[:8]}"
    with Cluster(settings.Kafka(), broker.bootstrap) as cluster:
        topics.create(cluster, name, 2)
    return name


def examined(folder: Path, bootstrap: str, topic: str, target: str = "") -> list[Check]:
    file = folder / "instep.toml"
    target = target or f"sqlite:///{folder}/t.db"
    file.write_text(
        DECLARED.format(bootstrap=bootstrap, topic=topic, target=target), encoding="utf-8"
    )
    return list(doctor.examine(file))


def wrong(checks: list[Check]) -> dict[str, str]:
    for check in checks:
        assert check.fix or check.state is CheckState.GOOD, check
    return {check.part: check.found for check in checks if check.state is CheckState.WRONG}


def test_a_healthy_setup_has_no_problems(
    broker: kafka.LocalCluster, topic: str, tmp_path: Path
) -> None:
    declared = settings.parse(
        DECLARED.format(bootstrap="x", topic=topic, target=f"sqlite:///{tmp_path}/t.db"), {}
    )
    preparation.prepare(declared.pipelines["contracts"])
    found = examined(tmp_path, broker.bootstrap, topic)
    assert wrong(found) == {}
    assert {"python", "java", "spark", "jars", "settings", "address", "broker", "clock"} <= {
        check.part for check in found
    }


def test_missing_parts_are_named(
    broker: kafka.LocalCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = wrong(examined(tmp_path, f"{broker.bootstrap},127.0.0.1:1", f"{topic[:-1]}?"))
    assert "JAVA_HOME" in found["java"]
    assert found["address"].startswith("127.0.0.1:1: ")
    assert f"did you mean '{topic}'" in found["topic of contracts"]
    assert found["database of contracts"]


def test_a_table_that_does_not_exist(
    broker: kafka.LocalCluster, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "t.db").touch()
    assert (
        "has no table" in wrong(examined(tmp_path, broker.bootstrap, topic))["table of contracts"]
    )


def test_the_database_clock_is_checked(
    broker: kafka.LocalCluster, topic: str, tmp_path: Path, mariadb: MariaDB
) -> None:
    found = examined(tmp_path, broker.bootstrap, topic, mariadb.url)
    assert any(
        check.part == "clock" and "the database of contracts agrees" in check.found
        for check in found
    )


def test_invalid_settings_end_the_check(tmp_path: Path) -> None:
    file = tmp_path / "instep.toml"
    file.write_text("[kafak]\n", encoding="utf-8")
    (found,) = [check for check in doctor.examine(file) if check.state is CheckState.WRONG]
    assert "did you mean 'kafka'" in found.found


@pytest.mark.parametrize(
    ("ahead_s", "state"),
    [(0.1, CheckState.GOOD), (5.0, CheckState.WRONG), (-5.0, CheckState.WRONG)],
)
def test_a_clock_difference_is_rated(ahead_s: float, state: CheckState) -> None:
    assert doctor._clock("the broker", ahead_s).state is state
