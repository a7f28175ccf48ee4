"""Published: what a source tells other processes about where its emissions live. Pure.

Decides how it is encoded (acker.proto, chapter 8, has the format) and which roots count as over.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from acker_client.pins import Mask, Pin
from acker_protocol.ids import Column, numbers_of, uint64
from acker_protocol.placement import IDS, Member, Placement, epoch_of, parts_of, place_seats

# The index of an empty seat, which has no member.
_NOBODY = -1


@dataclass(frozen=True, slots=True)
class Published:
    """The open batches of a source's emissions, at one moment.

    ``session``: for a reader that does not know the session, the number of the first emission.
    ``version`` grows with each publication. The numbers of all emissions are [``first``, ``stop``). ``pins`` ascend by
    their numbers. A number in none of them belongs to a batch that is over. ``out``: maps the number of a batch to
    the ids of the servers that the source has left out of it. ``ended``: ranges (first, stop) of the numbers of batches
    of ``open_batch`` that are over. Only the process of the source knows them.
    """

    session: int
    version: int
    first: int
    stop: int
    pins: tuple[Pin, ...] = ()
    out: Mapping[int, frozenset[int]] = field(default_factory=dict)
    ended: tuple[tuple[int, int], ...] = ()

    def has(self, root_ids: Column) -> Mask:
        """Return which of ``root_ids: uint64[n]`` the source may have emitted by the moment of this publication."""
        return issued(root_ids, ((self.first, self.stop), *self.ended))

    def is_out(self, batch: int, server: int) -> bool:
        """Whether the source ignores ``server`` for ``batch``: the server was left out, or the batch is over."""
        if all(pin.batch != batch for pin in self.pins):
            return True
        return server in self.out.get(batch, ())

    def of_session(self, session: int) -> Published:
        """Return the same for a reader that knows the session."""
        return replace(self, session=session, pins=tuple(replace(pin, session=session) for pin in self.pins))

    def encode(self) -> bytes:
        """Return the bytes that servers keep."""
        members: dict[Member, int] = {}
        placements: dict[tuple[Any, ...], int] = {}
        batches = []
        for pin in self.pins:
            placement = pin.placement
            indices = [members.setdefault(member, len(members)) for member in placement.members]
            seats = tuple(indices[seat] if seat >= 0 else _NOBODY for seat in placement.seats)
            key = (*parts_of(placement.epoch), placement.replicas.shape[1], seats)
            out = self.out.get(pin.batch, ())
            batches.append(
                [
                    *(pin.batch, pin.first, pin.up_to, placements.setdefault(key, len(placements))),
                    [indices[at] for at, member in enumerate(placement.members) if member.id in out],
                ]
            )
        content = {
            "version": self.version,
            "first": self.first,
            "stop": self.stop,
            "members": [[member.id, member.generation, member.address] for member in members],
            "placements": list(placements),
            "batches": batches,
        }
        return zlib.compress(json.dumps(content, separators=(",", ":")).encode())


def issued(root_ids: Column, ranges: Sequence[tuple[int, int]]) -> Mask:
    """Return which of ``root_ids: uint64[n]`` have a number in one of ``ranges``, each of them (first, stop)."""
    found: Mask = np.zeros(len(root_ids), np.bool_)
    for first, stop in ranges:
        found |= numbers_of(first, root_ids) < np.uint64(stop - first)
    return found


def decode(session: int | None, published: bytes) -> Published:
    """Decode the result of :meth:`Published.encode`. Raises ValueError for anything else. ``session``: None if the
    reader does not know it."""
    try:
        content = json.loads(zlib.decompress(published))
        version, first, stop = map(uint64, (content["version"], content["first"], content["stop"]))
        if first > stop:
            raise ValueError(f"its emissions end at {stop}, before they begin at {first}")
        session = first if session is None else session
        members = [Member(*each) for each in content["members"]]
        placements = [_placement(members, *each) for each in content["placements"]]
        pins, out = [], {}
        for number, base, up_to, at, left_out in content["batches"]:
            pins.append(Pin(session, uint64(number), uint64(base), uint64(up_to), placements[uint64(at)]))
            if left_out:
                out[number] = frozenset(members[uint64(each)].id for each in left_out)
        return Published(session, version, first, stop, tuple(pins), out)
    except (KeyError, TypeError, IndexError, RecursionError, ValueError, zlib.error) as error:
        raise ValueError(
            f"pins of session {session}: {error!r}; install the same version of acker everywhere"
        ) from None


def _placement(members: Sequence[Member], ensemble: int, epoch: int, replicas: int, seats: Sequence[int]) -> Placement:
    taken = [members[uint64(seat)] for seat in seats if seat != _NOBODY]
    if len({member.id for member in taken}) < len(taken) or len(seats) > IDS:
        raise ValueError("a placement seats a member twice, or has more seats than there are ids")
    if not 1 <= uint64(replicas) <= len(taken):
        raise ValueError(f"a placement has {replicas} replicas on {len(taken)} members")
    seated = [members[seat] if seat != _NOBODY else None for seat in seats]
    return place_seats(epoch_of(uint64(ensemble), uint64(epoch)), seated, replicas)
