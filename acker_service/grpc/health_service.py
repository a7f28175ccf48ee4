"""Health over gRPC: grpc.health.v1, in threads of its own, so that calls which wait or stall are not in its way.

Decides what a check is answered: what was set, and NOT_SERVING as well while the server could not answer a call. A
``Watch`` of health hears of starts and stops only.
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
    """The health of one server. ``trouble`` says why it could not answer a call now, or nothing."""

    def __init__(self, workers: Workers, trouble: Callable[[], str]) -> None:
        self._workers, self._trouble = workers, trouble
        self._servicer = health.HealthServicer()
        self.set(False)

    def set(self, is_serving: bool) -> None:
        for name in ("", SERVICE):
            self._servicer.set(name, SERVING if is_serving else NOT_SERVING)

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """What a gRPC server takes."""
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
        if reply.status == SERVING and self._trouble():
            return health_pb2.HealthCheckResponse(status=NOT_SERVING)
        return reply


def _handler(kind: Callable[..., Any], behavior: Callable[..., Any]) -> Any:
    return kind(
        behavior,
        request_deserializer=health_pb2.HealthCheckRequest.FromString,
        response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
    )
