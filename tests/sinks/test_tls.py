"""Test TLS to databases: the same options for each, and a specific error for each fault."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from instep import errors
from instep.local import paths
from instep.local.mariadb import MariaDB
from instep.local.postgres import ACCESS, Postgres
from instep.local.server import Server
from instep.sinks import inspection, preparation, target
from tests.support.authority import Authority, Pair
from tests.support.databases import declare, run_sql

PASSWORD = "p@ss:w/ord%"
IN_URL = "p%40ss%3Aw%2Ford%25"


class TlsPostgres(Postgres):
    """A PostgreSQL with TLS that requires a password from `app`."""

    pair: Pair
    ca: Path

    def command(self) -> list[str]:
        rules = "hostssl all only_tls 127.0.0.1/32 trust\nhostssl all certified 127.0.0.1/32 cert\n"
        rejected = "host all only_tls,certified 127.0.0.1/32 reject\n"
        password_rule = "host all app 127.0.0.1/32 scram-sha-256\n"
        (self.root / "access.conf").write_text(
            f"{rules}{rejected}{password_rule}{ACCESS}", encoding="utf-8"
        )
        files = {
            "ssl_cert_file": self.pair.certificate,
            "ssl_key_file": self.pair.key,
            "ssl_ca_file": self.ca,
        }
        named = [part for name, path in files.items() for part in ("-c", f"{name}={path}")]
        return [*super().command(), "-c", "ssl=on", *named]


class TlsMariaDB(MariaDB):
    """A MariaDB with TLS."""

    pair: Pair
    ca: Path

    def command(self) -> list[str]:
        files = [
            f"--ssl-cert={self.pair.certificate}",
            f"--ssl-key={self.pair.key}",
            f"--ssl-ca={self.ca}",
        ]
        return [*(part for part in super().command() if part != "--skip-ssl"), *files]


@dataclass(frozen=True)
class Secured:
    """A server with TLS, the authority that it trusts, and another authority."""

    server: Server
    authority: Authority
    stranger: Authority

    def url(self, **options: Any) -> str:
        address = self.server.address.replace("root@", "app@").replace("instep@", "app@")
        address = address.replace("app@", f"app:{IN_URL}@")
        return f"{address}?{'&'.join(f'{name}={value}' for name, value in options.items())}"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Make a folder for certificates that a database's user can read."""
    created = Path(
        tempfile.mkdtemp(
            prefix="instep-tls-", dir=paths.open_temporary(Path(tempfile.gettempdir()))
        )
    )
    created.chmod(0o755)
    yield created
    shutil.rmtree(created)


@pytest.fixture(scope="module", params=["postgres", "mariadb"])
def secured(request: pytest.FixtureRequest, folder: Path) -> Iterator[Secured]:
    authority, stranger = (
        Authority(folder, f"ours-{request.param}"),
        Authority(folder, f"stranger-{request.param}"),
    )
    server: Any = TlsPostgres() if request.param == "postgres" else TlsMariaDB()
    server.pair, server.ca = owned(authority.issue(f"{request.param}-right")), authority.ca
    with server:
        created = Secured(server, authority, stranger)
        if request.param == "postgres":
            run_sql(
                server.url,
                f"CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'",
                "GRANT ALL ON DATABASE instep TO app",
            )
            run_sql(server.url, "GRANT ALL ON SCHEMA public TO app")
        else:
            run_sql(
                server.url,
                f"CREATE USER app@'%' IDENTIFIED BY '{PASSWORD}'",
                "GRANT ALL ON instep.* TO app@'%'",
            )
        yield created


def owned(pair: Pair) -> Pair:
    """Make the key's file as servers require it: owned and readable by the server's user only."""
    user = paths.database_user()
    if user:
        os.chown(pair.key, user.uid, user.gid)
    pair.key.chmod(0o600)
    return pair


@pytest.fixture
def shown(secured: Secured) -> Iterator[Callable[[Pair], None]]:
    """Yield a function that makes the server show another certificate. Restore the right one."""
    server: Any = secured.server
    right = server.pair

    def show(pair: Pair) -> None:
        server.stop()
        server.pair = pair
        server.start()

    yield show
    show(right)


