"""Picture: how members, their slots and their figures look, in a terminal and as plain text. Asks no server.

Decides that a terminal gets colours and blocks. Everything else gets ASCII of any width, without colours.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from acker_command.balance import Balance
from acker_command.figures import MemberFigures, NamespaceTotals
from acker_command.overview import Overview, SeenMember
from acker_protocol.messages import MemberState
from acker_protocol.placement import SPREAD, Replicas

BAR_WIDTH = 16
BAR_WIDTH_MIN = 2
COUNT_WIDTH = 5
BAND_WIDTH = 64
# Width of the columns of `ring` and their spaces, without bars, addresses and states.
BESIDE_BARS = 45
PLAIN_WIDTH = 1000
# Reasons and records are the user's text: brackets and colons in them mean nothing.
AS_IT_IS: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_white", "bright_black")
_STATES = {MemberState.ACTIVE: "green", MemberState.DRAINING: "yellow", MemberState.AWAY: "blue"}
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def show(draw: Callable[[int | None], RenderableType]) -> None:
    """Print the result of ``draw(width)``. ``width``: columns of the terminal if it can show blocks, else None."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a record may hold what the terminal cannot show
    console = Console(**AS_IT_IS)
    if console.is_terminal and not console.options.ascii_only:
        console.print(draw(console.width))
    else:
        click.echo(plain(draw(None)), nl=False)


def plain(drawn: RenderableType) -> str:
    """Return ``drawn`` as text, without folded lines and without spaces at the ends of lines."""
    page = io.StringIO()
    Console(file=page, width=PLAIN_WIDTH, color_system=None, **AS_IT_IS).print(drawn)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def ring(
    overview: Overview, balances: Sequence[Balance], owners: Replicas | None, columns: int | None = None
) -> RenderableType:
    """Draw a row for each member, with one bar for each number of replicas. Given the terminal's ``columns`` and
    ``owners``, draw all slots too. ``owners``: the server of each slot with one replica, as an index into the members
    of the view, or None."""
    in_blocks, width = columns is not None, _bar_width(overview, columns)
    colours = _colours(overview)
    table = _table("id", "address", "generation", "version", "state")
    for each in balances:
        table.add_column(f"R = {each.replicas}", no_wrap=True)
    for seen in overview.members:
        cells = [*_who(seen, colours), Text(seen.short_generation), Text(seen.version or "-"), _condition(seen)]
        cells += [_slots(seen, each, colours, width, in_blocks=in_blocks) for each in balances]
        table.add_row(*cells)
    parts: list[RenderableType] = [Text(overview.summary(), "bold"), Text(), table]
    if balances:
        parts += [Text(), Text(_said_of_balance(balances, len(overview.view.members)))]
    if in_blocks and owners is not None:
        parts += [Text(), *_band(owners), Text("1024 slots, each in the colour of its server with R = 1", "dim")]
    return Group(*parts, *_notes(overview))


def status(
    overview: Overview,
    figures: Mapping[str, MemberFigures],
    total: MemberFigures,
    namespaces: Mapping[str, NamespaceTotals],
) -> RenderableType:
    """Draw a row for each member, a row for their total, and a row for each namespace. ``figures``: maps a server's
    address to its figures."""
    table = _table("id", "address", "state")
    for name in ("pending", "batches", "sources", "unconfirmed", "reports/s", "updates/s"):
        table.add_column(name, justify="right")
    table.add_column("generation", no_wrap=True)
    colours = _colours(overview)
    for seen in overview.members:
        counts = _figure_cells(figures.get(seen.address))
        table.add_row(*_who(seen, colours), _condition(seen), *counts, seen.short_generation)
    table.add_row("", Text("total", "bold"), "", *_figure_cells(total))
    parts: list[RenderableType] = [Text(overview.summary(), "bold"), Text(), table]
    if namespaces:
        parts += [Text(), _namespaces(namespaces)]
    return Group(*parts, *_notes(overview))


