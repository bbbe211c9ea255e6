"""Find out why a broker's listener does not fit the settings, with a connection of our own.

The Kafka client reports an expired certificate, one for another host and one of an unknown
authority alike, and a wrong protocol as a timeout. Python's TLS has a number for each, and one
Kafka request (SaslHandshake) shows whether and how a listener authenticates users. Only what is
certain is reported; otherwise the result is None.
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
ILLEGAL_STATE = 34  # the answer of a listener that does not authenticate users
PORT_MAX = 65535
ANSWER_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class ListenerFacts:
    """Whether a listener authenticates users, and with which mechanisms."""

    takes_users: bool
    mechanisms: tuple[str, ...]


def fault_of_any(
    security: settings.Security, addresses: Sequence[str]
) -> errors.InstepError | None:
    """Return the problem with the first address that shows one, within a short time."""
    deadline = time.monotonic() + TIMEOUT_S
    for address in addresses:
        if time.monotonic() < deadline and (problem := fault(security, address)):
            return problem
    return None


def fault(security: settings.Security, address: str) -> errors.InstepError | None:
    """Return the problem with this address; None if it is not certain."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        return None
    host_and_port = (host.strip("[]"), int(port))
    wants_tls = security.protocol.endswith("SSL")
    files = connection.files(security)
    try:
        listener = _sasl_handshake(host_and_port, security, files.context() if wants_tls else None)
    except ssl.SSLCertVerificationError as failure:
        return files.distrusted(f"the broker at {address}", failure)
    except ssl.SSLError as failure:
        if refused := files.refused(f"the broker at {address}", failure.reason or ""):
            return refused
        listener = None
    except (TimeoutError, ConnectionRefusedError, socket.gaierror, UnicodeError):
        return None
    except OSError:
        listener = None
    if listener is not None:
        return check_listener(security, address, listener)
    if wants_tls and _answers(host_and_port, security, None):
        plain = "PLAINTEXT"
        if security.protocol == "SASL_SSL":
            plain = "SASL_PLAINTEXT"
        return _other_protocol(security, address, "does not support TLS", plain)
    if not wants_tls and _answers(host_and_port, security, _unverified()):
        return _other_protocol(
            security, address, "uses TLS", "SASL_SSL" if security.mechanism else "SSL"
        )
    return None


def check_listener(
    security: settings.Security, address: str, listener: ListenerFacts
) -> errors.InstepError | None:
    """Return the error if the settings do not fit what the listener requires."""
    named = ", ".join(listener.mechanisms)
    if security.mechanism is None and listener.takes_users:
        protocol = "SASL_PLAINTEXT"
        if security.protocol == "SSL":
            protocol = "SASL_SSL"
        return _other_protocol(
            security, address, f"requires a user (mechanisms: {named})", protocol
        )
    if security.mechanism is not None and not listener.takes_users:
        return _other_protocol(
            security,
            address,
            "does not authenticate users",
            security.protocol.removeprefix("SASL_"),
        )
    if security.mechanism is not None and security.mechanism not in listener.mechanisms:
        ours = [
            mechanism
            for mechanism in get_args(settings.Mechanism)
            if mechanism in listener.mechanisms
        ]
        remedy = f"set kafka.security.mechanism to {' or '.join(ours)}"
        if not ours:
            supported = ", ".join(get_args(settings.Mechanism))
            remedy = f"use the address of a listener that supports {supported}"
        return errors.NotAuthorised(
            f"the listener at {address} does not support the mechanism {security.mechanism};"
            f" it supports {named}",
            remedy,
        )
    return None


def _other_protocol(
    security: settings.Security, address: str, observed: str, protocol: str
) -> errors.InstepError:
    return errors.NotAuthorised(
        f"the listener at {address} {observed}, but kafka.security.protocol is {security.protocol}",
        f"set kafka.security.protocol to {protocol}, or use the address of another listener",
    )


def _answers(
    host_and_port: tuple[str, int], security: settings.Security, tls: ssl.SSLContext | None
) -> bool:
    """Return whether the listener answers this way. A request for a certificate counts too."""
    try:
        _sasl_handshake(host_and_port, security, tls)
    except ssl.SSLError as failure:
        return tls is not None and "ALERT" in (failure.reason or "")
    except OSError:
        return False
    return True


def _sasl_handshake(
    host_and_port: tuple[str, int], security: settings.Security, tls: ssl.SSLContext | None
) -> ListenerFacts:
    """Send a SaslHandshake request, with TLS if given; raise OSError without an answer."""
    # The header of a request: API key, API version, correlation id, length and text of the client
    # id. The answer begins with its size, the correlation id, the error code and the number of
    # mechanisms. A listener with another protocol closes the connection or sends something else.
    mechanism = (security.mechanism or "PLAIN").encode()
    head = struct.pack(">hhih6s", SASL_HANDSHAKE, VERSION, CORRELATION, 6, b"instep")
    body = head + struct.pack(">h", len(mechanism)) + mechanism
    with socket.create_connection(host_and_port, timeout=TIMEOUT_S) as opened:
        stream_socket = tls.wrap_socket(opened, server_hostname=host_and_port[0]) if tls else opened
        with stream_socket, stream_socket.makefile("rb") as stream:
            stream_socket.sendall(struct.pack(">i", len(body)) + body)
            size, correlation, code, count = struct.unpack(">iihi", _exactly(stream.read(14), 14))
            if correlation != CORRELATION or not 10 <= size <= ANSWER_BYTES_MAX:
                raise ConnectionError("not a Kafka broker")
            names = []
            for _ in range(count):
                length = struct.unpack(">h", _exactly(stream.read(2), 2))[0]
                names.append(_exactly(stream.read(length), length).decode(errors="replace"))
    return ListenerFacts(code != ILLEGAL_STATE, tuple(sorted(names)))


def _exactly(read: bytes, size: int) -> bytes:
    if len(read) != size:
        raise ConnectionError("the answer is incomplete")
    return read


def _unverified() -> ssl.SSLContext:
    """Return a context that only tests whether the listener uses TLS; no secret is sent."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls
