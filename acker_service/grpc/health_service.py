"""Health over gRPC: grpc.health.v1, in its own threads, so that waiting or stalled calls do not delay it.

Decides the answer to a check: NOT_SERVING while the server could not answer a call, else the status that was set. A
health ``Watch`` only reports starts and stops. gRPC blocks a thread until the caller has read such a report, so callers
that do not read are handled like those that do not send (see ``workers``). The servicer of grpcio-health-checking
blocks its lock and the stop of the server as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from acker_service.grpc.servicer import SERVICE, received
from acker_service.process.workers import ARRIVE_MIN_S, Workers

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SERVICES = ("", SERVICE)


class Health:
    """The health of one server. ``not_ready_reason`` returns why it could not answer a call now, or ""."""

    def __init__(self, workers: Workers, not_ready_reason: Callable[[], str]) -> None:
        self._workers, self._not_ready_reason = workers, not_ready_reason
        self._status = NOT_SERVING
        # Under the lock: what reports the status to each watch that is open.
        self._lock = threading.Lock()
        self._watches: dict[object, Callable[[], None]] = {}

    def set(self, is_serving: bool) -> None:
        """Set the status, and report it to all watches. Waits for that, but not for callers that do not read."""
        with self._lock:
            self._status = SERVING if is_serving else NOT_SERVING
            reports = [self._workers.submit(report) for report in self._watches.values()]
        futures.wait(reports, ARRIVE_MIN_S)

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handler for a gRPC server."""
        watch = received(self._workers, self._watch)
        watch.experimental_non_blocking = True  # type: ignore[attr-defined]
        handlers = {
            "Check": _handler(grpc.stream_unary_rpc_method_handler, received(self._workers, self._check)),
            "Watch": _handler(grpc.stream_stream_rpc_method_handler, watch),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, handlers)

    def _check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in SERVICES:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no such service; the server has {SERVICE}")
        status = NOT_SERVING if self._status == SERVING and self._not_ready_reason() else self._status
        return health_pb2.HealthCheckResponse(status=status)

    def _watch(
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.ServicerContext,
        send: Callable[[health_pb2.HealthCheckResponse], None],
    ) -> None:
        sending = threading.Lock()

        def send_status() -> None:
            # gRPC refuses a message while the one before is unread.
            with sending:
                status = self._status if request.service in SERVICES else SERVICE_UNKNOWN
                send(health_pb2.HealthCheckResponse(status=status))

        def report() -> None:
            self._workers.receive(context.cancel, send_status, context.peer())

        with self._lock:
            self._watches[context] = report
        if not context.add_callback(lambda: self._forget(context)):
            self._forget(context)
        report()

    def _forget(self, context: grpc.ServicerContext) -> None:
        with self._lock:
            self._watches.pop(context, None)


def _handler(kind: Callable[..., Any], behavior: Callable[..., Any]) -> Any:
    return kind(
        behavior,
        request_deserializer=health_pb2.HealthCheckRequest.FromString,
        response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
    )
