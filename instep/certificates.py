"""Check certificate files before a client uses them, and explain certificate errors.

Clients report a missing file, a file that is not PEM, a wrong password and the key of another
certificate with the same message; likewise an expired certificate, one for another host, and one
of an unknown authority. OpenSSL's error numbers distinguish them.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from instep import errors

# X509_V_ERR numbers, which are part of OpenSSL's interface; its texts are not
NOT_YET_VALID, EXPIRED = 9, 10
FAULTS = {
    NOT_YET_VALID: (
        "is not valid yet",
        "check this machine's clock, or replace the server's certificate",
    ),
    EXPIRED: ("has expired", "renew the server's certificate"),
    **dict.fromkeys(
        (62, 64), ("is for another host", "connect to the server by a name in its certificate")
    ),
    **dict.fromkeys(
        (2, 18, 19, 20, 21),
        (
            "is signed by an authority that is not trusted here",
            "set {ca} to the PEM file of the authority that signed it",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Files:
    """The certificate files of one connection, and the names of their settings."""

    ca: str | None
    certificate: str | None
    key: str | None
    key_password: str | None = None
    ca_setting: str = "kafka.security.ca"
    certificate_setting: str = "kafka.security.certificate"
    key_setting: str = "kafka.security.key"
    password_setting: str = "kafka.security.key_password"  # noqa: S105 - its name

    def context(self) -> ssl.SSLContext:
        """Return the TLS context; raise SettingsError with the file that is wrong."""
        if self.ca is not None:
            _need_certificates(self.ca_setting, self.ca)
        tls = ssl.create_default_context(cafile=self.ca)
        # with this flag Python 3.13 refuses authorities that every other client accepts
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.certificate is not None:
            _need_certificates(self.certificate_setting, self.certificate)
            self._load_key(tls, self.certificate)
        elif self.key is not None:
            raise errors.SettingsError(
                f"{self.key_setting} needs {self.certificate_setting}",
                "set both, or neither",
            )
        return tls

    def refused(self, server: str, reason: str) -> errors.NotAuthorised | None:
        """Return the error for a TLS alert about our own certificate; None for other alerts."""
        if "ALERT" not in reason or "CERTIFICATE" not in reason:
            return None
        if self.certificate is None:
            return errors.NotAuthorised(
                f"{server} requires a client certificate, but none is set",
                f"set {self.certificate_setting} and {self.key_setting}",
            )
        alert = reason.partition("ALERT_")[2].replace("_", " ").lower()
        fault = self._own_fault() or f"it says {alert}"
        return errors.NotAuthorised(
            f"{server} does not accept the client certificate {self.certificate}: {fault}",
            "use a valid certificate, signed by an authority that the server trusts",
        )

    def distrusted(
        self, server: str, failure: ssl.SSLCertVerificationError
    ) -> errors.NotAuthorised:
        """Return the error for a server's certificate that we do not accept."""
        fault, remedy = FAULTS.get(failure.verify_code, ("is refused", "check {ca}"))
        return errors.NotAuthorised(
            f"the certificate of {server} {fault} ({failure.verify_message})",
            remedy.format(ca=self.ca_setting),
        )

    def _own_fault(self) -> str:
        """Return why our own certificate is not valid now, or an empty text.

        A TLS client in memory, which trusts only this certificate, checks it.
        """
        assert self.certificate is not None
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load_key(server, self.certificate)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        client.load_verify_locations(self.certificate)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = (
            client.wrap_bio(to_client, to_server),
            server.wrap_bio(to_server, to_client, server_side=True),
        )
        for end in (*ends, *ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as failure:
                return {EXPIRED: "it has expired", NOT_YET_VALID: "it is not valid yet"}.get(
                    failure.verify_code, ""
                )
            except ssl.SSLError:
                return ""
        return ""

    def _load_key(self, tls: ssl.SSLContext, certificate: str) -> None:
        key = self.key or certificate
        needs_password: list[bool] = []

        def password() -> str:
            needs_password.append(True)
            return self.key_password or ""

        read(self.key_setting, key, "key")
        try:
            tls.load_cert_chain(certificate, key, password)
        except (ssl.SSLError, ValueError) as failure:
            if getattr(failure, "reason", None) == "KEY_VALUES_MISMATCH":
                raise errors.SettingsError(
                    f"{self.key_setting} {key} is not the key of"
                    f" {self.certificate_setting} {certificate}",
                    "use the key with which the certificate was created",
                ) from None
            if needs_password and self.key_password:
                raise errors.SettingsError(
                    f"{self.password_setting} does not decrypt {key}", "check the password"
                ) from None
            if needs_password:
                raise errors.SettingsError(
                    f"{self.key_setting} {key} has a password", f"set {self.password_setting}"
                ) from None
            raise _not_pem(self.key_setting, key, "key") from None


def read(setting: str, path: str, holds: str = "certificate") -> str:
    """Return the text of a PEM file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as failure:
        raise errors.SettingsError(
            f"{setting} {path} cannot be read: {failure.strerror}",
            "correct its path in the settings, or make it readable for this user",
        ) from failure
    except UnicodeDecodeError as failure:
        raise _not_pem(setting, path, holds) from failure


def _need_certificates(setting: str, path: str) -> None:
    read(setting, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as failure:
        raise _not_pem(setting, path, "certificate") from failure


def _not_pem(setting: str, path: str, holds: str) -> errors.SettingsError:
    return errors.SettingsError(
        f"{setting} {path} contains no {holds} in PEM",
        "a PEM file has a line -----BEGIN …;"
        " docs/guides/connect-securely.md shows how to convert a Java keystore",
    )
