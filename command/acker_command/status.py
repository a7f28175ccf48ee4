"""Status: ``acker status``, which shows the load of each server."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from acker_command import options, picture
from acker_command.figures import MemberFigures, NamespaceTotals, figures, of_namespaces, total
from acker_command.options import json_option, servers_option
from acker_command.overview import Overview
from acker_command.servers import Servers


def _seconds(context: click.Context, parameter: click.Parameter, seconds: float) -> float:
    # It is neither below nor above any bound, so Click takes it.
    if math.isnan(seconds):
        raise click.BadParameter("nan is not a number of seconds")
    return seconds


@click.command("status", context_settings=options.SETTINGS, epilog=options.VARIABLES)
@servers_option
@click.option(
    "--interval-s",
    type=click.FloatRange(0.1, 3600),
    callback=_seconds,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time over which rates are measured.",
)
@json_option
def status(servers: str | None, interval_s: float, as_json: bool) -> None:
    """Show the load of each server, and of all together.

    \b
    pending       roots without an outcome; a root with two replicas counts at both servers
    batches       open batches, which wait to be settled
    sources       sources whose lease has not expired; a source with roots on two servers counts at both
    unconfirmed   outcomes that their source has not confirmed
    reports/s     messages of reports that were answered; a report of more than a MiB is several
    updates/s     entries of reports that were applied, inits included

    Servers with namespaces have a second table. Its rows are of all servers together, and its roots are pending,
    reserved or unconfirmed.

    A rate is "-" if the server was restarted meanwhile. States are those of `acker ring`. Exits with status 2
    if no server answers, a named one is the wrong one, or the token may not see figures (role operator or scraper).
    """
    with Servers(options.settings(servers)) as asked:
        seen = asked.overview()
        first = asked.stats(seen.members)
        time.sleep(interval_s)
        second = asked.stats(seen.members)
    found = {address: figures(first.get(address), timed) for address, timed in second.items()}
    namespaces = of_namespaces(reply for _, reply in second.values())
    if as_json:
        click.echo(json.dumps(json_of(seen, found, namespaces)))
    else:
        picture.show(lambda _: picture.status(seen, found, total(found.values()), namespaces))


def json_of(
    seen: Overview, found: Mapping[str, MemberFigures], namespaces: Mapping[str, NamespaceTotals]
) -> dict[str, Any]:
    """Return the object that ``--json`` prints. ``found``: maps a server's address to its figures. A server that
    did not answer has none."""
    members = options.json_of(seen, lambda member: found[member.address].as_json() if member.address in found else {})
    by_name = {name: asdict(each) for name, each in namespaces.items()}
    return {**members, "total": total(found.values()).as_json(), "namespaces": by_name}
