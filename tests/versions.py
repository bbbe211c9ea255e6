"""Run the tests that depend on the database on other versions than the usual ones: `make versions`.

    python -m tests.versions [NAME ...]

NAME is, for example, postgres-14 or mariadb-10.11; without a name, all versions are tested in turn.
The names are those of the bundles that `instep/local` can fetch. To include servers that you
started yourself, set their addresses, as an administrator without TLS: INSTEP_TEST_MARIADB_URL
(`mariadb`) and INSTEP_TEST_MYSQL_URL (`mysql`).
"""

from __future__ import annotations

import os
import subprocess
import sys

from instep.local import artifacts
from instep.local.mariadb import MariaDB
from instep.local.postgres import Postgres

TESTS = ("tests/sinks", "tests/pipeline", "tests/vet/test_live.py")
GIVEN = {"mariadb": "INSTEP_TEST_MARIADB_URL", "mysql": "INSTEP_TEST_MYSQL_URL"}
# starts its own servers, of the usual versions
NOT_ON_GIVEN = ("--ignore=tests/sinks/test_tls.py",)


def main(names: list[str]) -> int:
    """Return the exit status: 1 if a test failed on any version."""
    known = [*versions(), *(kind for kind, variable in GIVEN.items() if os.environ.get(variable))]
    if unknown := [name for name in names if name not in known]:
        sys.stderr.write(
            f"no such version here: {', '.join(unknown)}; choose from: {', '.join(known)}\n"
        )
        return 2
    failed = [name for name in names or known if not passes(name)]
    sys.stdout.write(f"failed on: {', '.join(failed)}\n" if failed else "passed on every version\n")
    return 1 if failed else 0


def versions() -> dict[str, tuple[str, str]]:
    """Return the variable that selects each bundle, and its value."""
    databases = {database.name: database for database in (Postgres, MariaDB)}
    parts = {bundle: bundle.partition("-") for bundle in artifacts.BUNDLES}
    return {
        bundle: (databases[kind].version_variable, version)
        for bundle, (kind, _, version) in parts.items()
        if kind in databases and version
    }


def passes(name: str) -> bool:
    """Run the tests on one version."""
    sys.stdout.write(f"=== {name}\n")
    sys.stdout.flush()
    kind = name.partition("-")[0]
    environment = {key: value for key, value in os.environ.items() if key not in GIVEN.values()}
    options: list[str] = []
    if name in GIVEN:
        environment[GIVEN[name]] = os.environ[GIVEN[name]]
        options += NOT_ON_GIVEN
    else:
        variable, version = versions()[name]
        environment[variable] = version
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "--database",
        kind,
        *options,
        *TESTS,
    ]
    return subprocess.run(command, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
