"""Translate the Kafka client's errors to instep's own: one table from error codes to types.

The client reports many causes only to its error callback, and then raises a plain timeout. So an
`ErrorLog` keeps them, and a timeout after a refusal is reported as the refusal. Only codes decide;
texts are shown to the user.
"""

from __future__ import annotations

import logging
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

from instep import errors, settings

# Without its own handler, Python would print the client's log lines to stderr.
log = logging.getLogger("instep.kafka")
log.addHandler(logging.NullHandler())

MEANING: Mapping[int, type[errors.InstepError]] = {
    # no answer, or not in time
    KafkaError._ALL_BROKERS_DOWN: errors.BrokerUnreachable,
    KafkaError._RESOLVE: errors.BrokerUnreachable,
    KafkaError._TIMED_OUT: errors.BrokerUnreachable,
    KafkaError._TIMED_OUT_QUEUE: errors.BrokerUnreachable,
    KafkaError._TRANSPORT: errors.BrokerUnreachable,
    KafkaError._UNKNOWN_BROKER: errors.BrokerUnreachable,
    KafkaError._WAIT_CACHE: errors.BrokerUnreachable,
    KafkaError._WAIT_COORD: errors.BrokerUnreachable,
    # a temporary error of a broker: a leader, coordinator or controller is moving
    KafkaError.BROKER_NOT_AVAILABLE: errors.BrokerUnreachable,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: errors.BrokerUnreachable,
    KafkaError.COORDINATOR_NOT_AVAILABLE: errors.BrokerUnreachable,
    KafkaError.FENCED_LEADER_EPOCH: errors.BrokerUnreachable,
    KafkaError.KAFKA_STORAGE_ERROR: errors.BrokerUnreachable,
    KafkaError.LEADER_NOT_AVAILABLE: errors.BrokerUnreachable,
    KafkaError.LISTENER_NOT_FOUND: errors.BrokerUnreachable,
    KafkaError.NETWORK_EXCEPTION: errors.BrokerUnreachable,
    KafkaError.NOT_CONTROLLER: errors.BrokerUnreachable,
    KafkaError.NOT_COORDINATOR: errors.BrokerUnreachable,
    KafkaError.NOT_LEADER_FOR_PARTITION: errors.BrokerUnreachable,
    KafkaError.OFFSET_NOT_AVAILABLE: errors.BrokerUnreachable,
    KafkaError.REBOOTSTRAP_REQUIRED: errors.BrokerUnreachable,
    KafkaError.REPLICA_NOT_AVAILABLE: errors.BrokerUnreachable,
    KafkaError.REQUEST_TIMED_OUT: errors.BrokerUnreachable,
    KafkaError.THROTTLING_QUOTA_EXCEEDED: errors.BrokerUnreachable,
    KafkaError.UNKNOWN_LEADER_EPOCH: errors.BrokerUnreachable,
    # refused
    KafkaError._AUTHENTICATION: errors.NotAuthorised,
    KafkaError._SSL: errors.NotAuthorised,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: errors.NotAuthorised,
    KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED: errors.NotAuthorised,
    KafkaError.GROUP_AUTHORIZATION_FAILED: errors.NotAuthorised,
    KafkaError.ILLEGAL_SASL_STATE: errors.NotAuthorised,
    KafkaError.SASL_AUTHENTICATION_FAILED: errors.NotAuthorised,
    KafkaError.SECURITY_DISABLED: errors.NotAuthorised,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: errors.NotAuthorised,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: errors.NotAuthorised,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: errors.NotAuthorised,
    # no such topic, or another one with the same name
    KafkaError._UNKNOWN_PARTITION: errors.TopicMissing,
    KafkaError._UNKNOWN_TOPIC: errors.TopicMissing,
    KafkaError.INCONSISTENT_TOPIC_ID: errors.TopicMissing,
    KafkaError.UNKNOWN_TOPIC_ID: errors.TopicMissing,
    KafkaError.UNKNOWN_TOPIC_OR_PART: errors.TopicMissing,
    # an impossible request
    KafkaError._INVALID_ARG: errors.SettingsError,
    KafkaError._UNSUPPORTED_FEATURE: errors.SettingsError,
    KafkaError.GROUP_ID_NOT_FOUND: errors.SettingsError,
    KafkaError.INVALID_CONFIG: errors.SettingsError,
    KafkaError.INVALID_GROUP_ID: errors.SettingsError,
    KafkaError.INVALID_PARTITIONS: errors.SettingsError,
    KafkaError.INVALID_REPLICATION_FACTOR: errors.SettingsError,
    KafkaError.INVALID_REQUEST: errors.SettingsError,
    KafkaError.NON_EMPTY_GROUP: errors.SettingsError,
    KafkaError.POLICY_VIOLATION: errors.SettingsError,
    KafkaError.REASSIGNMENT_IN_PROGRESS: errors.SettingsError,
    KafkaError.TOPIC_ALREADY_EXISTS: errors.SettingsError,
    KafkaError.TOPIC_DELETION_DISABLED: errors.SettingsError,
    KafkaError.TOPIC_EXCEPTION: errors.SettingsError,
    KafkaError.UNKNOWN_MEMBER_ID: errors.SettingsError,
    KafkaError.UNSUPPORTED_VERSION: errors.SettingsError,
}

