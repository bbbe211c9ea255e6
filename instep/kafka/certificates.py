"""The certificate files of the settings: read and judged before any client sees them, each fault by its own name.

Clients tell a missing file, a file that is no PEM, a wrong password and a key of another certificate in one breath.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from instep import errors, settings

EXPIRED, NOT_YET_VALID = 10, 9  # OpenSSL's X509_V_ERR numbers


def context(security: settings.Security) -> ssl.SSLContext:
    """What a TLS connection with these settings needs; SettingsError names the file that is wrong, and how."""
    if security.ca is not None:
        _need_certificates("ca", security.ca)
    made = ssl.create_default_context(cafile=security.ca)
    if security.certificate is not None:
        _need_certificates("certificate", security.certificate)
        _load_key(made, security.certificate, security.key or security.certificate, security.key_password)
    elif security.key is not None:
        raise errors.SettingsError("kafka.security.key is of no use without kafka.security.certificate", "name both, or neither")
    return made


def own_fault(security: settings.Security) -> str:
    """How the client's own certificate is out of date, or nothing: shown to a server in memory that trusts just it."""
    if security.certificate is None:
        return ""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_key(server, security.certificate, security.key or security.certificate, security.key_password)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(security.certificate)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True))
    for end in (*ends, *ends):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as failure:
            return {EXPIRED: "it has expired", NOT_YET_VALID: "it is not valid yet"}.get(failure.verify_code, "")
        except ssl.SSLError:
            return ""
    return ""


def read(setting: str, path: str) -> str:
    """The text of a PEM file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as failure:
        raise errors.SettingsError(f"kafka.security.{setting} {path} cannot be read: {failure.strerror}") from failure
    except UnicodeDecodeError as failure:
        raise _not_pem(setting, path, "certificate" if setting != "key" else "key") from failure


def _need_certificates(setting: str, path: str) -> None:
    read(setting, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as failure:
        raise _not_pem(setting, path, "certificate") from failure


def _load_key(made: ssl.SSLContext, certificate: str, key: str, password: str | None) -> None:
    asked = []

    def tell() -> str:
        asked.append(True)
        return password or ""

    read("key", key)
    try:
        made.load_cert_chain(certificate, key, tell)
    except (ssl.SSLError, ValueError) as failure:
        if getattr(failure, "reason", None) == "KEY_VALUES_MISMATCH":
            raise errors.SettingsError(
                f"kafka.security.key {key} is not the key of kafka.security.certificate {certificate}",
                "name the key with which the certificate was made",
            ) from None
        if asked and password:
            raise errors.SettingsError(f"kafka.security.key_password does not open {key}", "check the password") from None
        if asked:
            raise errors.SettingsError(f"kafka.security.key {key} has a password", "set kafka.security.key_password") from None
        raise _not_pem("key", key, "key") from None


def _not_pem(setting: str, path: str, holds: str) -> errors.SettingsError:
    return errors.SettingsError(
        f"kafka.security.{setting} {path} holds no {holds} in PEM",
        "a PEM file has a line -----BEGIN …; a Java keystore is converted as docs/guides/security.md shows",
    )