def _namespaces(namespaces: Mapping[str, NamespaceTotals]) -> Table:
    table = _table("namespace")
    for name in ("roots", "at most", "MiB", "at most", "sources", "connections", "refused"):
        table.add_column(name, justify="right")
    for name, each in namespaces.items():
        roots, memory = (each.roots, each.roots_limit), (each.memory_bytes >> 20, each.memory_limit_bytes >> 20)
        counts = (*roots, *memory, each.sources, each.connections, each.refused)
        table.add_row(name or "(default)", *(f"{count:,}" for count in counts))
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        is_address = name == "address"
        table.add_column(name, justify="right" if name == "id" else "left", no_wrap=not is_address, overflow="fold")
    return table


def _who(seen: SeenMember, colours: Mapping[str, str]) -> list[Text]:
    id = "-" if seen.id is None else str(seen.id)
    return [Text(id, colours.get(seen.address, "")), Text(seen.address)]


def _condition(seen: SeenMember) -> Text:
    is_well = seen.is_answering or seen.state == MemberState.AWAY
    return Text(seen.condition, _STATES[seen.state] if seen.state and is_well else "bold red")


def _colours(overview: Overview) -> dict[str, str]:
    """Return the colours of the view's members, by address."""
    members = overview.view.members
    return {member.address: COLOURS[index % len(COLOURS)] for index, member in enumerate(members)}


def _slots(seen: SeenMember, balance: Balance, colours: Mapping[str, str], width: int, *, in_blocks: bool) -> Text:
    if not seen.takes_batches or seen.id is None:
        return Text(f"{'-':>{COUNT_WIDTH}}")
    count = balance.slots[seen.id]
    shown = f"{count:.0f}" if balance.batches == 1 else f"{count:.1f}"
    bar = _bar(width * count / max(balance.slots.values()), in_blocks=in_blocks)
    return Text.assemble(f"{shown:>{COUNT_WIDTH}} ", (bar, colours[seen.address]))


def _bar_width(overview: Overview, columns: int | None) -> int:
    """Return the width of a bar, such that the bars for one and for two replicas fit side by side."""
    if columns is None:
        return BAR_WIDTH
    widest = max(len(seen.address) + len(seen.condition) for seen in overview.members)
    return max(BAR_WIDTH_MIN, min(BAR_WIDTH, (columns - BESIDE_BARS - widest) // 2))


def _bar(width: float, *, in_blocks: bool) -> str:
    if not in_blocks:
        return "#" * round(width)
    whole, eighths = divmod(round(width * 8), 8)
    return "█" * whole + (_EIGHTHS[eighths] if eighths else "")


def _band(owners: Replicas) -> list[Text]:
    """Draw rows of 64 slots. Each terminal line holds two rows, as upper and lower half blocks."""
    rows = owners.reshape(-1, 2, BAND_WIDTH).tolist()
    colour = [COLOURS[index % len(COLOURS)] for index in range(max(map(max, owners.reshape(-1, 2).tolist())) + 1)]
    return [
        Text.assemble(*(("▀", f"{colour[a]} on {colour[b]}") for a, b in zip(upper, lower, strict=True)))
        for upper, lower in rows
    ]


def _said_of_balance(balances: Sequence[Balance], members: int) -> str:
    fullest = ", ".join(f"{each.fullest:.2f} (R = {each.replicas})" for each in balances)
    batches = balances[0].batches
    of = "each batch" if batches == 1 else f"a batch (mean of {batches} batches, each on {SPREAD} of {members} servers)"
    return (
        f"Slots that a server holds of {of}, with each root on R servers. The fullest server holds {fullest} times the"
        " mean."
    )


def _figure_cells(figures: MemberFigures | None) -> list[str]:
    if figures is None:
        return ["-"] * 6
    counts = (figures.pending, figures.open_batches, figures.sources, figures.unconfirmed)
    rates = (figures.reports_per_s, figures.updates_per_s)
    return [f"{count:,}" for count in counts] + ["-" if rate is None else f"{rate:,.0f}" for rate in rates]


def _notes(overview: Overview) -> list[RenderableType]:
    return [Text(), *(Text(f"! {note}", "yellow") for note in overview.notes)] if overview.notes else []
