"""Access: what the server decides about a caller before it looks at a call.

Decides whether calls need a token, and logs refusals: one line a minute for each address and call. Without a file of
tokens everybody may make every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from acker_service.access.roles import OPEN, AccessDenied, Principal, check
from acker_service.access.tokens import Tokens
from acker_service.process.logs import Log, RateLimit

log = Log("acker.access")


class Access:
    """The door of one server. ``tokens``: None lets everybody in. ``clock`` is in seconds. Thread-safe."""

    def __init__(self, tokens: Tokens | None, clock: Callable[[], float]) -> None:
        self._tokens = tokens
        self._refusals = RateLimit(clock)

    @property
    def is_open(self) -> bool:
        """Whether every caller may make every call."""
        return self._tokens is None

    def check(
        self, call: str, host: str, authorization: str | None, certificate_names: Sequence[bytes] = ()
    ) -> Principal | None:
        """Return the caller; None if it need not be known. Raises
        :class:`~acker_service.access.roles.AccessDenied` unless it may make this call.

        ``call``: a name of the .proto, or the path of a page. ``host``: the caller's address without its port.
        ``authorization``: the header of this name. ``certificate_names``: common names of its certificate.
        """
        # To know a caller may need the file, and the file the lock of every shard, for which no probe may wait.
        if self._tokens is None or call in OPEN:
            return None
        caller = self._tokens.identify(authorization, certificate_names)
        try:
            check(call, caller)
        except AccessDenied:
            self.log_refusal(call, host, caller)
            raise
        return caller

    def log_refusal(self, call: str, host: str, caller: Principal | None, **why: object) -> None:
        """Log that a call was refused, unless the limit of such lines is reached."""
        name = None if caller is None else caller.name
        place = {"namespace": caller.namespace} if caller is not None and caller.namespace else {}
        left_out = self._refusals.admit((host, call, name, *place.values()))
        if left_out is not None:
            log.warning("call_refused", call=call, host=host, caller=name, **place, **why, left_out=left_out)
