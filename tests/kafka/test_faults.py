"""Test the table of error codes: it is complete, and each kind of failure has a remedy."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError

from instep import errors
from instep.kafka import faults

OPERATION = faults.Operation(
    "read topic 'print-status'",
    "a:1,b:2",
    identity=faults.ClientIdentity("ann"),
    topic="print-status",
    group="contracts",
    tried_s=10,
)

# Codes that none of our calls can get, or that are handled where they occur. If one occurs all the
# same, it is reported by name.
UNMAPPED = """
    NO_ERROR UNKNOWN OFFSET_OUT_OF_RANGE INVALID_MSG INVALID_MSG_SIZE MSG_SIZE_TOO_LARGE
    RECORD_LIST_TOO_LARGE OFFSET_METADATA_TOO_LARGE STALE_CTRL_EPOCH STALE_BROKER_EPOCH
    NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND INVALID_REQUIRED_ACKS ILLEGAL_GENERATION
    INCONSISTENT_GROUP_PROTOCOL INVALID_SESSION_TIMEOUT REBALANCE_IN_PROGRESS
    INVALID_COMMIT_OFFSET_SIZE INVALID_TIMESTAMP INVALID_REPLICA_ASSIGNMENT
    UNSUPPORTED_FOR_MESSAGE_FORMAT OUT_OF_ORDER_SEQUENCE_NUMBER DUPLICATE_SEQUENCE_NUMBER
    INVALID_PRODUCER_EPOCH INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING INVALID_TRANSACTION_TIMEOUT
    CONCURRENT_TRANSACTIONS TRANSACTION_COORDINATOR_FENCED OPERATION_NOT_ATTEMPTED LOG_DIR_NOT_FOUND
    UNKNOWN_PRODUCER_ID DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND
    DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DELEGATION_TOKEN_EXPIRED
    INVALID_PRINCIPAL_TYPE FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH
    UNSUPPORTED_COMPRESSION_TYPE MEMBER_ID_REQUIRED PREFERRED_LEADER_NOT_AVAILABLE
    GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID ELIGIBLE_LEADERS_NOT_AVAILABLE ELECTION_NOT_NEEDED
    NO_REASSIGNMENT_IN_PROGRESS GROUP_SUBSCRIBED_TO_TOPIC INVALID_RECORD UNSTABLE_OFFSET_COMMIT
    PRODUCER_FENCED RESOURCE_NOT_FOUND DUPLICATE_RESOURCE UNACCEPTABLE_CREDENTIAL
    INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED
    PRINCIPAL_DESERIALIZATION_FAILURE FENCED_MEMBER_EPOCH UNRELEASED_INSTANCE_ID
    UNSUPPORTED_ASSIGNOR STALE_MEMBER_EPOCH MISMATCHED_ENDPOINT_TYPE UNSUPPORTED_ENDPOINT_TYPE
    UNKNOWN_CONTROLLER_ID UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE INVALID_REGISTRATION
    TRANSACTION_ABORTABLE INVALID_RECORD_STATE SHARE_SESSION_NOT_FOUND INVALID_SHARE_SESSION_EPOCH
    FENCED_STATE_EPOCH INVALID_VOTER_KEY DUPLICATE_VOTER VOTER_NOT_FOUND INVALID_REGULAR_EXPRESSION
    SHARE_SESSION_LIMIT_REACHED STREAMS_INVALID_TOPOLOGY STREAMS_INVALID_TOPOLOGY_EPOCH
    STREAMS_TOPOLOGY_FENCED
    _BAD_MSG _BAD_COMPRESSION _DESTROY _FAIL _CRIT_SYS_RESOURCE _MSG_TIMED_OUT _PARTITION_EOF _FS
    _INTR _QUEUE_FULL _ISR_INSUFF _NODE_UPDATE _UNKNOWN_GROUP _IN_PROGRESS _PREV_IN_PROGRESS
    _EXISTING_SUBSCRIPTION _ASSIGN_PARTITIONS _REVOKE_PARTITIONS _CONFLICT _STATE _UNKNOWN_PROTOCOL
    _NOT_IMPLEMENTED _NO_OFFSET _OUTDATED _KEY_SERIALIZATION _VALUE_SERIALIZATION
    _KEY_DESERIALIZATION _VALUE_DESERIALIZATION _PARTIAL _READ_ONLY _NOENT _UNDERFLOW _INVALID_TYPE
    _RETRY _PURGE_QUEUE _PURGE_INFLIGHT _FATAL _INCONSISTENT _GAPLESS_GUARANTEE _MAX_POLL_EXCEEDED
    _NOT_CONFIGURED _FENCED _APPLICATION _ASSIGNMENT_LOST _NOOP _AUTO_OFFSET_RESET _LOG_TRUNCATION
    _INVALID_DIFFERENT_RECORD _DESTROY_BROKER
