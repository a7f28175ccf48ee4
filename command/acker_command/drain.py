"""Drain: ``acker drain ID``, which removes a server without a replay."""

from __future__ import annotations

from time import monotonic, sleep

import click

from acker_client.errors import Rejected, Unavailable
from acker_command import options
from acker_command.figures import MemberFigures, figures
from acker_command.options import Mistake, servers_option
from acker_command.overview import Overview, SeenMember
from acker_command.servers import Servers
from acker_protocol.messages import DrainReply, MemberState, StatsReply, ViewReply
from acker_protocol.placement import IDS

LOOK_S = 0.5
# Shortest time between two lines about the work that is left.
SAY_S = 5.0
# If no other server knows the members, a server that is silent for this long counts as gone.
GONE_S = 3.0


def _id(context: click.Context, parameter: click.Parameter, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= IDS:
        raise Mistake(f"{text}: an id is a number from 0 to {IDS - 1}; `acker ring` lists the ids in use")
    return int(text)


@click.command("drain", context_settings=options.SETTINGS, epilog=options.VARIABLES)
@click.argument("id", callback=_id)
@servers_option
@click.option("--force", is_flag=True, help="Even if no other server takes new batches.")
@click.option("--wait", is_flag=True, help="Return once it has ended, and show meanwhile what is left.")
def drain(id: int, servers: str | None, force: bool, wait: bool) -> None:
    """Ask the server with this ID to drain: to take nothing new, finish what it has, and end.

    Its batches are settled and its outcomes confirmed as usual, so nothing is replayed. It ends by itself with status 0
    once nothing is left, or after its --drain-s. Its supervisor should not start it again; with --stay-drained it stays
    until SIGTERM instead, without calls and not ready, for supervisors that would. Asking again does no harm. A drain
    cannot be undone, except by starting the server again.

    Exits with status 2 if the server was not asked: no server has that id, it does not answer, or it is the only one
    that takes new batches.
    """
    with Servers(options.settings(servers)) as asked:
        seen = asked.overview()
        member = found(seen, id)
        was_draining = member.state == MemberState.DRAINING
        if not was_draining and not force:
            refuse_the_only(seen, member)
        try:
            reply = asked.drain(member.address)
        except Unavailable as error:
            raise Mistake(f"server {id} gave no answer; asking again does no harm ({error})") from None
        click.echo(said(seen, member, reply, was_draining=was_draining))
        if wait:
            await_end(asked, seen, member)


def found(seen: Overview, id: int) -> SeenMember:
    """Return the member with that ``id``. Raises :class:`Mistake` if there is none, or it does not answer."""
    member = next((each for each in seen.members if each.id == id), None)
    if member is None:
        known = ", ".join(str(each.id) for each in seen.members if each.id is not None)
        others = "".join(f"; {note}" for note in seen.notes)
        raise Mistake(f"no server has the id {id}: there are {known or 'none'}{others}")
    if member.state == MemberState.AWAY:
        raise Mistake(
            f"server {id} is away: it has stopped with its state and said to be back; start it to drain it, or let its "
            f"{member.away_ms / 1000:.0f} s pass"
        )
    if not member.is_answering:
        raise Mistake(f"server {id} at {member.address} does not answer, so it cannot be asked; `acker ring` says more")
    return member


def refuse_the_only(seen: Overview, member: SeenMember) -> None:
    """Raise :class:`Mistake` if no other member takes new batches."""
    if any(other is not member and other.takes_batches for other in seen.members):
        return
    more = "" if seen.epoch else ", name the others with --servers"
    raise Mistake(
        f"server {member.id} is the only one that takes new batches, and jobs would stand still without it: start "
        f"another first{more}, or give --force"
    )


def said(seen: Overview, member: SeenMember, reply: DrainReply, *, was_draining: bool) -> str:
    """Return a sentence about what has happened and what happens next."""
    others = [str(each.id) for each in seen.members if each is not member and each.takes_batches]
    drains = "is draining already" if was_draining else "drains"
    go_to = f"new batches go to {', '.join(others)}" if others else "no server takes new batches"
    end = f"it ends once nothing is left of {reply.detail}" if reply.detail else "it has nothing left, and ends now"
    return f"server {member.id} at {member.address} {drains}: {go_to}, and {end}"


def await_end(asked: Servers, seen: Overview, member: SeenMember) -> None:
    """Wait until ``member`` has gone. From time to time, print how much work it has left."""
    began_at = heard_at = monotonic()
    said_at = float("-inf")
    others = [each.address for each in seen.members if each is not member and each.is_answering]
    while True:
        timed = _figures(asked, member)
        if timed is None and is_gone(asked.view(others), member, monotonic() - heard_at):
            break
        if timed is not None:
            heard_at, stats = timed
            # Another process has taken the member's address, and was not asked to drain.
            if stats.incarnation != member.incarnation:
                break
            if heard_at - said_at >= SAY_S:
                said_at = heard_at
                click.echo(f"{heard_at - began_at:6.1f} s  {left(figures(None, timed))}")
        sleep(LOOK_S)
    click.echo(f"{monotonic() - began_at:6.1f} s  server {member.id} has gone")


def _figures(asked: Servers, member: SeenMember) -> tuple[float, StatsReply] | None:
    try:
        return asked.stats([member]).get(member.address)
    except Rejected:
        # Another server has taken the member's address.
        return None


def is_gone(view: ViewReply | None, member: SeenMember, silent_s: float) -> bool:
    """Whether a ``member`` that does not answer has gone. ``view``: the members that another server lists; None if no
    server knows of others."""
    if view is None:
        return silent_s >= GONE_S
    return all((each.member.id, each.member.generation) != (member.id, member.generation) for each in view.members)


def left(counts: MemberFigures) -> str:
    """Describe what a draining server has left."""
    return f"{counts.open_batches:,} open batches, {counts.pending:,} pending, {counts.unconfirmed:,} unconfirmed"
