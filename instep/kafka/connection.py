"""Connect to a cluster: the settings for each client, and one `Cluster` that owns the clients.

Two clients read the same topic, with different names of settings: librdkafka (ours) and Java's
(Spark's). A third client is in `admin_extras.py`.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]

from instep import certificates, errors, settings
from instep.kafka import faults
from instep.kafka.client_pool import ClientPool, Loan

TIMEOUT_S = 10.0
POLL_S = 0.05  # so short that Ctrl-C and a refusal are noticed
SILENCE_S = 3.0  # after this long without an answer, a new client is tried
REFRESH_S = 1.0
METADATA_ATTEMPT_S = 1.0  # the first one; each further one takes twice as long
READER_GROUP = "instep-reader"
RETIRED_MAX = 4  # replaced clients that are kept open
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
READING: dict[str, Any] = {
    # librdkafka requires a group. The reader never joins it and commits nothing.
    "group.id": READER_GROUP,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # Without it, the end of a partition cannot be distinguished from a slow broker.
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    # A position that the log no longer has must be an error. Any reset would hide a loss.
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    "fetch.wait.max.ms": 10,
    # A fetch that finds the queue full waits this long, by default a second.
    "fetch.queue.backoff.ms": 5,
}
PBES2 = bytes.fromhex("06092a864886f70d01050d")  # its object identifier, in DER

# This client only commits offsets and never joins the group, so no session can expire. librdkafka
# also uses the session timeout as the longest wait for a pending commit when the client is closed.
COMMITTING = {"session.timeout.ms": 1_000, "heartbeat.interval.ms": 500}
# What brokers answer to a commit: the error of the whole request, and that of each partition.
CommitAnswers = list[tuple[KafkaError | None, list[TopicPartition]]]

Client = TypeVar("Client")
Result = TypeVar("Result")


def client_config(kafka: settings.Kafka, bootstrap: str) -> dict[str, Any]:
    """Return the settings of librdkafka for the cluster."""
    security = kafka.security
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "client.id": "instep",
        "security.protocol": security.protocol,
        "sasl.mechanism": security.mechanism,
        "sasl.username": security.username,
        "sasl.password": security.password,
        "ssl.ca.location": security.ca,
        "ssl.certificate.location": security.certificate,
        "ssl.key.location": security.key,
        "ssl.key.password": security.key_password,
    }
    return {name: value for name, value in config.items() if value is not None}


def java_config(kafka: settings.Kafka, bootstrap: str) -> dict[str, str]:
    """Return the settings of a Java client, such as Spark's Kafka source."""
    security = kafka.security
    config = {"bootstrap.servers": bootstrap, "security.protocol": security.protocol}
    if security.mechanism is not None:
        config["sasl.mechanism"] = security.mechanism
        config["sasl.jaas.config"] = (
            f"{LOGIN_MODULES[security.mechanism]} required"
            f" username={_jaas_quoted(security.username or '')}"
            f" password={_jaas_quoted(security.password or '')};"
        )
    if security.ca is not None:
        config["ssl.truststore.type"] = "PEM"
        config["ssl.truststore.location"] = security.ca
    if security.certificate is not None:
        config["ssl.keystore.type"] = "PEM"
        config["ssl.keystore.certificate.chain"] = certificates.read(
            "kafka.security.certificate", security.certificate
        )
    if security.key is not None:
        config["ssl.keystore.key"] = _java_key(security.key)
    if security.key_password is not None:
        config["ssl.key.password"] = security.key_password
    return config


class _ThreadTimeout(threading.local):
    """The time that this thread waits for an answer."""

    def __init__(self, s: float) -> None:
        self.s = s


def files(security: settings.Security) -> certificates.Files:
    """Return the certificate files of the settings."""
    return certificates.Files(
        security.ca, security.certificate, security.key, security.key_password
    )


def check_files(security: settings.Security) -> None:
    """Raise SettingsError if a certificate file is wrong; clients report all causes alike."""
    if security.protocol.endswith("SSL"):
        files(security).context()


