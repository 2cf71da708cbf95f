"""What librdkafka's errors mean for a log."""

from __future__ import annotations

from typing import Any

from outfall.errors import ConfigurationError, OutfallError, TransientError, missing_extra

try:
    from confluent_kafka import KafkaError, KafkaException
except ImportError as error:
    raise missing_extra("confluent-kafka", "kafka") from error

MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
"""The topic is not there, or not yet; or the client's view is older than a change of leader."""

_RIGHTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}  # fmt: skip
ACCESS = {
    KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
}  # fmt: skip
"""The brokers do not let us in, and will not."""

_REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG, KafkaError.INVALID_PARTITIONS, KafkaError.INVALID_MSG,
    KafkaError._INVALID_ARG, KafkaError.TOPIC_EXCEPTION, KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE,
}  # fmt: skip

# librdkafka has just dropped the broker it was asking. Clients before 2.6 or so have no name for it.
_DESTROY_BROKER = -137
_PASSING = {
    KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._ALL_BROKERS_DOWN,
    _DESTROY_BROKER,
    KafkaError._RESOLVE, KafkaError._WAIT_COORD, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.BROKER_NOT_AVAILABLE, KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_CONTROLLER, KafkaError.KAFKA_STORAGE_ERROR, KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE,
}  # fmt: skip


def error_of(error: BaseException) -> KafkaError | None:
    """Return librdkafka's own error of an exception."""
    first: Any = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return first if isinstance(first, KafkaError) else None


def may_pass(error: KafkaError) -> bool:
    """Whether the same request may succeed a little later.

    So may one for a topic that is missing: who asks for a topic looks first whether it is there.
    """
    return error.code() in _PASSING | MISSING or error.retriable()


def will_not_pass(error: KafkaError) -> bool:
    """Whether the broker has refused for good, so that the record is certainly not there."""
    return error.code() in _RIGHTS | ACCESS | _REFUSED


def explained(error: KafkaError, what: str, *, where: str, text: str) -> OutfallError:
    """Make the error that says what was being done, where, why, and what to do.

    Args:
        error: librdkafka's.
        what: what was being done, as `"reading events-progress"`.
        where: the brokers.
        text: the error's text, free of secrets.
    """
    why = f"{error.name()}: {text}"
    if error.code() in _RIGHTS:
        do = "let this user describe, create, read and write the topics and describe their configuration"
    elif error.code() in ACCESS:
        do = "see that client_options name the protocol, mechanism, user and certificate that the brokers ask for"
    elif error.code() in _REFUSED:
        do = "correct what the broker refuses, here or in its own configuration"
    else:
        do = "see that the brokers are up and reachable; the next run goes on from what the log holds"
        return TransientError(f"{what} at {where} failed", why=why, do=do)
    return ConfigurationError(f"{what} at {where} failed", why=why, do=do)
