"""Errors: what can go wrong between a client and the acker.

Every message says what to do. Nothing here decides when to raise. No error of gRPC or protobuf ever leaves the client.
"""

from __future__ import annotations


class AckerError(Exception):
    """Base of everything that the client raises on purpose."""


class Unavailable(AckerError):
    """No answer came. The call may have been applied or not; sending the same report again is safe."""


class Overloaded(AckerError):
    """The server had no room for more roots while the client retried. The source should slow down, or get more room."""


class Rejected(AckerError):
    """The server answered that the call itself is wrong. Sending it again gives the same answer, so the caller has to
    change it."""


class UnknownSource(AckerError):
    """No such source is open, at the server or on this client."""


class UnknownBatch(AckerError):
    """The batch is not open at the server: settled, never opened, or lost with the server's state. Replay its roots."""


class Draining(AckerError):
    """The server is about to leave and takes no new batches or sources. Place the batch or source on another server."""


class Closed(AckerError):
    """The client or the source was closed in this process."""

    @classmethod
    def of_source(cls, name: str) -> Closed:
        """Return the error for a source that was closed."""
        return cls(f"source {name!r} was closed: open it again with open_source({name!r})")


#: Errors after which the same report may be sent again, unchanged.
RETRYABLE = (Unavailable, Overloaded, UnknownSource)
