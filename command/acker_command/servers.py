"""Servers: asks the named servers, and those that they list, in parallel.

Decides how long to wait for each, and how its silence is described. ``overview`` combines the answers.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from acker_client.backoff import Deadline
from acker_client.cluster.membership import Cluster
from acker_client.errors import AckerError, Rejected, Unavailable
from acker_client.rpc.caller import Call
from acker_client.rpc.side_by_side import Threads
from acker_client.settings import Settings
from acker_command import overview
from acker_command.overview import Answer, Overview, SeenMember
from acker_protocol.messages import DrainReply, MemberState, StatsReply, Transport, ViewReply

# Timeout of a call. The first greeting waits only one second; the second try gives a slow server all of this time.
ANSWER_S = 3.0
TRIES = 2

# Short forms of gRPC's messages.
_BRIEFLY = {
    "Connection refused": "connection refused",
    "DEADLINE_EXCEEDED": f"silent for {ANSWER_S:g} s",
    "attempt timed out": "the connection is accepted, and nothing is answered",
    "resolves to nothing": "the name resolves to nothing",
}

Reply = TypeVar("Reply")
Asked = TypeVar("Asked")


class NoServerAnswers(AckerError):
    """None of the named servers answers."""


class Servers:
    """Calls to servers, as a context manager that closes their connections."""

    def __init__(self, settings: Settings) -> None:
        # This command itself shows waits of seconds, so the client does not log them.
        logging.getLogger("acker_client").addHandler(logging.NullHandler())
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        self._threads = Threads()
        settings = replace(settings, call_timeout_s=ANSWER_S)
        self._cluster = Cluster(settings, _connect(settings), time.monotonic, time.sleep, random.random, self._threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cluster.callers.close()

    def overview(self) -> Overview:
        """Return the members. Raises NoServerAnswers, and Rejected if a named server is the wrong one or two in a list
        have the same id."""
        seeds = tuple(dict.fromkeys(self._cluster.settings.servers))
        answers = self._beside(self._named, seeds)
        if all(answer.hello is None for answer in answers):
            raise NoServerAnswers(_silence(answers))
        view = overview.newest(answers)
        if view is None:
            try:
                return overview.of_list(answers)
            except ValueError as error:
                raise Rejected(str(error)) from None
        # Does not ask AWAY servers, which are known to be down.
        listed = [each.member.address for each in view.members if each.state != MemberState.AWAY]
        answers += self._beside(self._listed, [address for address in listed if address not in seeds])
        return overview.registered(view, answers)

    def stats(self, members: Iterable[SeenMember]) -> dict[str, tuple[float, StatsReply]]:
        """Return the figures of members that answer, by address, each with the monotonic second of its arrival. Raises
        Rejected if a member refuses them, as to a token that may not see them."""
        addresses = [seen.address for seen in members if seen.is_answering]
        found = self._beside(self._figures, addresses)
        return {address: figures for address, figures in zip(addresses, found, strict=True) if figures is not None}

    def drain(self, address: str) -> DrainReply:
        """Ask the server at ``address`` to drain. Raises Unavailable without an answer."""
        # No second try: the server may have ended and been started again, and must not drain then.
        return self._call(address, lambda transport, timeout_s: transport.drain(timeout_s), tries=1)

    def view(self, addresses: Iterable[str]) -> ViewReply | None:
        """Return the view of the first server that answers and knows of others, or None."""
        for address in addresses:
            try:
                reply = self._call(address, _view)
            except AckerError:
                continue
            if reply.epoch:
                return reply
        return None

    def _named(self, address: str) -> Answer:
        try:
            view = self._call(address, _view)
        except Unavailable as error:
            return Answer(address, trouble=_brief(address, error))
        return Answer(address, self._cluster.callers.at(address).connection.hello, view)

    def _listed(self, address: str) -> Answer:
        """Ask a member. If another server answers at its address, show that instead of ending with an error."""
        try:
            return self._named(address)
        except Rejected as error:
            return Answer(address, trouble=str(error))

    def _figures(self, address: str) -> tuple[float, StatsReply] | None:
        try:
            reply = self._call(address, lambda transport, timeout_s: transport.stats(timeout_s))
        except Rejected:
            raise
        except AckerError:
            return None
        return time.monotonic(), reply

    def _call(self, address: str, call: Call[Reply], tries: int = TRIES) -> Reply:
        try:
            return self._cluster.callers.at(address).once(call, Deadline(2 * ANSWER_S, time.monotonic), ANSWER_S)
        except Unavailable:
            if tries == 1:
                raise
        return self._call(address, call, tries - 1)

    def _beside(self, ask: Callable[[str], Asked], addresses: Sequence[str]) -> list[Asked]:
        """Call ``ask`` for each address in parallel; return the results in order."""

        def started(address: str) -> Callable[[], Asked]:
            return lambda: ask(address)

        calls = [self._threads.start(started(address)) for address in addresses]
        return [call.result() for call in calls]


def _connect(settings: Settings) -> Callable[[str], Transport]:
    def connect(address: str) -> Transport:
        # gRPC reads its environment when it is loaded.
        from acker_client.rpc.transport import GrpcTransport

        return GrpcTransport(address, settings)

    return connect


def _view(transport: Transport, timeout_s: float) -> ViewReply:
    return transport.view(timeout_s)


def _brief(address: str, error: Unavailable) -> str:
    said = str(error)
    return next((words for sign, words in _BRIEFLY.items() if sign in said), said.removeprefix(f"{address}: "))


def _silence(answers: Sequence[Answer]) -> str:
    each = "; ".join(f"{answer.address}: {answer.trouble}" for answer in answers)
    return f"no server answers ({each}); start one with `acker serve`, or name another with --servers"
