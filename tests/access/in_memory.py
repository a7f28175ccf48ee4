"""In memory: the server's handlers with tokens and namespaces, without a socket and with a clock of the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc

from acker_protocol import wire
from acker_protocol.messages import (
    PROTOCOL_VERSION,
    Apply,
    ApplyReply,
    DrainReply,
    DrainRequest,
    Hello,
    HelloReply,
    OpenBatch,
    OpenBatchReply,
    Pins,
    PinsReply,
    Settle,
    SettleReply,
    StatsReply,
    StatsRequest,
    ViewReply,
    ViewRequest,
    Watch,
    WatchReply,
)
from acker_service.access.access import Access
from acker_service.access.roles import Role
from acker_service.access.tokens import Tokens, line_of
from acker_service.config import Config
from acker_service.grpc.servicer import Servicer
from acker_service.namespaces import Namespaces
from acker_service.process.replies import Replies
from acker_service.process.workers import Workers
from acker_service.state.saved_state import SavedState

CALLS: dict[type, tuple[str, type]] = {
    Hello: ("Hello", HelloReply),
    Apply: ("Apply", ApplyReply),
    OpenBatch: ("OpenBatch", OpenBatchReply),
    Settle: ("Settle", SettleReply),
    Watch: ("Watch", WatchReply),
    Pins: ("Pins", PinsReply),
    ViewRequest: ("View", ViewReply),
    StatsRequest: ("Stats", StatsReply),
    DrainRequest: ("Drain", DrainReply),
}
PEER = "ipv4:10.0.0.7:40000"


class Refused(Exception):
    """A call that gRPC answers with a status instead of a message."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(code.name, sentence)
        self.code, self.sentence = code, sentence


class _Context:
    def __init__(self, token: str | None, peer: str) -> None:
        self._token, self._peer = token, peer

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._token is None else (("authorization", f"Bearer {self._token}"),)

    def auth_context(self) -> dict[str, Any]:
        return {}

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return False  # the call has ended

    def cancel(self) -> None:
        raise AssertionError("nothing is late here")

    def abort(self, code: grpc.StatusCode, sentence: str) -> NoReturn:
        raise Refused(code, sentence)


class InMemoryServer:
    """A server with a file of tokens and a clock in seconds. ``options``: of Config; ``state_dir`` for restarts."""

    def __init__(self, tokens: Path, clock: Callable[[], float], **options: Any) -> None:
        self._path, self._clock = tokens, clock
        self._options = Config(tokens=str(tokens), **options)
        self.start()

    def start(self) -> None:
        """Restore the state, if there is one."""
        clock = self._clock
        self._saved = SavedState(self._options)
        shards = self._saved.open_shards(clock())
        self.namespaces = Namespaces(shards, self._options, clock)
        known = Tokens(str(self._path), clock, self.namespaces.set_quotas)
        self._saved.consume(self.namespaces)
        workers = Workers("test", 1, receive_s=10.0, clock=clock)
        servicer = Servicer(
            self.namespaces,
            hello=HelloReply(PROTOCOL_VERSION, "", shards[""].incarnation, 1 << 24, 64),
            view=lambda: ViewReply(1, 0, ()),
            epoch=lambda: 0,
            drain=self.namespaces.drain,
            values=dict,
            observe=lambda *_: None,
            reporters=workers,
            others=workers,
            replies=Replies(send_s=10.0, max_bytes=64 << 20, clock=clock),
            access=Access(known, clock),
        )
        self._handler = servicer.handler()

    def stop(self) -> None:
        """Write the state."""
        self._saved.write(self.namespaces)
        self._saved.close()

    def call(self, request: Any, token: str | None, peer: str = PEER) -> Any:
        """Return the reply. Raises Refused."""
        return wire.decode(CALLS[type(request)][1], self.answer(request, token, peer))

    def answer(self, request: Any, token: str | None, peer: str = PEER) -> bytes:
        """Return the bytes of the reply. Raises Refused."""
        name, _ = CALLS[type(request)]
        handler: Any = self._handler.service(SimpleNamespace(method=f"/acker.v1.Acker/{name}"))  # type: ignore[arg-type]
        content = wire.encode(request).SerializeToString()
        return bytes(handler.stream_unary(iter([content]), _Context(token, peer)))


def token_of(name: str, namespace: str) -> str:
    """Return the token of a caller. Real tokens are random."""
    return f"{name}@{namespace}"


class TokensFile:
    """A file with callers and namespaces."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._callers: dict[tuple[str, str], list[Role]] = {}
        self._quotas: dict[str, str] = {}

    def declare(self, namespace: str, quotas: str = "memory=64MiB") -> None:
        self._quotas[namespace] = quotas
        self._write()

    def remove(self, namespace: str) -> None:
        del self._quotas[namespace]
        self._callers = {key: roles for key, roles in self._callers.items() if key[1] != namespace}
        self._write()

    def add(self, name: str, namespace: str = "", *roles: Role) -> str:
        """Add a caller, a client unless ``roles`` say otherwise. Returns its token."""
        self._callers[name, namespace] = [*roles] or [Role.CLIENT]
        self._write()
        return token_of(name, namespace)

    def _write(self) -> None:
        lines = [f"namespace {name} {quotas}" for name, quotas in self._quotas.items()]
        lines += [line_of(token_of(name, place), roles, name, place) for (name, place), roles in self._callers.items()]
        # Written beside it and renamed, so that the server notices by another inode.
        temporary = self.path.with_name(self.path.name + ".new")
        temporary.write_text("\n".join(lines) + "\n")
        temporary.replace(self.path)
