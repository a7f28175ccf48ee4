"""The output of ``ring`` and ``status`` compared with the text files in ``tests/command/pictures``.

After an intended change, write the files again (``python -m tests.command.test_pictures``) and read the difference.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from acker_command import overview, picture
from acker_command.balance import balance, owners
from acker_command.figures import MemberFigures, NamespaceTotals, total
from acker_command.overview import Overview
from acker_protocol.messages import MemberState
from tests.command.seen import address, answer, listed, silence, view

FOLDER = Path(__file__).parent / "pictures"
DRAINING, AWAY = MemberState.DRAINING, MemberState.AWAY


def a_cluster() -> Overview:
    found = view(17, listed(0), listed(1), listed(2, DRAINING), listed(3, AWAY, 42_000), listed(4))
    return overview.registered(found, [answer(0, found), answer(1, found), answer(2, found), silence(address(4))])


def a_list() -> Overview:
    return overview.of_list([answer(0), answer(1, at="[::1]:7071"), silence("acker-2.example:7070")])


def many() -> Overview:
    found = view(40, *(listed(id) for id in range(12)))
    return overview.registered(found, [answer(id, found) for id in range(12)])


def nobody() -> Overview:
    return overview.of_list([answer(0, is_draining=True)])


def ring(seen: Overview, columns: int | None = None) -> RenderableType:
    balances = [found for replicas in (1, 2) if (found := balance(seen.view, replicas)) is not None]
    return picture.ring(seen, balances, owners(seen.view), columns)


def status(seen: Overview, namespaces: Mapping[str, NamespaceTotals] = {}) -> RenderableType:
    each = {
        address(0): MemberFigures(1_234_567, 2, 3, 40, 12.4, 98_765.4),
        address(1): MemberFigures(5, 0, 1, 0, None, None),
    }
    return picture.status(seen, each, total(each.values()), namespaces)


def status_of_namespaces() -> RenderableType:
    namespaces = {
        "": NamespaceTotals(1_234_567, 20_000_000, 700 << 20, 2048 << 20, 3, 12, 0),
        "etl": NamespaceTotals(5, 4_000_000, 6 << 20, 512 << 20, 1, 51, 17),
    }
    return status(a_cluster(), namespaces)


def in_terminal(drawn: RenderableType, columns: int) -> str:
    page = io.StringIO()
    Console(file=page, width=columns, force_terminal=True, color_system="standard", highlight=False).print(drawn)
    return page.getvalue()


PICTURES: dict[str, Callable[[], str]] = {
    "ring_of_a_cluster": lambda: picture.plain(ring(a_cluster())),
    "ring_of_a_list": lambda: picture.plain(ring(a_list())),
    "ring_of_many": lambda: picture.plain(ring(many())),
    "ring_of_nobody": lambda: picture.plain(ring(nobody())),
    "ring_in_a_terminal": lambda: in_terminal(ring(a_list(), 100), 100),
    "ring_in_a_narrow_terminal": lambda: in_terminal(ring(a_cluster(), 80), 80),
    "status_of_a_cluster": lambda: picture.plain(status(a_cluster())),
    "status_of_namespaces": lambda: picture.plain(status_of_namespaces()),
}


@pytest.mark.parametrize("name", PICTURES)
def test_it_looks_as_it_did_when_its_picture_was_written(name: str) -> None:
    assert PICTURES[name]() == (FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", [name for name in PICTURES if "terminal" not in name])
def test_where_there_is_no_terminal_all_of_it_is_ascii(name: str) -> None:
    assert PICTURES[name]().isascii()


def test_the_band_has_every_slot_in_the_colour_of_its_owner() -> None:
    seen = a_list()
    drawn = ring(seen, 100)
    band = [line for line in in_terminal(drawn, 100).splitlines() if "▀" in line]
    assert [line.count("▀") for line in band] == [64] * 8
    # cyan and magenta: the colours of the two ids
    counts = [sum(line.count(code) for line in band) for code in ("36;", "35;", ";46m", ";45m")]
    assert (counts[0] + counts[2], counts[1] + counts[3]) == (512, 512)


def write() -> None:
    """Write all pictures again."""
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.txt").write_text(draw())


if __name__ == "__main__":
    write()
