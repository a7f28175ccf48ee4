"""Servicer: the acker's calls over gRPC.

Decides how a call that cannot be served is answered: malformed -> INVALID_ARGUMENT, another protocol version ->
FAILED_PRECONDITION, a bug in the server -> INTERNAL and a log line. Any other call is decoded and passed to the shard,
and the reply is encoded. Requests arrive as bytes and are parsed here, so that a malformed one gets our own error text.

Every call is registered with gRPC as a stream of requests, and only its first request counts. The wire format is the
same. gRPC then passes a call on before its request has arrived, so a call whose request never arrives can be cancelled
(see ``workers``).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any

import grpc

from acker_protocol import wire
from acker_protocol.messages import (
    PROTOCOL_VERSION,
    Apply,
    DrainReply,
    DrainRequest,
    Hello,
    HelloReply,
    OpenBatch,
    OpenBatchReply,
    Pins,
    Settle,
    StatsReply,
    StatsRequest,
    Status,
    ViewReply,
    ViewRequest,
    Watch,
    WatchReply,
)
from acker_protocol.version import VERSION
from acker_service.access.access import Access
from acker_service.access.roles import AccessDenied
from acker_service.core.applying import RETRY_DELAY_MS
from acker_service.grpc import raw_message
from acker_service.grpc.admission import Admission, Admitted, host_of
from acker_service.namespaces import OVERLOADED, Namespaces
from acker_service.process.logs import Log, RateLimit
from acker_service.process.replies import Replies
from acker_service.process.workers import Workers
from acker_service.shared_shard import OnEnd, Paused

SERVICE = "acker.v1.Acker"

log = Log("acker.servicer")

# Called with the method, gRPC's status, the acker's status, and the seconds that the call took. A call without a reply
# message has no status of the acker, so gRPC's status stands in for it.
Observe = Callable[[str, str, str, float], None]
Answer = tuple[Status, bytes]


@dataclass(frozen=True, slots=True)
class Wait:
    """Lets a call wait: tells it when its caller has gone, and lets others work meanwhile. ``parked``:
    likewise, for a wait that may take long."""

    on_end: OnEnd = lambda _: True
    paused: Paused = contextlib.nullcontext
    parked: Paused = contextlib.nullcontext


_Call = Callable[[bytes, Admitted, Wait], Answer]
# The other replies have a few kilobytes.
LARGE_REPLIES = ("Watch", "Pins")


class CallRefused(Exception):
    """A call that is answered with a gRPC status instead of a message; the text is for the caller."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Servicer:
    """Serves all namespaces. Each call of the .proto is a method from bytes to bytes, for a caller. It raises
    CallRefused or Malformed."""

    def __init__(
        self,
        namespaces: Namespaces,
        *,
        hello: HelloReply,
        view: Callable[[], ViewReply],
        epoch: Callable[[], int],
        drain: Callable[[], DrainReply],
        values: Callable[[], dict[str, float]],
        observe: Observe,
        reporters: Workers,
        others: Workers,
        replies: Replies,
        access: Access,
    ) -> None:
        """``hello``: the reply to Hello, except is_draining. ``view`` and ``drain`` answer the calls of these names.
        ``epoch`` returns the epoch of the view, for every reply. ``reporters`` answer Apply, ``others`` all other
        calls, in turns of ``replies``, which counts the replies of all calls. ``access``: decides who may call."""
        self._namespaces, self._admission = namespaces, Admission(access, namespaces)
        self._hello, self._view, self._epoch, self._drain = hello, view, epoch, drain
        self._values = values
        self._observe = observe
        self._under_way: set[object] = set()
        self._reporters, self._others, self._replies = reporters, others, replies
        self._greetings = RateLimit(monotonic)
        # While the server starts, it only answers its own Hello, which has this client_version.
        self.answers_only: str | None = None

    @property
    def calls_under_way(self) -> int:
        return len(self._under_way)

    def hello(self, content: bytes, caller: Admitted, wait: Wait) -> Answer:
        hello = wire.decode(Hello, content)
        if hello.protocol_version != PROTOCOL_VERSION:
            older = "client" if hello.protocol_version < PROTOCOL_VERSION else "server"
            raise CallRefused(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the client speaks protocol version {hello.protocol_version} and the server (acker {VERSION}) "
                f"version {PROTOCOL_VERSION}: upgrade the {older}",
            )
        reply = dataclasses.replace(self._hello, is_draining=self._namespaces.is_draining)
        return self._answer(Status.APPLIED, reply)

    def apply(self, content: bytes, caller: Admitted, wait: Wait) -> Answer:
        reply = caller.namespace.shared.apply(wire.decode(Apply, content))
        return self._answer(reply.status, reply)

    def open_batch(self, content: bytes, caller: Admitted, wait: Wait) -> Answer:
        request, shared = wire.decode(OpenBatch, content), caller.namespace.shared
        if caller.shortage:
            reply = OpenBatchReply(self._hello.incarnation, Status.OVERLOADED, RETRY_DELAY_MS, caller.shortage)
        else:
            reply = shared.open_batch(request, caller.name)
        return self._answer(reply.status, reply)

    def settle(self, content: bytes, caller: Admitted, wait: Wait) -> Answer:
        reply = caller.namespace.shared.settle(wire.decode(Settle, content), wait.paused, caller.name)
        return self._answer(reply.status, reply)

    def watch(self, content: bytes, caller: Admitted, wait: Wait) -> Answer:
        request, shared = wire.decode(Watch, content), caller.namespace.shared
        if caller.shortage and not request.close and not shared.has_source(request.session):
            incarnation, generation = self._hello.incarnation, shared.shard.generation
            reply = WatchReply(incarnation, Status.OVERLOADED, caller.shortage, generation=generation)
        else:
            reply = shared.watch(request, wait.on_end, wait.parked, caller.name)
        return self._answer(reply.status, reply)

    def stats(self, content: bytes, caller: Admitted, wait: Wait) -> Answer:
        wire.decode(StatsRequest, content)
        reply = StatsReply(self._hello.incarnation, VERSION, self._values())
        return self._answer(Status.APPLIED, reply)

    def view(self, content: bytes, caller: Admitted, wait: Wait) -> Answer:
        wire.decode(ViewRequest, content)
        # Not stamped with the present epoch, because the reply needs the epoch of these members.
        return Status.APPLIED, wire.encode(self._view()).SerializeToString()

    def drain(self, content: bytes, caller: Admitted, wait: Wait) -> Answer:
        wire.decode(DrainRequest, content)
        reply = self._drain()
        return self._answer(reply.status, reply)

    def pins(self, content: bytes, caller: Admitted, wait: Wait) -> Answer:
        reply = caller.namespace.shared.pins(wire.decode(Pins, content))
        return self._answer(reply.status, reply)

    def _answer(self, status: Status, reply: object) -> Answer:
        """Add the epoch, which every reply has, and serialize."""
        return status, wire.stamped(wire.encode(reply), self._epoch()).SerializeToString()

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
            "View": self.view,
            "Drain": self.drain,
            "Pins": self.pins,
        }

    def handler(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return the handler for a gRPC server."""
        # The shard's lock is not fair. Many threads with reports could keep a watch waiting for the lock. So reports
        # have a small pool of their own.
        workers = {name: self._reporters if name == "Apply" else self._others for name in self.calls}
        handlers = {
            name: grpc.stream_unary_rpc_method_handler(received(workers[name], self._answering(name, call)))
            for name, call in self.calls.items()
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _answering(self, name: str, call: _Call) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def answer(content: bytes, context: grpc.ServicerContext) -> bytes:
            self._under_way.add(context)
            started = perf_counter()
            refused: CallRefused | None = None
            reply = b""
            try:
                status, reply = self._answered(name, call, content, context)
                code, answered = grpc.StatusCode.OK, status.name
            except Exception as error:  # noqa: BLE001  # after a bug the call is answered too, and the bug is logged
                refused = _refusal(name, error)
                code = refused.code
                answered = code.name
            finally:
                self._under_way.discard(context)
            self._observe(name, code.name, answered, perf_counter() - started)
            if refused is not None:
                if name == "Hello":
                    self._log_greeting(context.peer(), refused)
                context.abort(refused.code, str(refused))
            return reply

        return answer

    def _answered(self, name: str, call: _Call, content: bytes, context: grpc.ServicerContext) -> Answer:
        if self.answers_only is not None:
            self._check_greeting(name, content)
            return self._call(name, call, content, self._admission.anybody, context)
        with self._admission.admit(name, context) as caller:
            return self._call(name, call, content, caller, context)

    def _call(self, name: str, call: _Call, content: bytes, caller: Admitted, context: grpc.ServicerContext) -> Answer:
        raw_message.check(name, content)
        connection = context.peer()
        # Reports have few threads already.
        turn = self._replies.turn(connection, is_large=name in LARGE_REPLIES)
        with contextlib.nullcontext(contextlib.nullcontext) if name == "Apply" else turn as paused:

            @contextlib.contextmanager
            def parked() -> Iterator[None]:
                with paused(), self._others.parked(connection):
                    yield

            status, reply = call(content, caller, Wait(context.add_callback, paused, parked))
            if status == Status.OVERLOADED:
                caller.namespace.count_refusal(OVERLOADED)
            self._replies.add(connection, len(reply), context.cancel, context.add_callback)
        return status, reply

    def _check_greeting(self, name: str, content: bytes) -> None:
        if name != "Hello" or wire.decode(Hello, content).client_version != self.answers_only:
            raise CallRefused(grpc.StatusCode.UNAVAILABLE, "the server is starting")

    def _log_greeting(self, peer: str, refused: CallRefused) -> None:
        left_out = self._greetings.admit((host_of(peer), refused.code))
        if left_out is not None:
            log.warning("hello_refused", peer=peer, status=refused.code.name, detail=str(refused), left_out=left_out)


def received(workers: Workers, answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler of a stream of requests that calls ``answer(request, context, ...)`` in ``workers``."""

    def handle(requests: Iterator[bytes], context: grpc.ServicerContext, *others: object) -> Any:
        try:
            request = workers.receive(context.cancel, lambda: next(requests))
        except StopIteration:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call ended without a request; send one message")
        return answer(request, context, *others)

    handle.experimental_thread_pool = workers  # type: ignore[attr-defined]
    return handle


def connection_of(*arguments: Any) -> str | None:
    """Return the connection of a call, from the arguments with which gRPC submits the call to its thread pool.

    These arguments are not part of gRPC's API. None if they do not lead to the call.
    """
    for each in arguments:
        with contextlib.suppress(AttributeError):
            return str(each.call.peer(), "utf-8", "replace")
    return None


def _refusal(name: str, error: Exception) -> CallRefused:
    """Return the answer to a call that raised ``error``. Anything but CallRefused, AccessDenied, Malformed or
    MemoryError is a bug. It is logged, and the caller gets the name of its type."""
    if isinstance(error, CallRefused):
        return error
    if isinstance(error, AccessDenied):
        code = grpc.StatusCode.PERMISSION_DENIED if error.is_known else grpc.StatusCode.UNAUTHENTICATED
        return CallRefused(code, str(error))
    if isinstance(error, wire.Malformed):
        return CallRefused(grpc.StatusCode.INVALID_ARGUMENT, f"{name}: {error}")
    if isinstance(error, MemoryError):
        # The call has done nothing or a part of its work, and the same call does the rest.
        return CallRefused(grpc.StatusCode.UNAVAILABLE, f"{name}: the server has no memory for it now; send it again")
    log.exception("call_failed", call=name)  # noqa: LOG004  # its caller is handling the error
    return CallRefused(grpc.StatusCode.INTERNAL, f"{name}: a bug in the server ({type(error).__name__}); see its log")
