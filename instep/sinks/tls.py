"""TLS to a database, and what went wrong with it.

Every database uses the options of libpq, as in `?sslmode=verify-full&sslrootcert=ca.pem`:

disable       no TLS
require       TLS, without a check of the server; with sslrootcert like verify-ca
verify-ca     the server's certificate must be signed by that authority
verify-full   and must be for the host in the URL
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
SYSTEM = "system"  # of sslrootcert: the authorities that the machine trusts

# the options that a URL may have behind its question mark
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


def with_absolute_paths(url: sa.URL) -> sa.URL:
    """Return the URL with absolute file paths, because tasks may run in another directory.

    Raises SettingsError for an unknown option.
    """
    name = url.get_backend_name()
    for option in url.query:
        if option not in OPTIONS[name]:
            raise errors.SettingsError(
                f"the target's URL has the option {option!r}, which {name} does not support"
                f"{_meant(option, OPTIONS[name])}",
                f"supported options: {', '.join(OPTIONS[name])}",
            )
    known = PG_MODES if name == "postgresql" else MODES
    if (mode := _option(url, "sslmode")) is not None and mode not in known:
        raise errors.SettingsError(
            f"the target's sslmode is {mode!r}{settings.nearest(mode, known)}",
            f"use one of {', '.join(known)}",
        )
    absolute = {
        file: str(Path(path).absolute())
        for file in FILES
        if (path := _option(url, file)) and path != SYSTEM
    }
    return url.update_query_dict(absolute) if absolute else url


def _meant(option: str, options: tuple[str, ...]) -> str:
    """Suggest the option that a misspelling, or another driver's spelling, stands for."""
    squeezed = option.lower().replace("_", "").replace("-", "").replace(".", "")
    same = OTHER_SPELLINGS.get(squeezed) or next(
        (option_name for option_name in options if option_name.replace("_", "") == squeezed), None
    )
    if same in options:
        return f"; did you mean {same!r}?"
    return settings.nearest(option.lower(), options)


def context(url: sa.URL) -> ssl.SSLContext | None:
    """Return the TLS context for the URL; None without TLS. Raises SettingsError for a bad file."""
    mode = _option(url, "sslmode") or (
        "require" if any(_option(url, file) for file in FILES) else None
    )
    if mode in (None, "disable"):
        return None
    tls = _files(url).context()
    tls.check_hostname = mode == "verify-full"
    if mode not in ("verify-ca", "verify-full") and not _option(url, "sslrootcert"):
        tls.verify_mode = ssl.CERT_NONE
    return tls


def mysql_arguments(url: sa.URL) -> dict[str, Any]:
    """Return PyMySQL's arguments for TLS. By default TLS is used if the server supports it."""
    tls = context(url)
    if tls:
        return {"ssl": tls}
    if _option(url, "sslmode") == "disable":
        return {"ssl_disabled": True}
    return {}


def without_mysql(url: sa.URL) -> sa.URL:
    """Return the URL without the options that PyMySQL does not know."""
    if url.get_backend_name() == "postgresql":
        return url
    return url.difference_update_query(["sslmode", *FILES, "sslpassword"])


def check(url: sa.URL) -> None:
    """Raise SettingsError for files that libpq would refuse, such as a key that others can read.

    libpq itself would report a failed connection.
    """
    context(url)
    key = _option(url, "sslkey")
    if key is None:
        return
    status = Path(key).stat()
    if status.st_mode & 0o077 and (status.st_uid != 0 or status.st_mode & 0o037):
        raise errors.SettingsError(
            f"other users can read the target's sslkey {key}", f"chmod 600 {key}"
        )


def explain(url: sa.URL, failure: BaseException | None) -> errors.InstepError | None:
    """Return our error for a failed handshake; None if it was another failure."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return _files(url).distrusted(_server(url), failure)
    if isinstance(failure, ssl.SSLError):
        return _files(url).refused(_server(url), failure.reason or "")
    return None


def no_tls_there(url: sa.URL) -> errors.NotAuthorised:
    """Return the error for a server without TLS."""
    mode = _option(url, "sslmode") or "require"
    return errors.NotAuthorised(
        f"{_server(url)} does not support TLS, but the target's sslmode is {mode}",
        "enable TLS on the server (ssl = on), or set sslmode=disable in a trusted network",
    )


def postgres_fault(url: sa.URL) -> errors.InstepError | None:
    """Find out why the server refuses a connection, by repeating it up to the password.

    libpq reports the reason as text only, without a code.
    """
    mode = _option(url, "sslmode")
    if not url.host or url.host.startswith("/") or mode in (None, "allow", "prefer"):
        return None
    tls = context(url)
    try:
        with socket.create_connection((url.host, url.port or PG_PORT), timeout=TIMEOUT_S) as opened:
            if tls is None:
                return _refusal(url, opened)
            opened.sendall(PG_TLS_REQUEST)
            answer = opened.recv(1)
            if answer == b"N":
                return no_tls_there(url)
            with tls.wrap_socket(opened, server_hostname=url.host) as encrypted:
                return _refusal(url, encrypted)
    except OSError as failure:
        return explain(url, failure)


def _refusal(url: sa.URL, opened: socket.socket) -> errors.NotAuthorised | None:
    """Return the server's refusal of the user if it comes before the password."""
    names = (
        f"user\0{url.username or ''}\0database\0{url.database or url.username or ''}\0\0".encode()
    )
    opened.sendall(struct.pack(">ii", 8 + len(names), PG_PROTOCOL) + names)
    with opened.makefile("rb") as stream:
        kind, size = struct.unpack(">ci", stream.read(5).ljust(5, b"\0"))
        message = stream.read(min(size, ANSWER_BYTES_MAX) - 4) if kind == b"E" else b""
    fields = {
        field[:1]: field[1:].decode(errors="replace") for field in message.split(b"\0") if field
    }
    if not fields.get(b"C", "").startswith("28"):
        return None
    return errors.NotAuthorised(
        f"{_server(url)} refuses user {url.username!r}:"
        f" {fields.get(b'M', '')} (SQLSTATE {fields[b'C']})",
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