def encrypted(url: str) -> bool:
    if url.startswith("postgresql"):
        return bool(run_sql(url, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")[0][0])
    return bool(run_sql(url, "SHOW STATUS LIKE 'Ssl_cipher'")[0][1])


def refused(url: str) -> errors.InstepError:
    """Return the error of `init`, and check that it shows no password."""
    with pytest.raises(errors.InstepError) as caught:
        preparation.prepare(declare(url))
    assert caught.value.exit_status == 2
    assert PASSWORD not in str(caught.value)
    assert IN_URL not in str(caught.value)
    assert "not-it" not in str(caught.value)
    return caught.value


def test_every_sslmode_connects(
    secured: Secured, open_sink: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = secured.authority.ca
    assert not encrypted(secured.url(sslmode="disable"))
    for options in (
        {"sslmode": "require"},
        {"sslmode": "verify-ca", "sslrootcert": ca},
        {"sslmode": "verify-full", "sslrootcert": ca},
        {"sslmode": "require", "sslrootcert": ca},
    ):
        assert encrypted(secured.url(**options))
    # a relative path is resolved from here, and works from elsewhere
    monkeypatch.chdir(ca.parent)
    pipeline = declare(secured.url(sslmode="verify-full", sslrootcert=ca.name))
    preparation.prepare(pipeline)
    to = inspection.inspect("contracts", pipeline)
    monkeypatch.chdir("/")
    assert str(ca) in target.database_url(to.url).query["sslrootcert"]
    monkeypatch.chdir(ca.parent)
    assert open_sink(pipeline).ledger.positions() == {}


def test_tls_is_used_by_default_without_loading_the_machines_authorities(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the authorities were loaded")

    monkeypatch.setattr(ssl, "create_default_context", refuse)
    assert encrypted(secured.url())


def test_a_wrong_server_certificate_is_explained(
    secured: Secured, shown: Callable[[Pair], None]
) -> None:
    name, ca = secured.server.name, secured.authority.ca
    full = secured.url(sslmode="verify-full", sslrootcert=ca)
    shown(owned(secured.authority.issue(f"{name}-old", days=(-9, -1))))
    assert re.search(
        r"the certificate of the database server at \S+ has expired", refused(full).what
    )
    shown(owned(secured.authority.issue(f"{name}-elsewhere", host="db.example.org")))
    assert re.search(
        r"the certificate of the database server at \S+ is for another host", refused(full).what
    )
    assert encrypted(secured.url(sslmode="verify-ca", sslrootcert=ca))
    strangers = secured.url(sslmode="verify-ca", sslrootcert=secured.stranger.ca)
    error = refused(strangers)
    assert "is signed by an authority that is not trusted here" in error.what
    assert "sslrootcert" in error.remedy


def test_a_wrong_password_is_not_reported_as_a_tls_problem(secured: Secured) -> None:
    url = secured.url(sslmode="verify-full", sslrootcert=secured.authority.ca).replace(
        IN_URL, "wrong"
    )
    error = refused(url)
    assert isinstance(error, errors.NotAuthorised)
    assert "certificate" not in error.what


def test_a_user_who_must_use_tls(secured: Secured) -> None:
    server: Any = secured.server
    postgres = server.name == "postgres"
    statements = (
        ["CREATE ROLE only_tls LOGIN"]
        if postgres
        else ["CREATE USER only_tls@'%' REQUIRE SSL", "GRANT ALL ON instep.* TO only_tls@'%'"]
    )
    run_sql(server.url, *statements)
    plain = re.sub("//.+@", "//only_tls@", server.url)
    assert encrypted(f"{plain}?sslmode=require")
    error = refused(f"{plain}?sslmode=disable")
    assert isinstance(error, errors.NotAuthorised)
    assert "only_tls" in error.what
    if not postgres:
        run_sql(server.url, "SET GLOBAL require_secure_transport = ON")
        try:
            assert isinstance(refused(secured.url(sslmode="disable")), errors.NotAuthorised)
        finally:
            run_sql(f"{server.url}?sslmode=require", "SET GLOBAL require_secure_transport = OFF")


def test_a_user_can_authenticate_with_a_certificate(secured: Secured) -> None:
    server: Any = secured.server
    if server.name == "postgres":
        run_sql(server.url, "CREATE ROLE certified LOGIN")
    else:
        run_sql(
            server.url,
            "CREATE USER certified@'%' REQUIRE X509",
            "GRANT ALL ON instep.* TO certified@'%'",
        )
    pair = secured.authority.issue("certified")
    pair.key.chmod(0o600)
    url = re.sub("//.+@", "//certified@", server.url)
    target_url = f"{url}?sslmode=verify-full&sslrootcert={secured.authority.ca}"
    assert encrypted(f"{target_url}&sslcert={pair.certificate}&sslkey={pair.key}")
    error = refused(target_url)
    assert isinstance(error, errors.NotAuthorised)
    assert "certified" in error.what


def test_wrong_files_and_options_are_explained(secured: Secured, tmp_path: Path) -> None:
    text = tmp_path / "text.pem"
    text.write_text("no certificate", encoding="utf-8")
    client = secured.authority.issue(f"client-{secured.server.name}")
    client.key.chmod(0o600)
    locked = secured.authority.issue(f"locked-{secured.server.name}", password=PASSWORD)
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"sslmode": "verify-full", "sslrootcert": tmp_path / "none.pem"},
            "the target's sslrootcert .*none.pem cannot be read",
        ),
        (
            {"sslmode": "verify-full", "sslrootcert": text},
            "the target's sslrootcert .*text.pem contains no certificate in PEM",
        ),
        (
            {"sslmode": "require", "sslcert": client.certificate, "sslkey": text},
            "the target's sslkey .*text.pem contains no key",
        ),
        (
            {
                "sslmode": "require",
                "sslcert": locked.certificate,
                "sslkey": locked.key,
                "sslpassword": "not-it",
            },
            "the target's sslpassword does not decrypt .*locked",
        ),
        (
            {"sslmode": "verify-fully"},
            "the target's sslmode is 'verify-fully'; did you mean 'verify-full'?",
        ),
        (
            {"sslmod": "require"},
            r"the option 'sslmod', which \w+ does not support; did you mean 'sslmode'",
        ),
    ]
    for options, words in cases:
        error = refused(secured.url(**options))
        assert isinstance(error, errors.SettingsError)
        assert re.search(words, error.what), error.what
    assert encrypted(secured.url(sslmode="require", sslcert=client.certificate, sslkey=client.key))
    if secured.server.name == "postgres":
        client.key.chmod(0o644)
        assert (
            "other users can read"
            in refused(
                secured.url(sslmode="require", sslcert=client.certificate, sslkey=client.key)
            ).what
        )


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_server_without_tls_is_explained(request: pytest.FixtureRequest, kind: str) -> None:
    url = request.getfixturevalue(kind).url
    error = refused(f"{url}?sslmode=require")
    assert isinstance(error, errors.NotAuthorised)
    assert re.search(
        r"the database server at \S+ does not support TLS, but the target's sslmode is require",
        error.what,
    )
    preparation.statements(declare(f"{url}?sslmode=disable"))
