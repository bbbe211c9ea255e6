"""TLS to a database: libpq's words for every database, `?sslmode=verify-full&sslrootcert=ca.pem`, and what went wrong with it.

disable       no TLS
require       TLS, whoever the server is; with sslrootcert as verify-ca
verify-ca     and the server's certificate is signed by that authority
verify-full   and is for the host of the URL
"""

from __future__ import annotations

import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from instep import certificates, errors, settings

TIMEOUT_S = 2.0
PG_PORT = 5432
PG_PROTOCOL = 196608
ANSWER_BYTES_MAX = 64 * 1024
PG_TLS_REQUEST = struct.pack(">ii", 8, 80877103)
MODES = ("disable", "require", "verify-ca", "verify-full")
PG_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
FILES = ("sslrootcert", "sslcert", "sslkey")
SYSTEM = "system"  # libpq's word for the authorities that the machine trusts

# what a URL may say behind its question mark
OPTIONS = {
    "sqlite": ("timeout", "cache", "mode", "uri", "nolock", "immutable"),
    "postgresql": (
        "sslmode",
        *FILES,
        "sslpassword",
        "sslcrl",
        "ssl_min_protocol_version",
        "sslnegotiation",
        "channel_binding",
        "gssencmode",
        "require_auth",
        "connect_timeout",
        "application_name",
        "options",
        "target_session_attrs",
        "load_balance_hosts",
        "host",
        "port",
        "hostaddr",
        "service",
        "passfile",
        "client_encoding",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
        "krbsrvname",
    ),
    "mysql": ("sslmode", *FILES, "sslpassword", "connect_timeout", "unix_socket", "charset"),
}
OPTIONS["mariadb"] = OPTIONS["mysql"]
# how other drivers spell these options
OTHER_SPELLINGS = {
    "ssl": "sslmode",
    "tls": "sslmode",
    "usessl": "sslmode",
    "ssldisabled": "sslmode",
    "sslca": "sslrootcert",
    "cafile": "sslrootcert",
    "unixsocket": "unix_socket",
    "connecttimeout": "connect_timeout",
}


def with_whole_paths(url: sa.URL) -> sa.URL:
    """The URL, its options known and its files named from the root: tasks may run elsewhere."""
    name = url.get_backend_name()
    for option in url.query:
        if option not in OPTIONS[name]:
            raise errors.SettingsError(
                f"the target's URL has an option {option!r}, which {name} does not take{_meant(option, OPTIONS[name])}",
                f"known: {', '.join(OPTIONS[name])}",
            )
    known = PG_MODES if name == "postgresql" else MODES
    if (mode := _option(url, "sslmode")) is not None and mode not in known:
        raise errors.SettingsError(
            f"the target's sslmode is {mode!r}{settings.nearest(mode, known)}",
            f"use one of {', '.join(known)}",
        )
    whole = {
        file: str(Path(path).absolute())
        for file in FILES
        if (path := _option(url, file)) and path != SYSTEM
    }
    return url.update_query_dict(whole) if whole else url


def _meant(option: str, known: tuple[str, ...]) -> str:
    """Suggest the option that a misspelling, or another driver's spelling, stands for."""
    squeezed = option.lower().replace("_", "").replace("-", "").replace(".", "")
    same = OTHER_SPELLINGS.get(squeezed) or next(
        (one for one in known if one.replace("_", "") == squeezed), None
    )
    if same in known:
        return f"; did you mean {same!r}?"
    return settings.nearest(option.lower(), known)


def context(url: sa.URL) -> ssl.SSLContext | None:
    """What the URL asks for; None without TLS. SettingsError names a file that is wrong."""
    mode = _option(url, "sslmode") or (
        "require" if any(_option(url, file) for file in FILES) else None
    )
    if mode in (None, "disable"):
        return None
    made = _files(url).context()
    made.check_hostname = mode == "verify-full"
    if mode not in ("verify-ca", "verify-full") and not _option(url, "sslrootcert"):
        made.verify_mode = ssl.CERT_NONE
    return made