"""


def codes() -> dict[str, int]:
    found = {name: getattr(KafkaError, name) for name in dir(KafkaError) if name.isupper()}
    return {name: code for name, code in found.items() if isinstance(code, int)}


def test_every_code_of_the_client_is_mapped_or_listed_here_as_unmapped() -> None:
    unmapped = {name for name, code in codes().items() if code not in faults.MEANING}
    assert unmapped == set(UNMAPPED.split())


def test_every_authorisation_error_names_the_missing_right() -> None:
    lacking = {code for name, code in codes().items() if name.endswith("AUTHORIZATION_FAILED")}
    assert lacking <= faults.PERMISSIONS.keys() <= faults.MEANING.keys()


@pytest.mark.parametrize("code", sorted(faults.MEANING))
def test_a_mapped_code_becomes_an_error_of_its_type(code: int) -> None:
    error = faults.translate(KafkaError(code), OPERATION)
    assert type(error) is faults.MEANING[code]
    assert any(part in error.what for part in ("print-status", "a:1, b:2"))


def test_an_unmapped_code_is_reported_by_name() -> None:
    error = faults.translate(KafkaError(KafkaError.INVALID_TIMESTAMP), OPERATION)
    assert type(error) is errors.InstepError
    assert "INVALID_TIMESTAMP" in error.what


def test_a_timeout_names_addresses_seconds_and_the_last_cause() -> None:
    error_log = faults.ErrorLog()
    error_log.add(
        KafkaError(
            KafkaError._TRANSPORT,
            "a:1/bootstrap: Connect to ipv4#a:1 failed: Connection refused (after 0ms in state"
            " CONNECT)",
        )
    )
    error_log.add(KafkaError(KafkaError._ALL_BROKERS_DOWN, "2/2 brokers are down"))
    error = faults.translate(KafkaError(KafkaError._TIMED_OUT), OPERATION, error_log)
    assert isinstance(error, errors.BrokerUnreachable)
    assert error.what == (
        "no broker answered at a:1, b:2: tried for 10 s (last: Connect to ipv4#a:1 failed:"
        " Connection refused)"
    )
    assert "kafka.bootstrap" in error.remedy


def test_a_timeout_after_a_refusal_is_reported_as_the_refusal() -> None:
    error_log = faults.ErrorLog()
    since = time.monotonic()
    assert error_log.refusal(since) is None
    error_log.add(
        KafkaError(
            KafkaError._AUTHENTICATION,
            "a:1/bootstrap: SASL authentication error: wrong (after 300ms in state AUTH_REQ)",
        )
    )
    assert not error_log.refused_by_all(since)
    error_log.add(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert error_log.refused_by_all(since)
    error = faults.translate(KafkaError(KafkaError._TIMED_OUT), OPERATION, error_log, since)
    assert isinstance(error, errors.NotAuthorised)
    assert (
        error.what
        == "the broker at a:1, b:2 does not accept user 'ann': SASL authentication error: wrong"
    )


def test_an_old_refusal_does_not_explain_a_new_timeout() -> None:
    error_log = faults.ErrorLog()
    error_log.add(KafkaError(KafkaError._AUTHENTICATION, "wrong"))
    error = faults.translate(
        KafkaError(KafkaError._TIMED_OUT), OPERATION, error_log, since=time.monotonic() + 1
    )
    assert isinstance(error, errors.BrokerUnreachable)
    assert "wrong" not in error.what


def test_a_missing_right_is_not_a_refused_login() -> None:
    ear = faults.ErrorLog()
    ear.add(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "no"))
    assert ear.refusal(0) is None


def test_a_fatal_error_is_kept() -> None:
    error_log = faults.ErrorLog()
    fatal = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "gone wrong", fatal=True)
    error_log.add(fatal)
    assert error_log.fatal is not None
    assert error_log.fatal.code() == fatal.code()


def test_a_missing_topic_names_similar_ones_and_how_to_create_it() -> None:
    error = faults.topic_missing(
        "print-statsu", "a:1", ["print-status", "other", "print-status-dlq"]
    )
    assert "did you mean 'print-status'" in error.what
    assert error.remedy.endswith(
        "if it is a new one: instep topics create print-statsu --partitions 6 --execute"
    )
    assert "did you mean" not in faults.topic_missing("x", "a:1", ["print-status"]).what


def test_the_log_lines_of_the_client_do_not_reach_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    faults.log.error("a line of the client")
    assert capfd.readouterr().err == ""
