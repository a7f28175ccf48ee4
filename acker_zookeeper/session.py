"""KazooSession: a kazoo client that reaches ZooKeeper the way the acker needs it.

Decides how often a lost connection is tried again, and who may read and change the nodes that it creates. Keeps kazoo's
log lines out of the log. The callers decide what their nodes contain and how long they wait.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

# Minimum number of connection attempts within the time of a session. A ZooKeeper that is starting may accept a
# connection and never answer on it. With fewer attempts, kazoo would wait for that answer until the session is over.
ATTEMPTS = 5


class NoAnswerError(Exception):
    """No ZooKeeper has answered; the text says where, and what to do."""


class KazooSession:
    """One session. Callers add listeners to ``client`` before :meth:`start`.

    ``hosts``: host:port,host:port. ``session_s``: seconds. ``digest``: user:password. Only this user may read or change
    the nodes that the session creates. ``ca``, ``cert``, ``key``: files. With ``ca``, connections are TLS.
    """

    def __init__(
        self,
        hosts: str,
        session_s: float,
        *,
        digest: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> None:
        self._hosts, self._session_s = hosts, session_s
        self._last_warning = _LastWarning()
        attempt_s = session_s / ATTEMPTS
        handler = SequentialThreadingHandler()
        handler.create_connection = _within(handler.create_connection, attempt_s)
        has_tls = ca is not None
        self.client = KazooClient(
            # kazoo divides the time for the first answer of a connection by the number of hosts.
            hosts=",".join([hosts] * ATTEMPTS),
            handler=handler,
            timeout=session_s,
            default_acl=CREATOR_ALL_ACL if digest else None,
            auth_data=[("digest", digest)] if digest else None,
            # A restarted ZooKeeper gives every session its full time again. Connect before that time is over.
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=attempt_s),
            logger=self._last_warning.logger,
            use_ssl=has_tls,
            check_hostname=has_tls,
            ca=ca,
            certfile=cert,
            keyfile=key,
        )

    @property
    def id(self) -> int | None:
        """The id that ZooKeeper gave the session; None before the first connection."""
        client_id = self.client.client_id
        return None if client_id is None else int(client_id[0])

    def start(self) -> None:
        """Connect. Raises :class:`NoAnswerError` when ZooKeeper does not answer for as long as a session lasts."""
        if not self.client.start_async().wait(self._session_s):
            raise NoAnswerError(
                f"no ZooKeeper answered at {self._hosts} within {self._session_s:g} s{self._last_warning.text}: start"
                " it, or give the addresses at which it is, and the certificates if it speaks TLS"
            )

    def close(self) -> None:
        """End the session. Raises nothing."""
        # kazoo raises when a connection is ended while it is being made.
        with contextlib.suppress(Exception):
            self.client.stop()
        with contextlib.suppress(Exception):
            self.client.close()


def _within(connect: Callable[..., Any], most_s: float) -> Callable[..., Any]:
    """Return ``connect`` with a timeout of ``most_s`` at most."""
    return lambda *given, timeout, **options: connect(*given, timeout=min(timeout, most_s), **options)


class _LastWarning(logging.Handler):
    """Keeps kazoo's last warning. kazoo repeats its warnings at every attempt; the callers log their meaning once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        # Not registered with `logging`, so that its records do not reach the log.
        self.logger = logging.Logger("kazoo", logging.WARNING)  # noqa: LOG001
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        warning = record.getMessage() if error is None else f"{type(error).__name__}: {error}"
        if "Transition" not in warning:
            self.text = f" ({warning})"
