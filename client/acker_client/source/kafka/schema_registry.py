"""Schema registry: the client of a schema registry, and the only access to confluent-kafka's.

A registry that does not answer is waited for: calls repeat until a timeout, and a line a minute says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from acker_client.error_text import shorten
from acker_client.extras import missing
from acker_client.source.errors import SourceError
from acker_client.source.kafka.connection import PAUSE_S, Unreachable
from acker_client.source.kafka.values import RegistryConnection
from acker_client.source.waiting import FIRST_REMINDER_S, Reminder

# Statuses of HTTP after which the same request may succeed.
PASSING = (408, 429, 500, 502, 503, 504)
UNAUTHENTICATED = 401
# The longest pause between two tries of a request.
PAUSE_MAX_S = 2.0


def library() -> Any:
    """Import confluent-kafka's client of schema registries. Raises ``ImportError`` with the extra to install."""
    try:
        from confluent_kafka import schema_registry
    except ImportError as error:
        raise missing("acker_client.source.Kafka with values=", "schema-registry", error) from error
    return schema_registry


class SchemaRegistry:
    """confluent-kafka's ``SchemaRegistryClient``, whose every call waits while the registry does not answer.

    Calls raise ``Unreachable`` after ``timeout_s``, and the library's error if the registry answers with one.
    """

    def __init__(
        self,
        connection: RegistryConnection,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.connection = connection
        self._clock, self._sleep = clock, sleep
        self._errors = library().SchemaRegistryError
        settings = {"timeout": FIRST_REMINDER_S, **dict(connection.config), "url": connection.url, "max.retries": 0}
        try:
            self.client = library().SchemaRegistryClient.new_client(settings)
        except (OSError, TypeError, ValueError) as error:
            raise SourceError(f"the schema registry at {connection.shown_url}: {error}: check config") from None

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.client, name)
        return lambda *given, **named: self._patiently(lambda: call(*given, **named), self.connection.timeout_s)

    def check(self, timeout_s: float) -> None:
        """Return if the registry answers. Raises ``Unreachable`` after ``timeout_s``, and ``SourceError`` if it does
        not know the user."""
        try:
            self._patiently(self.client.get_config, timeout_s)
        except self._errors as error:
            # A user that may read schemas may lack the right to read the configuration.
            if error.http_status_code == UNAUTHENTICATED:
                raise self.refusal(error) from None

    def refusal(self, error: Any) -> SourceError:
        """Return the error for an answer that blames neither a record nor the network."""
        return SourceError(
            f"the schema registry at {self.connection.shown_url} refuses to answer ({shorten(error)}): give this user"
            " the right to read schemas, or check config"
        )

    def _patiently(self, call: Callable[[], Any], timeout_s: float) -> Any:
        deadline_s, pause_s = self._clock() + timeout_s, PAUSE_S
        reminder = Reminder(f"the schema registry at {self.connection.shown_url}", clock=self._clock)
        while True:
            try:
                return call()
            except self._errors as error:
                if error.http_status_code not in PASSING:
                    raise
                why = shorten(error)
            except Exception as error:  # noqa: BLE001  # its HTTP library, TLS, and answers that are no JSON
                why = shorten(error)
            if self._clock() >= deadline_s:
                raise Unreachable(
                    f"the schema registry at {self.connection.shown_url} has not answered for {timeout_s:g} s ({why}):"
                    " check registry, and the security settings in its config"
                )
            reminder.remind(why)
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)


# Registries by process id: a worker that Spark forks must not use its parent's connections.
_registries: dict[tuple[int, RegistryConnection], SchemaRegistry] = {}


def registry_of(connection: RegistryConnection) -> SchemaRegistry:
    """Return the client that this process keeps for a registry."""
    key = os.getpid(), connection
    if key not in _registries:
        _registries[key] = SchemaRegistry(connection)
    return _registries[key]
