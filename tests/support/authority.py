"""A certificate authority for tests: correct certificates, and some with exactly one fault."""

from __future__ import annotations

import ipaddress
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from instep.local import ports

PKCS8 = serialization.PrivateFormat.PKCS8
PKCS1 = serialization.PrivateFormat.TraditionalOpenSSL


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path

    def joined(self) -> Path:
        """Write both to one file, as a Kafka broker requires."""
        file = self.key.with_suffix(".joined.pem")
        file.write_bytes(self.key.read_bytes() + self.certificate.read_bytes())
        return file


class Authority:
    """An authority that signs certificates. Clients that trust the file `ca` accept them."""

    def __init__(self, folder: Path, name: str = "instep-tests") -> None:
        self.folder = folder
        self._name = _name(name)
        self._key = _new_key()
        builder = _certificate(self._name, self._name, self._key, days=(-1, 30))
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.ca = folder / f"{name}-ca.pem"
        self.ca.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def issue(
        self,
        name: str,
        *,
        host: str = ports.HOST,
        days: tuple[int, int] = (-1, 30),
        password: str | None = None,
        form: serialization.PrivateFormat = PKCS8,
    ) -> Pair:
        """Issue a certificate for a host.

        `days` is its validity relative to today. The key's file may have a password.
        """
        key = _new_key()
        try:
            alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            alternative = x509.DNSName(host)
        builder = _certificate(_name(name), self._name, key, days)
        builder = builder.add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        pair.certificate.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        guarded = (
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption()
        )
        pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, guarded))
        return pair


def relocked(pair: Pair, password: str) -> Pair:
    """Encrypt the key in the old way, the only one that Java's Kafka client reads."""
    key = pair.key.with_suffix(".java.key")
    how = [
        "-topk8",
        "-v1",
        "PBE-SHA1-3DES",
        "-in",
        str(pair.key),
        "-passin",
        f"pass:{password}",
        "-passout",
        f"pass:{password}",
    ]
    subprocess.run(["openssl", "pkcs8", *how, "-out", str(key)], check=True, capture_output=True)
    return Pair(pair.certificate, key)


def _certificate(
    name: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey, days: tuple[int, int]
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
    )


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
