"""How a cluster is spoken to: the settings as each client spells them, and one `Cluster` that holds the clients.

Two spellings, because two clients read the same topic: librdkafka's (ours) and Java's (Spark's). A third is in `inquiry.py`.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]

from instep import certificates, errors, settings
from instep.kafka import faults

TIMEOUT_S = 10.0
SLICE_S = 0.05
SILENCE_S = 3.0
LOOK_AROUND_S = 1.0
METADATA_SLICE_S = 1.0
READER_GROUP = "instep-reader"
RETIRED_MAX = 4
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
READING: dict[str, Any] = {
    "group.id": READER_GROUP,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
    "fetch.wait.max.ms": 10,
    # A fetch that finds the queue full waits this long, by default a second.
    "fetch.queue.backoff.ms": 5,
}
PBES2 = bytes.fromhex("06092a864886f70d01050d")  # its object identifier, in DER

# no member, so no session; but closing waits as long for a commit that is still on its way
COMMITTING = {"session.timeout.ms": 1_000, "heartbeat.interval.ms": 500}
Answers = list[
    tuple[KafkaError | None, list[TopicPartition]]
]  # to a commit: of all of it, and of each partition

Result = TypeVar("Result")


def client_config(kafka: settings.Kafka, bootstrap: str) -> dict[str, Any]:
    """What librdkafka needs to reach the cluster."""
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
    """What a Java client, such as Spark's Kafka source, needs to reach the cluster."""
    security = kafka.security
    config = {"bootstrap.servers": bootstrap, "security.protocol": security.protocol}
    if security.mechanism is not None:
        config["sasl.mechanism"] = security.mechanism
        config["sasl.jaas.config"] = (
            f"{LOGIN_MODULES[security.mechanism]} required"
            f" username={_jaas_quoted(security.username or '')} password={_jaas_quoted(security.password or '')};"
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


class _Patience(threading.local):
    """How long this thread waits for an answer."""

    def __init__(self, s: float) -> None:
        self.s = s


def files(security: settings.Security) -> certificates.Files:
    return certificates.Files(
        security.ca, security.certificate, security.key, security.key_password
    )


def check_files(security: settings.Security) -> None:
    """SettingsError when a file of the settings is wrong; clients have one text for all of that."""
    if security.protocol.endswith("SSL"):
        files(security).context()


class Cluster:
    """One cluster as we see it: an admin client and a reader, made when first needed. Waits are bounded, errors are typed."""

    def __init__(
        self,
        kafka: settings.Kafka,
        bootstrap: str,
        timeout_s: float = TIMEOUT_S,
        further: Mapping[str, Any] | None = None,
    ) -> None:
        """`further` are librdkafka settings that our settings file has no words for."""
        self.kafka = kafka
        self.bootstrap = bootstrap
        self.who = faults.who(kafka.security)
        self.timeout_s = timeout_s
        self.reader_lock = threading.Lock()
        self.ear = faults.ErrorLog()
        self._patience = _Patience(timeout_s)
        check_files(kafka.security)
        own = client_config(kafka, bootstrap)
        self._config = {**own, **(further or {})}
        self._as_settings_say = all(
            own.get(name) == value
            for name, value in self._config.items()
            if name.startswith(("security.", "sasl.", "ssl."))
        )
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._reader: Consumer | None = None
        self._committers: dict[str, tuple[Consumer, Answers]] = {}
        self._retired: list[object] = []

    @property
    def admin(self) -> AdminClient:
        """Answers come to this client's own thread, so it must outlive the futures it gives."""
        with self._lock:
            if self._admin is None:
                self._admin = self._make(AdminClient, {})
            return self._admin

    @property
    def reader(self) -> Consumer:
        """Reads what is committed, by assignment: it joins no group and commits nothing. Take `reader_lock` to use it."""
        with self._lock:
            if self._reader is None:
                self._reader = self._make(Consumer, {**READING, "queued.min.messages": 1})
            return self._reader

    def committer(self, group: str) -> tuple[Consumer, Answers]:
        """A client that commits to a group without being a member of it, and what the brokers answered to it."""
        with self._lock:
            if group not in self._committers:
                answers: Answers = []
                heard = {"on_commit": lambda error, places: answers.append((error, places))}
                made = self._make(
                    Consumer,
                    {"group.id": group, "enable.auto.commit": False, **COMMITTING, **heard},
                )
                self._committers[group] = (made, answers)
            return self._committers[group]

    def scanner(self, committed: bool = True) -> Consumer:
        """Like the reader, and the caller's own: it reads ahead, for many records. Close it."""
        level = "read_committed" if committed else "read_uncommitted"
        scanner: Consumer = self._make(Consumer, {**READING, "isolation.level": level})
        return scanner

    def wait(
        self, future: concurrent.futures.Future[Result], operation: faults.Operation
    ) -> Result:
        """The future's result; an error of the client becomes ours. Ends early when every broker refused our credentials."""
        since = around = time.monotonic()
        deadline = since + self._patience.s
        looked = False
        while True:
            try:
                return future.result(timeout=SLICE_S)
            except KafkaException as failure:
                self.admin.poll(0)
                raise self.translate(failure.args[0], operation, since) from failure
            except concurrent.futures.TimeoutError:
                self.admin.poll(0)
                if self.ear.refused_by_all(since) or time.monotonic() > deadline:
                    raise self.translate(
                        KafkaError(KafkaError._TIMED_OUT), operation, since
                    ) from None
                if not looked and self.ear.all_down(since):
                    looked = True
                    if fault := self._fault():
                        raise fault from None
                if time.monotonic() - around > LOOK_AROUND_S:
                    self._look_around()
                    around = time.monotonic()

    def metadata(self, operation: faults.Operation, topic: str | None = None) -> ClusterMetadata:
        """Brokers and topics, or one topic. Asked for in growing slices: the client's call hears neither Ctrl-C nor a refusal."""
        since, slice_s = time.monotonic(), METADATA_SLICE_S
        while True:
            left_s = since + self.timeout_s - time.monotonic()
            try:
                return self.admin.list_topics(topic, timeout=max(SLICE_S, min(slice_s, left_s)))
            except KafkaException as failure:
                self.admin.poll(0)  # what the client has to say on the side
                ours = self.translate(failure.args[0], operation, since)
                if (
                    not isinstance(ours, errors.BrokerUnreachable)
                    or self.ear.refused_by_all(since)
                    or left_s <= slice_s
                ):
                    raise ours from failure
            slice_s *= 2

    def retry(self, attempt: Callable[[], Result]) -> Result:
        """Try again for as long as we may: a leader or coordinator that is moving answers with an error, or not at all.

        A client can go on waiting for a broker that died, so the first silence is answered by asking anew, with another client.
        """
        since, asked_anew = time.monotonic(), False
        while True:
            try:
                return attempt() if asked_anew else self.briefly(attempt)
            except errors.BrokerUnreachable:
                waited_s = time.monotonic() - since
                if waited_s > self.timeout_s:
                    raise
                if waited_s >= SILENCE_S and not asked_anew:
                    self.renew()
                    asked_anew = True
                time.sleep(SLICE_S)

    def briefly(self, attempt: Callable[[], Result]) -> Result:
        """Try once, and take a short silence for an answer."""
        self._patience.s = min(SILENCE_S, self.timeout_s)
        try:
            return attempt()
        finally:
            self._patience.s = self.timeout_s

    def _look_around(self) -> None:
        """Let the client see who leads now: a request to a leader or controller that died waits, and looks for no other."""
        with contextlib.suppress(KafkaException):
            self.admin.list_topics(timeout=LOOK_AROUND_S)

    def translate(
        self, error: KafkaError, operation: faults.Operation, since: float
    ) -> errors.InstepError:
        ours = faults.translate(error, operation, self.ear, since)
        silent = (
            isinstance(ours, errors.BrokerUnreachable) and error.code() < 0
        )  # the client's own codes: no broker said it
        doubtful = silent or (
            isinstance(ours, errors.NotAuthorised) and error.code() not in faults.RIGHTS
        )
        return (self._fault() if doubtful else None) or ours

    def _fault(self) -> errors.InstepError | None:
        """What keeps us from the brokers, where a look at them tells it; the client says the same of many causes."""
        if not self._as_settings_say:
            return None
        from instep.kafka import handshake

        return handshake.fault_of_any(self.kafka.security, faults.addresses(self.bootstrap))

    def operation(
        self,
        doing: str,
        topic: str | None = None,
        group: str | None = None,
        right: str | None = None,
    ) -> faults.Operation:
        """`right` is Kafka's name of the operation that the operation needs."""
        return faults.Operation(
            doing, self.bootstrap, self.who, topic, group, self.timeout_s, right
        )

    def renew(self) -> None:
        """Use new clients from now on. One that remembers a newer epoch of a partition than the cluster does gets no answers."""
        with self._lock:
            # another thread may be waiting for an answer to the last one
            self._retired = [*self._retired, self._admin, self._reader][-RETIRED_MAX:]
            self._admin, self._reader = None, None

    def close(self) -> None:
        with self._lock:
            self._retired = []
            admin, self._admin = self._admin, None
            reader, self._reader = self._reader, None
            committers, self._committers = self._committers, {}
        for committer, _ in committers.values():
            committer.close()
        if reader is not None:
            reader.close()
        if admin is not None:
            admin.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _make(self, client: Any, further: dict[str, Any]) -> Any:
        try:
            return client({**self._config, **further, "error_cb": self.ear.hear}, logger=faults.log)
        except KafkaException as failure:
            raise self.translate(
                failure.args[0], self.operation("make a Kafka client"), time.monotonic()
            ) from failure


def _jaas_quoted(text: str) -> str:
    """A value as Java's JAAS tokenizer reads it: a line break inside quotes would end the value."""
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
            f"kafka.security.key {path} is encrypted by PBES2, which Java's Kafka client does not read",
            f"openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES -in {path} -out key-java.pem",
        )
    return text
