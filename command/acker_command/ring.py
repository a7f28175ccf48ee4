"""Ring: ``acker ring``, which shows the servers and how slots are spread over them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from acker_command import options, picture
from acker_command.balance import Balance, balance, owners
from acker_command.options import json_option, servers_option
from acker_command.overview import Overview
from acker_command.servers import Servers

REPLICAS = (1, 2)


@click.command("ring", context_settings=options.SETTINGS, epilog=options.VARIABLES)
@servers_option
@json_option
def ring(servers: str | None, as_json: bool) -> None:
    """Show the servers: the members, the state of each, and how slots are spread over those that take new batches.

    \b
    active      takes new batches
    draining    takes nothing new, and ends once it has nothing left
    away        stopped with its state, and announced its return; clients wait for it
    no answer   does not answer this command
    slots       how many of the 1024 slots of a batch it holds, if each root is on 1 server (R = 1) or on 2 (R = 2)

    If servers register in ZooKeeper, any one of them knows all. Otherwise only the named servers are shown.
    Exits with status 2 if no server answers, or a named one is the wrong one.
    """
    with Servers(options.settings(servers)) as asked:
        seen = asked.overview()
    view = seen.view
    balances = [found for replicas in REPLICAS if (found := balance(view, replicas)) is not None]
    if as_json:
        click.echo(json.dumps(json_of(seen, balances)))
    else:
        picture.show(lambda columns: picture.ring(seen, balances, owners(view), columns))


def json_of(seen: Overview, balances: Sequence[Balance]) -> dict[str, Any]:
    """Return the object that ``--json`` prints. A member that takes new batches has ``slots``, which gives for each
    number of replicas how many slots the member holds."""
    return options.json_of(
        seen,
        lambda member: {
            "slots": {
                str(each.replicas): round(each.slots[member.id], 1)
                for each in balances
                if member.takes_batches and member.id is not None
            }
        },
    )
