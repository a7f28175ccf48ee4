"""Pins: where the roots of batches live, and which part of a report goes to which member. Pure.

``acker_protocol.placement`` decides the placement. A pin is the placement of one batch, decided when the batch was
opened, and it travels to every process that works on the batch. If a report has roots of one batch, each replica of a
slot gets the whole section of that slot. If it has roots of several batches, a member gets only the roots of batches
that it holds in that slot.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import MASK, SLOTS, Column, numbers_of, slot_column, uint64, unmix64_column
from acker_protocol.messages import FAIL, Entries, InitScope
from acker_protocol.placement import Member, Placement

Mask = npt.NDArray[np.bool_]

# The ``up_to`` of a pin that takes any root.
ANY_NUMBER = MASK


class NowhereToSend(ValueError):
    """No pin says where the roots live."""


@dataclass(frozen=True, slots=True)
class Pin:
    """The placement of one batch. Its roots are ``mix64(first + i)`` for each i below ``up_to``. Picklable."""

    session: int
    batch: int
    first: int
    up_to: int
    placement: Placement

    def has(self, root_ids: Column) -> Mask:
        """Return which of ``root_ids: uint64[n]`` are of this batch."""
        return numbers_of(self.first, root_ids) < np.uint64(self.up_to)


Pins = tuple[Pin, ...]


def encode(pins: Sequence[Pin]) -> str:
    """Return pins as ASCII text, for another process."""
    return json.dumps([_plain(pin) for pin in pins], separators=(",", ":"))


def decode(text: str | bytes) -> Pins:
    """Return the pins in a result of :func:`encode`. Raises ValueError for anything else."""
    try:
        return tuple(_pin(content) for content in json.loads(text)) if text else ()
    except (KeyError, RecursionError, TypeError, zlib.error) as error:
        raise ValueError(f"pins: this is no list of pins ({error!r}); hand them on as they came") from None


def _plain(pin: Pin) -> dict[str, Any]:
    placement = pin.placement
    table = zlib.compress(placement.replicas.astype("<u2").tobytes())
    return {
        "batch": [pin.session, pin.batch, pin.first, pin.up_to],
        "epoch": placement.epoch,
        "members": [[member.id, member.generation, member.address] for member in placement.members],
        "replicas": base64.b64encode(table).decode("ascii"),
    }


def _pin(content: dict[str, Any]) -> Pin:
    table = np.frombuffer(zlib.decompress(base64.b64decode(content["replicas"])), "<u2").reshape(SLOTS, -1)
    members = tuple(Member(*each) for each in content["members"])
    if not members or table.size == 0 or int(table.max()) >= len(members):
        raise ValueError("pins: a slot lies on a server that is not named")
    # An epoch has more than 64 bits.
    if type(content["epoch"]) is not int or content["epoch"] < 0:
        raise ValueError(f"pins: {content['epoch']!r:.40} is no epoch")
    session, batch, first, up_to = map(uint64, content["batch"])
    return Pin(session, batch, first, up_to, Placement(content["epoch"], members, table.astype(np.uint16)))


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a report that one member gets. ``held: bool[pins, 1024]``: for each pin of the report, whether the
    member gets the section of a slot. ``pins``: the pins that have such a slot."""

    member: Member
    entries: Entries
    held: Mask
    pins: Pins


def shares_of(pins: Sequence[Pin], entries: Entries, inits: InitScope | None) -> list[Share]:
    """Return the share of each member of ``pins``. A member without a section has no share, unless ``inits`` has
    covered numbers, which all members get.

    The batch of a root in no pin is unknown, so all members get this root. A member without the batch keeps the update
    until it ages out. Raises :class:`NowhereToSend` if there is no pin.
    """
    pins = pins_for(pins, inits)
    servers = _servers(pins)
    if len(servers) == 1:
        return [Share(servers[0][0], entries, np.ones((1, SLOTS), np.bool_), tuple(pins))]
    if not servers:
        raise NowhereToSend("nobody has said where the roots of this report live")
    slots = slot_column(entries.root_ids)
    covers = inits is not None and len(inits.covered) > 0
    of_pin = _of_pins(pins, entries.root_ids)
    wanted = np.stack([_slots_among(slots if own is None else slots[own]) | covers for own in of_pin])
    shares = []
    for names in servers:
        held = np.stack([_slots_held(pin.placement, names) for pin in pins])
        is_his = np.zeros(len(slots), np.bool_)
        for row, own in zip(held, of_pin, strict=True):
            is_his |= row[slots] if own is None else row[slots] & own
        held &= wanted
        if held.any():
            its = entries if is_his.all() else only(entries, is_his)
            own_pins = tuple(pin for pin, slots_held in zip(pins, held, strict=True) if slots_held.any())
            shares.append(Share(names[0], its, held, own_pins))
    return shares


