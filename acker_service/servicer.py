"""Servicer: the acker's calls over gRPC.

Decides how a call that cannot be served is answered: malformed -> INVALID_ARGUMENT, another protocol version ->
FAILED_PRECONDITION, a bug of ours -> INTERNAL, logged. Everything else is one decoding, one call of the shard, one
encoding. Requests arrive as bytes and are parsed here, so that a malformed one gets an answer of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import grpc

from acker_protocol import wire
from acker_protocol.messages import PROTOCOL_VERSION, HelloReply, StatsReply
from acker_protocol.version import VERSION
from acker_service.logs import Log
from acker_service.shared import OnEnd, SharedShard

SERVICE = "acker.v1.Acker"

log = Log("acker.servicer")

# (method, name of the gRPC status, seconds)
Observe = Callable[[str, str, float], None]
_Call = Callable[[bytes, OnEnd], bytes]


class Refused(Exception):
    """A call that is answered with a status instead of a message; the text is for whoever made the call."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Servicer:
    """Serves a shard. Each call of the .proto is a method: bytes in, bytes out; raises Refused or Malformed."""

    def __init__(
        self,
        shared: SharedShard,
        *,
        incarnation: int,
        max_message_bytes: int,
        sequence_window: int,
        values: Callable[[], dict[str, float]],
        observe: Observe,
        workers: int,
    ) -> None:
        self._shared = shared
        self._incarnation = incarnation
        self._hello = HelloReply(PROTOCOL_VERSION, VERSION, incarnation, max_message_bytes, sequence_window)
        self._values = values
        self._observe = observe
        self._under_way: set[object] = set()
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="acker-apply")

    @property
    def calls_under_way(self) -> int:
        return len(self._under_way)

    def hello(self, content: bytes, on_end: OnEnd) -> bytes:
        hello = wire.decode_hello(content)
        if hello.protocol_version != PROTOCOL_VERSION:
            older = "client" if hello.protocol_version < PROTOCOL_VERSION else "server"
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the client speaks protocol version {hello.protocol_version} and the server (acker {VERSION}) "
                f"version {PROTOCOL_VERSION}: upgrade the {older}",
            )
        return wire.encode_hello_reply(self._hello).SerializeToString()

    def apply(self, content: bytes, on_end: OnEnd) -> bytes:
        message = wire.decode_apply(content)
        return wire.encode_apply_reply(self._shared.apply(message)).SerializeToString()

    def open_batch(self, content: bytes, on_end: OnEnd) -> bytes:
        request = wire.decode_open_batch(content)
        return wire.encode_open_batch_reply(self._shared.open_batch(request)).SerializeToString()

    def settle(self, content: bytes, on_end: OnEnd) -> bytes:
        request = wire.decode_settle(content)
        return wire.encode_settle_reply(self._shared.settle(request)).SerializeToString()

    def watch(self, content: bytes, on_end: OnEnd) -> bytes:
        request = wire.decode_watch(content)
        return wire.encode_watch_reply(self._shared.watch(request, on_end)).SerializeToString()

    def stats(self, content: bytes, on_end: OnEnd) -> bytes:
        wire.decode_stats_request(content)
        reply = StatsReply(self._incarnation, VERSION, self._values())
        return wire.encode_stats_reply(reply).SerializeToString()

    @property
    def calls(self) -> dict[str, _Call]:
        """The calls by their names in the .proto."""
        return {
            "Hello": self.hello,
            "Apply": self.apply,
            "OpenBatch": self.open_batch,
            "Settle": self.settle,
            "Watch": self.watch,
            "Stats": self.stats,
        }

    def handler(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        """What a gRPC server takes."""
        answers = {name: self._answering(name, call) for name, call in self.calls.items()}
        # Few threads, so that a watch which waits for the shard has few before it: locks here are not fair.
        answers["Apply"].experimental_thread_pool = self._workers  # type: ignore[attr-defined]
        handlers = {name: grpc.unary_unary_rpc_method_handler(answer) for name, answer in answers.items()}
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _answering(self, name: str, call: _Call) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def answer(content: bytes, context: grpc.ServicerContext) -> bytes:
            self._under_way.add(context)
            started = perf_counter()
            refused: Refused | None = None
            reply = b""
            try:
                reply = call(content, context.add_callback)
            except Exception as error:
                refused = _refusal(name, error)
            code = grpc.StatusCode.OK if refused is None else refused.code
            self._observe(name, code.name, perf_counter() - started)
            self._under_way.discard(context)
            if refused is not None:
                context.abort(refused.code, str(refused))
            return reply

        return answer


def _refusal(name: str, error: Exception) -> Refused:
    """How a failed call is answered. What nobody foresaw is a bug: it is logged; the caller learns its kind."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, wire.Malformed):
        return Refused(grpc.StatusCode.INVALID_ARGUMENT, f"{name}: {error}")
    log.exception("call_failed", call=name)
    return Refused(
        grpc.StatusCode.INTERNAL, f"{name}: a bug of the server ({type(error).__name__}); its log has the rest"
    )