def mysql_arguments(url: sa.URL) -> dict[str, Any]:
    """TLS as PyMySQL takes it; where the URL says nothing, it is used if the server has it."""
    made = context(url)
    return (
        {"ssl": made}
        if made
        else {"ssl_disabled": True}
        if _option(url, "sslmode") == "disable"
        else {}
    )


def without_mysql(url: sa.URL) -> sa.URL:
    """The URL without what its driver takes in other words."""
    return (
        url
        if url.get_backend_name() == "postgresql"
        else url.difference_update_query(["sslmode", *FILES, "sslpassword"])
    )


def check(url: sa.URL) -> None:
    """Refuse files that libpq would refuse, in its own words, as a connection that failed; such as a key that others can read."""
    context(url)
    key = _option(url, "sslkey")
    if key is None:
        return
    found = Path(key).stat()
    if found.st_mode & 0o077 and (found.st_uid != 0 or found.st_mode & 0o037):
        raise errors.SettingsError(
            f"the target's sslkey {key} can be read by others than its owner", f"chmod 600 {key}"
        )


def explain(url: sa.URL, failure: BaseException | None) -> errors.InstepError | None:
    """The error behind a failed handshake, by its number; None when it was another one."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return _files(url).distrusted(_server(url), failure)
    if isinstance(failure, ssl.SSLError):
        return _files(url).refused(_server(url), failure.reason or "")
    return None


def no_tls_there(url: sa.URL) -> errors.NotAuthorised:
    return errors.NotAuthorised(
        f"{_server(url)} speaks no TLS, and the target's sslmode is {_option(url, 'sslmode') or 'require'}",
        "have TLS switched on there (ssl = on), or set sslmode=disable where the network can be trusted",
    )


def postgres_fault(url: sa.URL) -> errors.InstepError | None:
    """Why the server does not let us in, looked at by hand up to the password: libpq has texts for it, and no numbers."""
    mode = _option(url, "sslmode")
    if not url.host or url.host.startswith("/") or mode in (None, "allow", "prefer"):
        return None
    made = context(url)
    try:
        with socket.create_connection((url.host, url.port or PG_PORT), timeout=TIMEOUT_S) as opened:
            if made is None:
                return _refusal(url, opened)
            opened.sendall(PG_TLS_REQUEST)
            answer = opened.recv(1)
            if answer == b"N":
                return no_tls_there(url)
            with made.wrap_socket(opened, server_hostname=url.host) as spoken:
                return _refusal(url, spoken)
    except OSError as failure:
        return explain(url, failure)


def _refusal(url: sa.URL, opened: socket.socket) -> errors.NotAuthorised | None:
    """What the server answers to our name when it does not even ask for a password; by its SQLSTATE."""
    names = (
        f"user\0{url.username or ''}\0database\0{url.database or url.username or ''}\0\0".encode()
    )
    opened.sendall(struct.pack(">ii", 8 + len(names), PG_PROTOCOL) + names)
    with opened.makefile("rb") as stream:
        kind, size = struct.unpack(">ci", stream.read(5).ljust(5, b"\0"))
        told = stream.read(min(size, ANSWER_BYTES_MAX) - 4) if kind == b"E" else b""
    fields = {field[:1]: field[1:].decode(errors="replace") for field in told.split(b"\0") if field}
    if not fields.get(b"C", "").startswith("28"):
        return None
    return errors.NotAuthorised(
        f"{_server(url)} refuses user {url.username!r}: {fields.get(b'M', '')} (SQLSTATE {fields[b'C']})",
        "check the user, sslmode and sslcert against the server's pg_hba.conf",
    )


def _files(url: sa.URL) -> certificates.Files:
    ca = _option(url, "sslrootcert")
    return certificates.Files(
        None if ca == SYSTEM else ca,
        _option(url, "sslcert"),
        _option(url, "sslkey"),
        _option(url, "sslpassword"),
        *(f"the target's {name}" for name in (*FILES, "sslpassword")),
    )


def _server(url: sa.URL) -> str:
    return f"the database server at {url.host}{f':{url.port}' if url.port else ''}"


def _option(url: sa.URL, name: str) -> str | None:
    found = url.query.get(name)
    return found[-1] if isinstance(found, tuple) else found
