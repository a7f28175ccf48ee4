"""Servers: those that were named, and those that they list, asked side by side.

Decides how long each is given, and how its silence is put into words. What their answers mean together is
``overview``'s.
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

# The greeting has a second at first; who is slow gets all of it.
ANSWER_S = 3.0
TRIES = 2

# What gRPC says at length.
_BRIEFLY = {
    "Connection refused": "connection refused",
    "DEADLINE_EXCEEDED": f"silent for {ANSWER_S:g} s",
    "attempt timed out": "the connection is taken, and nothing is said",
    "resolves to nothing": "the name resolves to nothing",
}

Reply = TypeVar("Reply")
Asked = TypeVar("Asked")


class NobodyAnswers(AckerError):
    """No server that was named answers."""


class Servers:
    """A context: what it leaves open is closed at its end."""

    def __init__(self, settings: Settings) -> None:
        # A wait of seconds is this command's to show, not the log's.
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
        self._cluster.close()

    def overview(self) -> Overview:
        """Who there is. Raises NobodyAnswers, and Rejected where a server that was named is the wrong one or two in a
        list have one id."""
        seeds = tuple(dict.fromkeys(self._cluster.settings.servers))
        answers = self._beside(self._named, seeds)
        if all(answer.hello is None for answer in answers):
            raise NobodyAnswers(_silence(answers))
        view = overview.newest(answers)
        if view is None:
            try:
                return overview.of_list(answers)
            except ValueError as error:
                raise Rejected(str(error)) from None
        # Who is away has said so.
        listed = [each.member.address for each in view.members if each.state != MemberState.AWAY]
        answers += self._beside(self._listed, [address for address in listed if address not in seeds])
        return overview.registered(view, answers)

    def stats(self, members: Iterable[SeenMember]) -> dict[str, tuple[float, StatsReply]]:
        """Figures of those that answer, by address, each with the monotonic second at which it came."""
        addresses = [seen.address for seen in members if seen.is_answering]
        found = self._beside(self._figures, addresses)
        return {address: figures for address, figures in zip(addresses, found, strict=True) if figures is not None}

    def drain(self, address: str) -> DrainReply:
        """Ask the server at ``address`` to drain; Unavailable when no answer came."""
        # Once: a server that ended meanwhile may have been started anew, and is not to be drained.
        return self._call(address, lambda transport, timeout_s: transport.drain(timeout_s), tries=1)

    def view(self, addresses: Iterable[str]) -> ViewReply | None:
        """What the first server that answers lists; None where none knows of others."""
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
        return Answer(address, self._cluster.caller(address).connection.hello, view)

    def _listed(self, address: str) -> Answer:
        """A member that is another server than it should be is shown, and hides none of the others."""
        try:
            return self._named(address)
        except Rejected as error:
            return Answer(address, trouble=str(error))

    def _figures(self, address: str) -> tuple[float, StatsReply] | None:
        try:
            reply = self._call(address, lambda transport, timeout_s: transport.stats(timeout_s))
        except AckerError:
            return None
        return time.monotonic(), reply

    def _call(self, address: str, call: Call[Reply], tries: int = TRIES) -> Reply:
        try:
            return self._cluster.caller(address).once(call, Deadline(2 * ANSWER_S, time.monotonic), ANSWER_S)
        except Unavailable:
            if tries == 1:
                raise
        return self._call(address, call, tries - 1)

    def _beside(self, ask: Callable[[str], Asked], addresses: Sequence[str]) -> list[Asked]:
        """``ask`` of each, side by side, in their order."""

        def started(address: str) -> Callable[[], Asked]:
            return lambda: ask(address)

        calls = [self._threads.start(started(address)) for address in addresses]
        return [call.result() for call in calls]


def _connect(settings: Settings) -> Callable[[str], Transport]:
    def connect(address: str) -> Transport:
        # gRPC reads its environment when it is loaded.
        from acker_client.rpc.transport import GrpcTransport

        return GrpcTransport(address, settings.token)

    return connect


def _view(transport: Transport, timeout_s: float) -> ViewReply:
    return transport.view(timeout_s)


def _brief(address: str, error: Unavailable) -> str:
    said = str(error)
    return next((words for sign, words in _BRIEFLY.items() if sign in said), said.removeprefix(f"{address}: "))


def _silence(answers: Sequence[Answer]) -> str:
    each = "; ".join(f"{answer.address}: {answer.trouble}" for answer in answers)
    return f"no server answers ({each}); start one with `acker serve`, or name another with --servers"
