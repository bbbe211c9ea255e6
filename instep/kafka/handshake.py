"""Why a broker's listener and our settings do not come together: one connection by hand, told in plain words.

The Kafka client reports a certificate that has expired, one for another host and one of a stranger alike, and a wrong
protocol as silence. Python's TLS has a number for each, and one Kafka request (SaslHandshake) tells whether and how a
listener asks for users. Only what was seen for certain is told: whatever stays unclear is None.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from instep import errors, settings
from instep.kafka import connection

TIMEOUT_S = 2.0
SASL_HANDSHAKE, VERSION, CORRELATION = 17, 1, 1
ILLEGAL_STATE = 34
PORT_MAX = 65535
ANSWER_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class ListenerFacts:
    """What a listener says of users: those mechanisms, or that it takes none."""

    takes_users: bool
    mechanisms: tuple[str, ...]


def fault_of_any(
    security: settings.Security, addresses: Sequence[str]
) -> errors.InstepError | None:
    """What keeps us from the first address that tells; looked at for a short while only."""
    deadline = time.monotonic() + TIMEOUT_S
    for address in addresses:
        if time.monotonic() < deadline and (found := fault(security, address)):
            return found
    return None


def fault(security: settings.Security, address: str) -> errors.InstepError | None:
    """What keeps us from this address, when that can be told for certain."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        return None
    place = (host.strip("[]"), int(port))
    wants_tls = security.protocol.endswith("SSL")
    files = connection.files(security)
    try:
        found = _ask(place, security, files.context() if wants_tls else None)
    except ssl.SSLCertVerificationError as failure:
        return files.distrusted(f"the broker at {address}", failure)
    except ssl.SSLError as failure:
        if refused := files.refused(f"the broker at {address}", failure.reason or ""):
            return refused
        found = None
    except (TimeoutError, ConnectionRefusedError, socket.gaierror, UnicodeError):
        return None
    except OSError:
        found = None
    if found is not None:
        return judge(security, address, found)
    if wants_tls and _tries(place, security, None):
        plain = "SASL_PLAINTEXT" if security.protocol == "SASL_SSL" else "PLAINTEXT"
        return _other_protocol(security, address, "speaks no TLS", plain)
    if not wants_tls and _tries(place, security, _unverified()):
        return _other_protocol(
            security, address, "speaks TLS", "SASL_SSL" if security.mechanism else "SSL"
        )
    return None


def judge(
    security: settings.Security, address: str, found: ListenerFacts
) -> errors.InstepError | None:
    """Whether what a listener says of users goes with the settings."""
    named = ", ".join(found.mechanisms)
    if security.mechanism is None and found.takes_users:
        protocol = "SASL_SSL" if security.protocol == "SSL" else "SASL_PLAINTEXT"
        return _other_protocol(
            security, address, f"asks for a user (mechanisms: {named})", protocol
        )
    if security.mechanism is not None and not found.takes_users:
        return _other_protocol(
            security, address, "takes no users", security.protocol.removeprefix("SASL_")
        )
    if security.mechanism is not None and security.mechanism not in found.mechanisms:
        ours = [
            mechanism for mechanism in get_args(settings.Mechanism) if mechanism in found.mechanisms
        ]
        return errors.NotAuthorised(
            f"the listener at {address} does not take the mechanism {security.mechanism}; it takes {named}",
            f"set kafka.security.mechanism to {' or '.join(ours)}"
            if ours
            else f"use the address of a listener that takes {', '.join(get_args(settings.Mechanism))}",
        )
    return None


def _other_protocol(
    security: settings.Security, address: str, says: str, protocol: str
) -> errors.InstepError:
    return errors.NotAuthorised(
        f"the listener at {address} {says}, and kafka.security.protocol is {security.protocol}",
        f"set kafka.security.protocol to {protocol}, or use the address of another listener",
    )


def _tries(place: tuple[str, int], security: settings.Security, tls: ssl.SSLContext | None) -> bool:
    """Whether the listener answers in this other way. Asking for a certificate is an answer too."""
    try:
        _ask(place, security, tls)
    except ssl.SSLError as failure:
        return tls is not None and "ALERT" in (failure.reason or "")
    except OSError:
        return False
    return True


def _ask(
    place: tuple[str, int], security: settings.Security, tls: ssl.SSLContext | None
) -> ListenerFacts:
    """Ask with a SaslHandshake request, over TLS when there is a context; OSError when there is no answer to it."""
    mechanism = (security.mechanism or "PLAIN").encode()
    head = struct.pack(">hhih6s", SASL_HANDSHAKE, VERSION, CORRELATION, 6, b"instep")
    body = head + struct.pack(">h", len(mechanism)) + mechanism
    with socket.create_connection(place, timeout=TIMEOUT_S) as opened:
        spoken = tls.wrap_socket(opened, server_hostname=place[0]) if tls else opened
        with spoken, spoken.makefile("rb") as stream:
            spoken.sendall(struct.pack(">i", len(body)) + body)
            size, correlation, code, count = struct.unpack(">iihi", _exactly(stream.read(14), 14))
            if correlation != CORRELATION or not 10 <= size <= ANSWER_BYTES_MAX:
                raise ConnectionError("this is no Kafka broker")
            names = []
            for _ in range(count):
                length = struct.unpack(">h", _exactly(stream.read(2), 2))[0]
                names.append(_exactly(stream.read(length), length).decode(errors="replace"))
    return ListenerFacts(code != ILLEGAL_STATE, tuple(sorted(names)))


def _exactly(read: bytes, size: int) -> bytes:
    if len(read) != size:
        raise ConnectionError("the answer broke off")
    return read


def _unverified() -> ssl.SSLContext:
    """For the question whether TLS is spoken at all; nothing secret is sent."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made
