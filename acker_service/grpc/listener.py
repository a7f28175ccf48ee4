"""Listener: the gRPC server that hands calls to their handlers.

Decides the settings of gRPC: sizes, connections, keepalive. Answers no call itself, except for reflection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health as grpc_health
from grpc_reflection.v1alpha import reflection

from acker_service.access.access import Access
from acker_service.access.roles import AccessDenied
from acker_service.config import Config
from acker_service.grpc.servicer import SERVICE

# A client pings every 30 s, also between calls, so the server allows pings 10 s apart. (gRPC's default minimum is five
# minutes, and it closes connections with more frequent pings: "too many pings".) The server also pings silent clients.
KEEPALIVE_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
PING_INTERVAL_MIN_MS = 10_000

# A connection without a complete HTTP/2 handshake is closed after this time.
HANDSHAKE_MS = 10_000

REFLECTION_THREADS = 2


class _ReflectionGuard(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic for the type checker only
    """Lets only operators ask for reflection. Sees a caller's token, but not its certificate."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def intercept_service(self, continuation: Callable[..., Any], call: Any) -> Any:
        if not call.method.startswith(f"/{reflection.SERVICE_NAME}/"):
            return continuation(call)
        try:
            self._access.check("reflection", "", dict(call.invocation_metadata).get("authorization"))
        except AccessDenied as refused:
            sentence = str(refused)
            return grpc.stream_stream_rpc_method_handler(
                lambda _, context: context.abort(grpc.StatusCode.PERMISSION_DENIED, sentence)
            )
        return continuation(call)


def new_server(options: Config, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]], access: Access) -> grpc.Server:
    """Return a gRPC server without a port, not started."""
    # All calls have their own workers. Only reflection uses these threads.
    pool = ThreadPoolExecutor(REFLECTION_THREADS, thread_name_prefix="acker-grpc")
    guards: list[Any] = [_ReflectionGuard(access)] if options.reflection else []
    server = grpc.server(pool, options=_settings(options), interceptors=guards)
    server.add_generic_rpc_handlers(tuple(handlers))
    if options.reflection:
        names = (SERVICE, grpc_health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        # If a call could not start its thread, the error would end gRPC's own thread, and so all calls.
        both = threading.Barrier(REFLECTION_THREADS)
        for _ in range(REFLECTION_THREADS):
            pool.submit(both.wait)
    return server


def _settings(options: Config) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # A port in use must be an error, since two servers on one port would each get half of the calls.
        ("grpc.so_reuseport", 0),
        # Bound the number of connections, and the calls per connection (and so its threads and memory).
        ("grpc.max_concurrent_streams", options.max_calls_per_connection),
        ("grpc.max_allowed_incoming_connections", options.max_connections),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MIN_MS),
        ("grpc.http2.max_pings_without_data", 0),
    ]