def pins_for(pins: Sequence[Pin], inits: InitScope | None) -> Pins:
    """Return the ``pins`` that a report concerns. A report with inits concerns only the batch of its inits."""
    if inits is None:
        return tuple(pins)
    # If no pin has the batch, the report goes to all pins, and the servers refuse it.
    own = tuple(pin for pin in pins if (pin.session, pin.batch) == (inits.session, inits.batch))
    return own or tuple(pins)


def _slots_among(slots: npt.NDArray[np.intp]) -> Mask:
    among = np.zeros(SLOTS, np.bool_)
    among[slots] = True
    return among


def _of_pins(pins: Sequence[Pin], root_ids: Column) -> list[Mask | None]:
    """Return for each pin which roots go to its members: bool[n], or None for all roots."""
    if len(pins) == 1:
        return [None]
    of_pin = [pin.has(root_ids) for pin in pins]
    of_none = ~np.logical_or.reduce(of_pin)
    return [own | of_none for own in of_pin]


def parted(pins: Sequence[Pin], root_ids: Column) -> npt.NDArray[np.int64]:
    """Return for each of ``root_ids: uint64[n]`` the index of its pin, or -1. Pins must not overlap."""
    firsts, counts = (np.array([getattr(pin, name) for pin in pins], np.uint64) for name in ("first", "up_to"))
    # A batch of nothing would hide the batch around it.
    order = np.flatnonzero(counts)
    if not len(order):
        return np.full(len(root_ids), -1, np.int64)
    order = order[np.argsort(firsts[order])]
    numbers = unmix64_column(root_ids)
    at = np.searchsorted(firsts[order], numbers, side="right") - 1
    pin = order[at]
    found: npt.NDArray[np.int64] = np.where((at >= 0) & (numbers - firsts[pin] < counts[pin]), pin, -1)
    return found


def _servers(pins: Sequence[Pin]) -> list[list[Member]]:
    """Return the members of ``pins``, grouped by server. Pins may name one server with several generations or
    addresses, but it takes a section of a report only once. The member of the newest pin is first in its group."""
    if len(pins) == 1:
        return [[member] for member in pins[0].placement.members]
    servers: list[list[Member]] = []
    for member in dict.fromkeys(member for pin in reversed(pins) for member in pin.placement.members):
        same = next((names for names in servers if same_server(member, names)), None)
        if same is None:
            servers.append([member])
        else:
            same.append(member)
    return sorted(servers)


def same_server(one: Member, members: Sequence[Member]) -> list[int]:
    """Return the indices of the ``members`` that are the same server as ``one``. The server may have moved to another
    address with its state, or come back at its address without its state."""
    return [
        index
        for index, other in enumerate(members)
        if one.id == other.id and (one.generation == other.generation or one.address == other.address)
    ]


def _slots_held(placement: Placement, names: Sequence[Member]) -> Mask:
    held: Mask = np.zeros(SLOTS, np.bool_)
    for index, member in enumerate(placement.members):
        if member in names:
            held |= (placement.replicas == index).any(axis=1)
    return held


def only(entries: Entries, chosen: Mask) -> Entries:
    """Return the ``entries`` where ``chosen: bool[n]`` is true."""
    roots, vals = entries.root_ids[chosen], entries.ack_vals[chosen]
    if not len(entries.kinds):
        return Entries(roots, vals)
    kinds = entries.kinds[chosen]
    reason_ids = entries.reason_ids[chosen[(entries.kinds & FAIL) != 0]]
    return Entries(roots, vals, kinds, reason_ids, entries.reasons)
