"""Admission: who makes a call, and in which namespace.

Finds the caller's token or certificate in a call, and decides what becomes of a call for somebody else's session.
``access`` decides who may make which call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from acker_protocol.ids import session_digest
from acker_service.access.access import Access
from acker_service.access.roles import UNKNOWN, AccessDenied, Principal
from acker_service.namespaces import PERMISSION_DENIED, Namespace, Namespaces
from acker_service.shared_shard import NotTheOwner


@dataclass(frozen=True, slots=True)
class Admitted:
    """The caller of one call. ``name``: "" where callers have no names. ``shortage``: why it may begin no new work, or
    ""."""

    namespace: Namespace
    name: str = ""
    shortage: str = ""


class Admission:
    """Admits the callers of one server."""

    def __init__(self, access: Access, namespaces: Namespaces) -> None:
        self._access, self._namespaces = access, namespaces
        self.anybody = Admitted(namespaces.default)

    def admit(self, call: str, context: Any) -> AbstractContextManager[Admitted]:
        """Return a context for a call, with its caller. ``context``: gRPC's. Raises AccessDenied if the caller may not
        make the call, or if the session of the call is somebody else's."""
        # Comes first, since the details of a call take microseconds to ask for.
        return nullcontext(self.anybody) if self._access.is_open else self._admit(call, context)

    @contextmanager
    def _admit(self, call: str, context: Any) -> Iterator[Admitted]:
        peer = context.peer()
        headers: dict[str, Any] = dict(context.invocation_metadata())
        names: Any = context.auth_context().get("x509_common_name", ())
        principal = self._access.check(call, host_of(peer), headers.get("authorization"), names)
        assert principal is not None
        namespace = self._namespace_of(principal)
        with namespace.connections.use(peer) as is_admitted:
            try:
                yield Admitted(namespace, principal.name, "" if is_admitted else _shortage(namespace))
            except NotTheOwner as error:
                namespace.count_refusal(PERMISSION_DENIED)
                why = {"session_digest": session_digest(error.session), "owner": error.owner}
                self._access.log_refusal(call, host_of(peer), principal, **why)
                raise AccessDenied(str(error), is_known=True) from None

    def _namespace_of(self, principal: Principal) -> Namespace:
        try:
            return self._namespaces.of(principal.namespace)
        except KeyError:
            # The file of tokens has changed since the caller was found in it.
            raise AccessDenied(UNKNOWN, is_known=False) from None


def _shortage(namespace: Namespace) -> str:
    connections = namespace.connections
    return (
        f"connections: {connections.count} are here, and connections={connections.most} of the namespace are the most: "
        "close some"
    )


def host_of(peer: str) -> str:
    """``ipv4:10.0.0.7:41234`` -> ``ipv4:10.0.0.7``: a caller has another port for each connection."""
    return peer.rpartition(":")[0]
