"""Connection: the only access to confluent-kafka, which is built on librdkafka.

Sets the library up so that it joins no group, commits nothing by itself, and reports a missing offset as an error
instead of jumping to another offset. Turns the library's errors into sentences with advice. Never sends a
request: ``broker``, ``reader`` and ``topic_writer`` do. This module can be imported without the library.
:func:`library` then raises an error that names the extra.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from acker_client.extras import missing
from acker_client.source.errors import SourceError
from acker_client.source.kafka.names import KafkaConnection
from acker_client.source.waiting import OutOfReach

log = logging.getLogger("acker_client.source.kafka")

# The pause between two tries of a request.
PAUSE_S = 0.05


class Unreachable(OutOfReach):
    """No broker has answered in time. It may answer again later."""


def library() -> Any:
    """Import confluent-kafka. Raises ``ImportError`` with the extra to install."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise missing("acker_client.source.Kafka", "kafka", error) from error
    return confluent_kafka


def new_consumer(connection: KafkaConnection, on_error: Callable[[Any], None], **more: Any) -> Any:
    """Return a consumer that joins no group and commits nothing by itself. ``on_error``: gets connection errors."""
    settings = {
        "allow.auto.create.topics": False,
        **more,
        **connection.settings,
        "group.id": connection.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "error_cb": on_error,
    }
    return _new_client(lambda: library().Consumer(settings, logger=_Whisper()), connection)


def new_producer(connection: KafkaConnection, on_error: Callable[[Any], None]) -> Any:
    """Return a producer that reports a message as delivered once all in-sync replicas have it."""
    settings = {
        "acks": "all",
        "enable.idempotence": True,
        "message.timeout.ms": int(connection.timeout_s * 1000),
        "error_cb": on_error,
        **connection.settings,
    }
    return _new_client(lambda: library().Producer(settings, logger=_Whisper()), connection)


def new_admin(connection: KafkaConnection) -> Any:
    """Return an admin client, which alone shows the ids of topics."""
    from confluent_kafka.admin import AdminClient

    settings = {**connection.settings, "logger": _Whisper()}
    return _new_client(lambda: AdminClient(settings), connection)


def error_of(error: Any, what: str, connection: KafkaConnection, trouble: str) -> SourceError:
    """Turn an error of the library into a ``SourceError`` that says what to do."""
    codes, code = library().KafkaError, error.code()
    why = f"{error.str()}; {trouble}" if trouble and trouble != error.str() else error.str()
    if is_forbidden(error):
        return SourceError(f"Kafka: no permission for {what} ({why}): give this user the right to it, or check config")
    if code == codes.UNKNOWN_TOPIC_OR_PART:
        return SourceError(f"Kafka: {what} does not exist at {connection.servers} ({why}): create it, or name another")
    if code in _passing():
        return Unreachable(
            f"Kafka: no broker at {connection.servers} has answered for {what} in {connection.timeout_s:g} s ({why}):"
            " check bootstrap_servers, the brokers, and the security settings in config"
        )
    if code == codes.MSG_SIZE_TOO_LARGE:
        return SourceError(
            f"Kafka: {what}: {why}: raise message.max.bytes in config, and the topic's max.message.bytes"
        )
    return SourceError(f"Kafka: {what}: {why}")


def is_forbidden(error: Any) -> bool:
    """Whether an error of the library means that this user may not do what was asked."""
    codes = library().KafkaError
    return error.code() in (
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.SASL_AUTHENTICATION_FAILED,
        codes._AUTHENTICATION,
    )


def _passing() -> tuple[int, ...]:
    codes = library().KafkaError
    return (
        codes._TRANSPORT,
        codes._TIMED_OUT,
        codes._TIMED_OUT_QUEUE,
        codes._MSG_TIMED_OUT,
        codes._ALL_BROKERS_DOWN,
        codes._RESOLVE,
        codes._DESTROY,
        # The library's codes for a partition whose broker it has lost.
        codes._UNKNOWN_TOPIC,
        codes._UNKNOWN_PARTITION,
        codes._WAIT_COORD,
        codes.LEADER_NOT_AVAILABLE,
        codes.NOT_LEADER_FOR_PARTITION,
        codes.BROKER_NOT_AVAILABLE,
        codes.REPLICA_NOT_AVAILABLE,
        codes.REQUEST_TIMED_OUT,
        codes.NETWORK_EXCEPTION,
        codes.COORDINATOR_LOAD_IN_PROGRESS,
        codes.COORDINATOR_NOT_AVAILABLE,
        codes.NOT_COORDINATOR,
        codes.FENCED_LEADER_EPOCH,
        codes.UNKNOWN_LEADER_EPOCH,
        codes.OFFSET_NOT_AVAILABLE,
        codes.KAFKA_STORAGE_ERROR,
    )


def _new_client(make: Callable[[], Any], connection: KafkaConnection) -> Any:
    try:
        return make()
    except library().KafkaException as error:
        raise SourceError(f"Kafka at {connection.servers}: {error.args[0].str()}: check config") from None


class _Whisper:
    """The library's logger. Debug level only: important events also come as errors."""

    def log(self, level: int, text: str, *values: object) -> None:
        log.debug(text, *values)
