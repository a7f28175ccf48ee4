"""Health over gRPC: grpc.health.v1, in its own threads, so that waiting or stalled calls do not delay it.

Decides the answer to a check: NOT_SERVING while the server could not answer a call, else the status that was set. A
health ``Watch`` only reports starts and stops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from acker_service.grpc.servicer import SERVICE, received
from acker_service.process.workers import Workers

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """The health of one server. ``not_ready_reason`` returns why it could not answer a call now, or ""."""

    def __init__(self, workers: Workers, not_ready_reason: Callable[[], str]) -> None:
        self._workers, self._not_ready_reason = workers, not_ready_reason
        self._servicer = health.HealthServicer()
        self.set(False)

    def set(self, is_serving: bool) -> None:
        for name in ("", SERVICE):
            self._servicer.set(name, SERVING if is_serving else NOT_SERVING)

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handler for a gRPC server."""
        watch = received(self._workers, self._servicer.Watch)
        watch.experimental_non_blocking = True  # type: ignore[attr-defined]
        handlers = {
            "Check": _handler(grpc.stream_unary_rpc_method_handler, received(self._workers, self._check)),
            "Watch": _handler(grpc.stream_stream_rpc_method_handler, watch),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, handlers)

    def _check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        reply = self._servicer.Check(request, context)
        if reply.status == SERVING and self._not_ready_reason():
            return health_pb2.HealthCheckResponse(status=NOT_SERVING)
        return reply


def _handler(kind: Callable[..., Any], behavior: Callable[..., Any]) -> Any:
    return kind(
        behavior,
        request_deserializer=health_pb2.HealthCheckRequest.FromString,
        response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
    )
