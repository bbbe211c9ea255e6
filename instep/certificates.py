"""Certificate files, read and judged before any client sees them, and what is wrong with a certificate, by OpenSSL's number.

Clients tell a missing file, a file that is no PEM, a wrong password and a key of another certificate in one breath, and
likewise a certificate that has expired, one for another host and one of a stranger.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from instep import errors

# X509_V_ERR numbers: they are OpenSSL's interface, its texts are not
NOT_YET_VALID, EXPIRED = 9, 10
FAULTS = {
    NOT_YET_VALID: (
        "is not valid yet",
        "check this machine's clock, or have the server's certificate mended",
    ),
    EXPIRED: ("has expired", "have the server's certificate renewed"),
    **dict.fromkeys(
        (62, 64), ("is for another host", "reach the server by a name that its certificate has")
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
    """The files of one connection, and what the settings call them."""

    ca: str | None
    certificate: str | None
    key: str | None
    key_password: str | None = None
    ca_setting: str = "kafka.security.ca"
    certificate_setting: str = "kafka.security.certificate"
    key_setting: str = "kafka.security.key"
    password_setting: str = "kafka.security.key_password"  # noqa: S105 - its name

    def context(self) -> ssl.SSLContext:
        """What a TLS connection needs; SettingsError names the file that is wrong, and how."""
        if self.ca is not None:
            _need_certificates(self.ca_setting, self.ca)
        made = ssl.create_default_context(cafile=self.ca)
        # Python 3.13 refuses by it authorities that every other client accepts
        made.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.certificate is not None:
            _need_certificates(self.certificate_setting, self.certificate)
            self._load_key(made, self.certificate)
        elif self.key is not None:
            raise errors.SettingsError(
                f"{self.key_setting} is of no use without {self.certificate_setting}",
                "name both, or neither",
            )
        return made

    def refused(self, server: str, reason: str) -> errors.NotAuthorised | None:
        """The error for a TLS alert, by Python's name of it, that is about our own certificate."""
        if "ALERT" not in reason or "CERTIFICATE" not in reason:
            return None
        if self.certificate is None:
            return errors.NotAuthorised(
                f"{server} asks for a client certificate, and none is set",
                f"set {self.certificate_setting} and {self.key_setting}",
            )
        why = (
            self._own_fault()
            or f"it says {reason.partition('ALERT_')[2].replace('_', ' ').lower()}"
        )
        return errors.NotAuthorised(
            f"{server} does not accept the client certificate {self.certificate}: {why}",
            "use a certificate that is valid and signed by an authority which the server trusts",
        )

    def distrusted(
        self, server: str, failure: ssl.SSLCertVerificationError
    ) -> errors.NotAuthorised:
        """The error for a server's certificate that we do not accept."""
        says, remedy = FAULTS.get(failure.verify_code, ("is refused", "check {ca}"))
        return errors.NotAuthorised(
            f"the certificate of {server} {says} ({failure.verify_message})",
            remedy.format(ca=self.ca_setting),
        )

    def _own_fault(self) -> str:
        """How our own certificate is out of date, or nothing: shown, in memory, to a client that trusts just it."""
        assert self.certificate is not None
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load_key(server, self.certificate)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        client.load_verify_locations(self.certificate)
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = (client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True))
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

    def _load_key(self, made: ssl.SSLContext, certificate: str) -> None:
        key, asked = self.key or certificate, []

        def tell() -> str:
            asked.append(True)
            return self.key_password or ""

        read(self.key_setting, key, "key")
        try:
            made.load_cert_chain(certificate, key, tell)
        except (ssl.SSLError, ValueError) as failure:
            if getattr(failure, "reason", None) == "KEY_VALUES_MISMATCH":
                raise errors.SettingsError(
                    f"{self.key_setting} {key} is not the key of {self.certificate_setting} {certificate}",
                    "name the key with which the certificate was made",
                ) from None
            if asked and self.key_password:
                raise errors.SettingsError(
                    f"{self.password_setting} does not open {key}", "check the password"
                ) from None
            if asked:
                raise errors.SettingsError(
                    f"{self.key_setting} {key} has a password", f"set {self.password_setting}"
                ) from None
            raise _not_pem(self.key_setting, key, "key") from None


def read(setting: str, path: str, holds: str = "certificate") -> str:
    """The text of a PEM file."""
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
        f"{setting} {path} holds no {holds} in PEM",
        "a PEM file has a line -----BEGIN …; a Java keystore is converted as docs/guides/connect-securely.md shows",
    )