PERMISSIONS: Mapping[int, str] = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "{permission} on the cluster",
    KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "permission to use this delegation token",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "{permission} on group {group!r}",
    KafkaError.SECURITY_DISABLED: "a cluster that has an authorizer",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "{permission} on topic {topic!r}",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "permission to use this transactional id",
}


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """Who we are for the brokers: a user, or the owner of a certificate."""

    user: str | None = None
    certificate: str | None = None

    def __str__(self) -> str:
        if self.user:
            return f"user {self.user!r}"
        if self.certificate:
            return f"the certificate {self.certificate}"
        return "user 'ANONYMOUS'"

    @property
    def principal(self) -> str:
        """Return the principal for kafka-acls; only the broker knows the name of a certificate."""
        unnamed = "NAME" if self.certificate else "ANONYMOUS"
        return f"User:{self.user or unnamed}"


@dataclass(frozen=True, slots=True)
class Operation:
    """The context of an error message: the operation, its topic and group, and the user."""

    action: str
    bootstrap: str
    identity: ClientIdentity = ClientIdentity()
    topic: str | None = None
    group: str | None = None
    tried_s: float | None = None
    right: str | None = None


class ErrorLog:
    """What the client reported to its error callback: the last cause, and any refusal."""

    def __init__(self) -> None:
        self._last: KafkaError | None = None
        self._last_at = 0.0
        self.fatal: KafkaError | None = None
        self._refusal: KafkaError | None = None
        self._refused_at = 0.0
        self._all_down_at = 0.0

    def add(self, error: KafkaError) -> None:
        """Record an error; this is the client's error callback."""
        if error.fatal():
            self.fatal = error
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._all_down_at = time.monotonic()
        else:
            self._last, self._last_at = error, time.monotonic()
        if MEANING.get(error.code()) is errors.NotAuthorised and error.code() not in PERMISSIONS:
            self._refusal, self._refused_at = error, time.monotonic()

    def last(self, since: float) -> KafkaError | None:
        """Return the last cause reported since a time (of time.monotonic)."""
        return self._last if self._last_at >= since else None

    def refusal(self, since: float) -> KafkaError | None:
        """Return the refusal of our identity since a time."""
        return self._refusal if self._refused_at >= since else None

    def all_down(self, since: float) -> bool:
        """Return whether no broker was reachable at some point since a time."""
        return self._all_down_at >= since

    def refused_by_all(self, since: float) -> bool:
        """Return whether all brokers refused us, so that waiting is of no use."""
        # The client reports all brokers as down when the last of them has refused us too.
        return self._refused_at >= since and self._all_down_at >= self._refused_at


# Remedies of errors whose type has no useful one.
REMEDIES = {
    KafkaError.TOPIC_EXCEPTION: (
        "use 1 to 249 letters, digits, dots, underscores and hyphens for a topic's name"
    ),
}


def translate(
    error: KafkaError, operation: Operation, error_log: ErrorLog | None = None, since: float = 0.0
) -> errors.InstepError:
    """Return the client's error as one of ours; raise it `from` the client's."""
    kind = MEANING.get(error.code(), errors.InstepError)
    if kind is errors.BrokerUnreachable:
        refusal = error_log.refusal(since) if error_log else None
        if refusal:
            return not_accepted(refusal, operation)
        last = error_log.last(since) if error_log else None
        return unreachable(operation, last or error)
    if kind is errors.NotAuthorised:
        if error.code() in PERMISSIONS:
            return not_allowed(error, operation)
        return not_accepted(error, operation)
    if kind is errors.TopicMissing and operation.topic is not None:
        return topic_missing(operation.topic, operation.bootstrap, ())
    return kind(
        f"cannot {operation.action}: {readable(error)} ({error.name()})",
        REMEDIES.get(error.code(), ""),
    )