class Cluster:
    """One cluster: an admin client and a reader, created when first needed.

    Waits are bounded, and errors are instep's own types.
    """

    def __init__(
        self,
        kafka: settings.Kafka,
        bootstrap: str,
        timeout_s: float = TIMEOUT_S,
        extra_config: Mapping[str, Any] | None = None,
        *,
        idle_max: int = 0,
    ) -> None:
        """Take settings of librdkafka that the settings file does not have.

        `idle_max` clients of each kind are kept for the next request, until `close`.
        """
        self.kafka = kafka
        self.bootstrap = bootstrap
        self.identity = faults.identity(kafka.security)
        self.timeout_s = timeout_s
        self.reader_lock = threading.Lock()
        self.error_log = faults.ErrorLog()
        self._timeout = _ThreadTimeout(timeout_s)
        check_files(kafka.security)
        own = client_config(kafka, bootstrap)
        self._config = {**own, **(extra_config or {})}
        # With other security settings than those of the file, an examination of the listener
        # would report the wrong problem (see `_listener_fault`).
        self._uses_settings = all(
            own.get(name) == value
            for name, value in self._config.items()
            if name.startswith(("security.", "sasl.", "ssl."))
        )
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._reader: Consumer | None = None
        self._committers: dict[str, tuple[Consumer, CommitAnswers]] = {}
        self._retired: list[object] = []
        self._idle_max = idle_max
        self._pools: dict[str, ClientPool[Any]] = {}

    @property
    def admin(self) -> AdminClient:
        """Return the admin client. It must outlive the futures that it returns."""
        with self._lock:
            if self._admin is None:
                self._admin = self._make(AdminClient, {})
            return self._admin

    @property
    def reader(self) -> Consumer:
        """Return the reader of committed records; use it under `reader_lock`.

        It reads by assignment: it joins no group and commits nothing.
        """
        with self._lock:
            if self._reader is None:
                self._reader = self._make(Consumer, {**READING, "queued.min.messages": 1})
            return self._reader

    def committer(self, group: str) -> tuple[Consumer, CommitAnswers]:
        """Return a client that commits to a group without joining it, and the brokers' answers."""
        with self._lock:
            if group not in self._committers:
                answers: CommitAnswers = []
                config = {
                    "group.id": group,
                    "enable.auto.commit": False,
                    "on_commit": lambda error, topic_partitions: answers.append(
                        (error, topic_partitions)
                    ),
                    **COMMITTING,
                }
                self._committers[group] = (self._make(Consumer, config), answers)
            return self._committers[group]

    def scanner(self, committed: bool = True, **config: Any) -> Consumer:
        """Return a new reader that reads ahead, for many records. The caller closes it.

        `config` replaces settings of librdkafka, with _ in place of each dot.
        """
        level = "read_committed" if committed else "read_uncommitted"
        given = {name.replace("_", "."): value for name, value in config.items()}
        scanner: Consumer = self._make(Consumer, {**READING, "isolation.level": level, **given})
        return scanner

    def pool(
        self, kind: str, make: Callable[[], Client], close: Callable[[Client], None]
    ) -> ClientPool[Client]:
        """Return the pool of a kind of clients of this cluster."""
        with self._lock:
            if kind not in self._pools:
                self._pools[kind] = ClientPool(make, close, self._idle_max)
            return self._pools[kind]

    def borrow_scanner(self, committed: bool = True) -> Loan[Consumer]:
        """Borrow a reader that reads ahead. It has no partitions, and must be left without any."""
        kind = "read_committed" if committed else "read_uncommitted"
        return self.pool(kind, lambda: self.scanner(committed), Consumer.close).borrow()

    def wait(
        self, future: concurrent.futures.Future[Result], operation: faults.Operation
    ) -> Result:
        """Return the future's result, or raise the client's error as ours.

        It does not wait any longer if every broker has refused our credentials.
        """
        since = refreshed_at = time.monotonic()
        deadline = since + self._timeout.s
        is_checked = False
        while True:
            try:
                return future.result(timeout=POLL_S)
            except KafkaException as failure:
                self.admin.poll(0)
                raise self.translate(failure.args[0], operation, since) from failure
            except concurrent.futures.TimeoutError:
                self.admin.poll(0)  # calls the error callback, which fills the error log
                if self.error_log.refused_by_all(since) or time.monotonic() > deadline:
                    raise self.translate(
                        KafkaError(KafkaError._TIMED_OUT), operation, since
                    ) from None
                if not is_checked and self.error_log.all_down(since):
                    is_checked = True
                    if fault := self._listener_fault():
                        raise fault from None
                if time.monotonic() - refreshed_at > REFRESH_S:
                    self._refresh_metadata()
                    refreshed_at = time.monotonic()

    def metadata(self, operation: faults.Operation, topic: str | None = None) -> ClusterMetadata:
        """Return brokers and topics, or one topic.

        The client's call reacts neither to Ctrl-C nor to a refusal, so it is repeated with growing
        timeouts.
        """
        since, attempt_s = time.monotonic(), METADATA_ATTEMPT_S
        while True:
            left_s = since + self.timeout_s - time.monotonic()
            try:
                return self.admin.list_topics(topic, timeout=max(POLL_S, min(attempt_s, left_s)))
            except KafkaException as failure:
                self.admin.poll(0)  # calls the error callback
                ours = self.translate(failure.args[0], operation, since)
                if (
                    not isinstance(ours, errors.BrokerUnreachable)
                    or self.error_log.refused_by_all(since)
                    or left_s <= attempt_s
                ):
                    raise ours from failure
            attempt_s *= 2

    def retry(self, attempt: Callable[[], Result]) -> Result:
        """Retry until the timeout: a leader or coordinator that moves returns an error, or nothing.

        A client may wait forever for a broker that died, so after the first silence the attempt is
        repeated with a new client.
        """
        since, is_renewed = time.monotonic(), False
        while True:
            try:
                return attempt() if is_renewed else self.try_briefly(attempt)
            except errors.BrokerUnreachable:
                waited_s = time.monotonic() - since
                if waited_s > self.timeout_s:
                    raise
                if waited_s >= SILENCE_S and not is_renewed:
                    self.renew()
                    is_renewed = True
                time.sleep(POLL_S)

    def try_briefly(self, attempt: Callable[[], Result]) -> Result:
        """Try once, with a short timeout."""
        self._timeout.s = min(SILENCE_S, self.timeout_s)
        try:
            return attempt()
        finally:
            self._timeout.s = self.timeout_s

    def _refresh_metadata(self) -> None:
        """Refresh the metadata: a request to a dead leader does not look for the new one."""
        with contextlib.suppress(KafkaException):
            self.admin.list_topics(timeout=REFRESH_S)

    def translate(
        self, error: KafkaError, operation: faults.Operation, since: float
    ) -> errors.InstepError:
        """Return the client's error as ours; if its cause is unclear, examine the listener."""
        ours = faults.translate(error, operation, self.error_log, since)
        # negative codes are the client's own: no broker reported them
        is_silent = isinstance(ours, errors.BrokerUnreachable) and error.code() < 0
        is_refused = (
            isinstance(ours, errors.NotAuthorised) and error.code() not in faults.PERMISSIONS
        )
        if is_silent or is_refused:
            return self._listener_fault() or ours
        return ours

    def _listener_fault(self) -> errors.InstepError | None:
        """Examine the listeners, because the client reports many causes alike; None if unclear."""
        if not self._uses_settings:
            return None
        from instep.kafka import handshake

        return handshake.fault_of_any(self.kafka.security, faults.addresses(self.bootstrap))

    def operation(
        self,
        action: str,
        topic: str | None = None,
        group: str | None = None,
        right: str | None = None,
    ) -> faults.Operation:
        """Return the context of an operation for error messages; `right` is Kafka's name of it."""
        return faults.Operation(
            action, self.bootstrap, self.identity, topic, group, self.timeout_s, right
        )

    def renew(self) -> None:
        """Use new clients from now on.

        A client that knows a newer epoch of a partition than the cluster gets no answers.
        """
        with self._lock:
            # Another thread may still wait for a future of the old client, which must outlive it.
            self._retired = [*self._retired, self._admin, self._reader][-RETIRED_MAX:]
            self._admin, self._reader = None, None
            pools = list(self._pools.values())
        for pool in pools:
            pool.discard_idle()

    def close(self) -> None:
        """Close all clients."""
        with self._lock:
            self._retired = []
            admin, self._admin = self._admin, None
            reader, self._reader = self._reader, None
            committers, self._committers = self._committers, {}
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()
        for committer, _ in committers.values():
            committer.close()
        if reader is not None:
            reader.close()
        if admin is not None:
            admin.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self, client: Any, extra_config: dict[str, Any]) -> Any:
        try:
            return client(
                {**self._config, **extra_config, "error_cb": self.error_log.add}, logger=faults.log
            )
        except KafkaException as failure:
            raise self.translate(
                failure.args[0], self.operation("create a Kafka client"), time.monotonic()
            ) from failure


def _jaas_quoted(text: str) -> str:
    """Quote a value for Java's JAAS parser: a line break inside quotes would end the value."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return f'"{text}"'


def _java_key(path: str) -> str:
    text = certificates.read("kafka.security.key", path, "key")
    if "BEGIN PRIVATE KEY" not in text and "BEGIN ENCRYPTED PRIVATE KEY" not in text:
        raise errors.SettingsError(
            f"kafka.security.key {path} is not in PKCS #8, the only form that Java reads",
            f"openssl pkcs8 -topk8 -nocrypt -in {path} -out key-pkcs8.pem; chmod 600 key-pkcs8.pem",
        )
    if "BEGIN ENCRYPTED" in text and PBES2 in base64.b64decode(
        "".join(text.splitlines()[1:-1]), validate=False
    ):
        raise errors.SettingsError(
            f"kafka.security.key {path} is encrypted with PBES2,"
            " which Java's Kafka client cannot read",
            f"openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES -in {path} -out key-java.pem",
        )
    return text
