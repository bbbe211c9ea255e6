"""Test other versions of the local databases. `make versions` runs many more tests on them."""

from __future__ import annotations

import pytest

from instep import errors, sinks
from instep.local import artifacts
from instep.local.database import Database
from instep.local.mariadb import MariaDB
from instep.local.postgres import Postgres
from instep.sinks import inspection, preparation
from tests.support.databases import declare, run_sql
from tests.support.transactions import apply, begun, event, record, table


@pytest.mark.parametrize("kind", [Postgres, MariaDB])
def test_a_version_that_cannot_be_fetched_is_refused(
    kind: type[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kind.version_variable, "9")
    with pytest.raises(errors.SettingsError, match=f"{kind.version_variable}=9") as caught:
        kind().start()
    assert kind.default_version in caught.value.remedy


@pytest.mark.parametrize("kind", [Postgres, MariaDB])
def test_the_default_version_is_the_one_that_is_fetched(kind: type[Database]) -> None:
    [module] = artifacts.BUNDLES[kind.name].modules
    assert module.rpartition(":")[2].startswith(f"{kind.default_version}.")


def test_the_oldest_postgres_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSTEP_POSTGRES_VERSION", "14")
    with Postgres() as server:
        assert server.data.name == "data-14"
        [(version,)] = run_sql(server.url, "SHOW server_version")
        assert version.startswith("14.")
        pipeline = declare(server.url)
        preparation.prepare(pipeline)
        sink = begun(sinks.open_sink(inspection.inspect("contracts", pipeline)))
        apply(
            sink,
            [event(0, "a", 1, "CREATED"), event(1, "b", 1), event(2, "a", 2), record(3, "b", None)],
        )
        assert table(server.url) == [("a", "PRINTED", 2)]
        assert sink.ledger.positions()[0].next_offset == 4
        sink.close()