def ends_reading(error: KafkaError) -> bool:
    """Return whether an error of a reader is permanent.

    It reads by assignment, so permissions on its group do not matter.
    """
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return False
    return MEANING.get(error.code()) in (errors.NotAuthorised, errors.TopicMissing)


def code(failure: errors.InstepError) -> int | None:
    """Return the client's code behind a translated error."""
    cause = failure.__cause__
    if not isinstance(cause, KafkaException):
        return None
    error: KafkaError = cause.args[0]
    return error.code()


def unreachable(operation: Operation, last: KafkaError | None) -> errors.BrokerUnreachable:
    """Return the error for brokers that do not answer."""
    tried = ""
    if operation.tried_s:
        tried = f": tried for {operation.tried_s:.0f} s"
    reason = f" (last: {readable(last)})" if last else ""
    return errors.BrokerUnreachable(
        f"no broker answered at {', '.join(addresses(operation.bootstrap))}{tried}{reason}",
        "start the broker, or check kafka.bootstrap and kafka.security.protocol"
        " against its listener",
    )


def not_accepted(error: KafkaError, operation: Operation) -> errors.NotAuthorised:
    """Return the error for a user or certificate that the brokers do not accept."""
    checked = "ca, certificate and key"
    if operation.identity.user:
        checked = "username, password and mechanism"
    return errors.NotAuthorised(
        f"the broker at {', '.join(addresses(operation.bootstrap))} does not accept"
        f" {operation.identity}: {readable(error)}",
        f"check kafka.security: {checked}",
    )


def not_allowed(error: KafkaError, operation: Operation) -> errors.NotAuthorised:
    """Return the error for a missing permission, with the command that grants it."""
    permission = "permission to do this"
    if operation.right:
        permission = f"the {operation.right} permission"
    lacking = PERMISSIONS[error.code()].format(
        topic=operation.topic, group=operation.group, permission=permission
    )
    resource = {
        KafkaError.TOPIC_AUTHORIZATION_FAILED: f"--topic {shlex.quote(operation.topic or 'NAME')}",
        KafkaError.GROUP_AUTHORIZATION_FAILED: f"--group {shlex.quote(operation.group or 'NAME')}",
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: "--cluster",
    }.get(error.code(), "…")
    return errors.NotAuthorised(
        f"cannot {operation.action}: {operation.identity} lacks {lacking} ({error.name()})",
        "have the cluster's administrator grant it: kafka-acls --add"
        f" --allow-principal {shlex.quote(operation.identity.principal)}"
        f" --operation {_operation(operation.right)} {resource}",
    )


def _operation(right: str | None) -> str:
    """Return a permission as kafka-acls spells it: DescribeConfigs."""
    if not right:
        return "OPERATION"
    return "".join(word.capitalize() for word in right.split("_"))


def topic_missing(topic: str, bootstrap: str, known: Iterable[str]) -> errors.TopicMissing:
    """Return the error for a topic that does not exist, with similar names."""
    create = f"instep topics create {shlex.quote(topic)} --partitions 6 --execute"
    similar = settings.nearest(topic, known, count=3)
    remedy = create
    if similar:
        remedy = f"correct the name of the topic; or, if it is a new one: {create}"
    return errors.TopicMissing(
        f"topic {topic!r} does not exist at {', '.join(addresses(bootstrap))}{similar}", remedy
    )


def identity(security: settings.Security) -> ClientIdentity:
    """Return our identity for the brokers."""
    return ClientIdentity(security.username, security.certificate)


def addresses(bootstrap: str) -> list[str]:
    """Return the addresses in kafka.bootstrap."""
    return [part.strip() for part in bootstrap.split(",") if part.strip()]


def readable(error: KafkaError) -> str:
    """Return the client's message without the name of its connection and its state."""
    text = re.sub(
        r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)$", "", error.str()
    )
    return re.sub(r"^\S+/(bootstrap|\d+): ", "", text)
