"""Placement: which members hold which slots of a batch, the same in every process and every language.

Decides the members of a batch and the replicas of each slot; chapter 2 of acker.proto has the steps, and vectors.json
has examples. Pure integers, no floats, no ``hash()``. A member has a *seat*. A table assigns slots to seats as if every
seat were taken. The slots of empty seats go to members that have room.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import MASK, SLOTS, Column, check_column, mix64_column, slot_column

# Ids are below this, so that a table of seats stays small: number the servers 0, 1, 2 ...
IDS = 1024
SPREAD = 8
# The most replicas of a slot. Votes on an outcome cannot count more.
REPLICAS_MAX = 8
# No member holds more than 21/20 of the mean, rounded up.
_OVER, _UNDER = 21, 20

# An epoch is one number, so that epochs can be compared. The bits below this are ZooKeeper's count. The bits above are
# the incarnation of the ensemble.
_ENSEMBLE_SHIFT = 64

Seats = npt.NDArray[np.int64]
Replicas = npt.NDArray[np.uint16]

_NOBODY = -1
_REFUSED = np.uint64(MASK)


def epoch_of(ensemble: int, number: int) -> int:
    """Return the epoch ``number`` of ``ensemble``, both uint64. Every epoch of a later ensemble is greater."""
    return ensemble << _ENSEMBLE_SHIFT | number


def parts_of(epoch: int) -> tuple[int, int]:
    """Return the ensemble of ``epoch``, and its number in it."""
    return divmod(epoch, 1 << _ENSEMBLE_SHIFT)


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A server in a view. ``generation``: uint64; it changes when the server comes back without its state.

    Raises ValueError for an id outside 0 to 1023, a generation outside 64 bits, or an empty address.
    """

    id: int
    generation: int
    address: str

    def __post_init__(self) -> None:
        if type(self.id) is not int or not 0 <= self.id < IDS:
            raise ValueError(
                f"member {self.id!r}: an id is a number from 0 to {IDS - 1}; number the servers 0, 1, 2 ..."
            )
        if type(self.generation) is not int or not 0 <= self.generation <= MASK:
            raise ValueError(f"member {self.id}: generation {self.generation!r} is not an unsigned 64-bit number")
        if not isinstance(self.address, str) or not self.address:
            raise ValueError(f"member {self.id}: address {self.address!r} is empty or not text; give host:port")


@dataclass(frozen=True, slots=True)
class View:
    """The members at an epoch (``epoch_of``), sorted by id; there may be none.

    Raises ValueError for a negative epoch, or two members with the same id.
    """

    epoch: int
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        if self.epoch < 0:
            raise ValueError(f"view: epoch {self.epoch} is negative")
        members = tuple(sorted(self.members, key=lambda member: member.id))
        for one, other in itertools.pairwise(members):
            if one.id == other.id:
                raise ValueError(f"view: {one.address} and {other.address} have the same id {one.id}; give one another")
        object.__setattr__(self, "members", members)


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Which members of a view hold which slots of a batch. Pickled, it takes 2 KiB a replica plus the members.

    ``members``: the members of the batch, ascending by id. ``replicas``: uint16[1024, R], read-only: for each slot the
    indices of its replicas in ``members``, ordered and distinct. ``seats``: for each seat the index of its member, -1
    if it is empty. From the seats, :func:`place_seats` computes the same placement in any process.
    """

    epoch: int
    members: tuple[Member, ...]
    replicas: Replicas
    seats: tuple[int, ...] = ()

    def slots_of(self, index: int) -> bytes:
        """Return the slots of ``members[index]``, 1024 bits: slot s is bit ``s % 8`` (0: lowest) of byte ``s // 8``."""
        return np.packbits((self.replicas == index).any(axis=1), bitorder="little").tobytes()

    def replicas_of(self, root_ids: Column) -> Replicas:
        """Return the replicas of each of ``root_ids: uint64[n]``, as indices into ``members``: uint16[n, R]."""
        check_column("root_ids", root_ids)
        found: Replicas = self.replicas[slot_column(root_ids)]
        return found


def place(view: View, session: int, number: int, replicas: int, spread: int = SPREAD) -> Placement:
    """Place a batch on at most ``spread`` members of ``view``, each slot on ``replicas`` of them.

    No member holds more slots than :func:`slots_at_most`. If the view has more members than ``spread``, ``session`` and
    ``number`` of the batch decide which members it uses. Raises ValueError if there are fewer members than
    ``replicas``, or ``spread`` is smaller than ``replicas``. The first call for a number of seats computes their table,
    which takes 0.1 to 0.4 ms a seat.
    """
    if replicas < 1:
        raise ValueError(f"replicas: {replicas} is less than 1")
    if spread < replicas:
        raise ValueError(f"spread: {spread} members cannot hold {replicas} replicas; set spread to {replicas} or more")
    if len(view.members) < replicas:
        raise ValueError(
            f"replicas: {replicas} asked for and {len(view.members)} members in the view; "
            "ask for fewer, or start more servers"
        )
    ids = np.array([member.id for member in view.members])
    seated = _by_id(ids) if spread >= len(ids) else _drawn(ids, session, number, spread)
    members = {member.id: member for member in view.members}
    return place_seats(view.epoch, [members.get(each) for each in seated.tolist()], replicas)


def place_seats(epoch: int, seats: Sequence[Member | None], replicas: int) -> Placement:
    """Return the placement for the member in each seat (None: empty): steps 2 to 4 of chapter 2 in acker.proto."""
    seated = np.array([_NOBODY if each is None else each.id for each in seats], np.int64)
    held = seated[_table(len(seated), replicas)]
    chosen = np.sort(seated[seated != _NOBODY])
    if np.any(held == _NOBODY):
        _fill(held, chosen)
    column = np.searchsorted(chosen, held).astype(np.uint16)
    column.setflags(write=False)
    members = tuple(sorted((each for each in seats if each is not None), key=lambda member: member.id))
    indices = {member.id: index for index, member in enumerate(members)}
    return Placement(epoch, members, column, tuple(indices.get(each, _NOBODY) for each in seated.tolist()))


def slots_at_most(members: int, replicas: int) -> int:
    """Return how many slots a member holds at most: 1.05 x the mean of 1024 x replicas / members, rounded up.

    Rounding down would leave slots without a member: 200 members with 5 slots each hold 1000 of 1024 slots.
    """
    return min(SLOTS, -(-_OVER * SLOTS * replicas // (_UNDER * members)))


def _by_id(ids: Seats) -> Seats:
    """Return the member id of each seat: the seat is the id. int64[greatest id + 1], ``_NOBODY`` for an empty seat."""
    seated = np.full(int(ids[-1]) + 1, _NOBODY, np.int64)
    seated[ids] = ids
    return seated


def _drawn(ids: Seats, session: int, number: int, spread: int) -> Seats:
    """Return the member id of each seat, drawn for one batch: int64[spread]. A new member replaces at most one
    member."""
    numbers = np.arange(spread, dtype=np.uint64)[:, None] * np.uint64(IDS) + ids.astype(np.uint64)
    numbers += np.uint64(number * IDS * SLOTS & MASK)
    draws = _mixed(_mixed(numbers) ^ np.uint64(session))
    seated = np.empty(spread, np.int64)
    for seat in range(spread):
        least = int(np.argmin(draws[seat]))
        seated[seat] = ids[least]
        draws[:, least] = _REFUSED
    return seated


@functools.lru_cache(maxsize=16)
def _table(seats: int, replicas: int) -> Seats:
    """Return the seats of each slot, as if every seat were taken: int64[1024, replicas].

    Each added seat takes slots from the fullest seats. So counts differ by at most one, and slots move only to the new
    seat.
    """
    held = [list(range(replicas)) for _ in range(SLOTS)]
    counts = [SLOTS] * replicas
    for seat in range(replicas, seats):
        most, least = -(-SLOTS * replicas // (seat + 1)), SLOTS * replicas // (seat + 1)
        # First take from seats that now hold too many slots, then fill this seat up to its own share.
        counts.append(0)
        order = np.argsort(_scores(seat)).tolist()
        _move_slots(seat, held, counts, order, most, sum(max(0, count - most) for count in counts))
        _move_slots(seat, held, counts, order, least, least - counts[seat])
    table = np.array(held, np.int64)
    table.setflags(write=False)
    return table


def _move_slots(
    seat: int, held: list[list[int]], counts: list[int], order: list[int], bound: int, lacking: int
) -> None:
    """Move ``lacking`` slots to ``seat``, in ``order``. Takes a slot from its fullest seat, if that has over ``bound``
    slots."""
    for slot in order:
        if lacking <= 0:
            return
        owners = held[slot]
        fullest = max(owners, key=counts.__getitem__)
        if counts[fullest] > bound and seat not in owners:
            owners[owners.index(fullest)] = seat
            counts[fullest] -= 1
            counts[seat] += 1
            lacking -= 1


def _scores(seat: int) -> Column:
    """Return the score of each slot for a seat: uint64[1024]. A seat takes slots with low scores first."""
    return mix64_column(np.arange(seat * SLOTS + 1, (seat + 1) * SLOTS + 1, dtype=np.uint64))


def _fill(held: Seats, ids: Seats) -> None:
    """Fill vacant positions in ``held`` in rounds. Slots ask members with room. A member accepts the lowest scores."""
    room = slots_at_most(len(ids), held.shape[1]) - np.bincount(held[held != _NOBODY], minlength=IDS)[ids]
    asking, stuck = np.flatnonzero((held == _NOBODY).any(axis=1)), []
    # Must be another score than the table's, in which a member has high scores for all slots that it does not hold.
    scores = _mixed(ids.astype(np.uint64) * np.uint64(SLOTS) + asking.astype(np.uint64)[:, None] + np.uint64(1))
    scores = scores << np.uint64(32) | scores >> np.uint64(32)
    scores[(held[asking][:, :, None] == ids).any(axis=1)] = _REFUSED
    while len(asking):
        scores[:, room == 0] = _REFUSED
        best = np.argmin(scores, axis=1)
        least = scores[np.arange(len(asking)), best]
        stuck += asking[least == _REFUSED].tolist()
        rows = np.flatnonzero(least != _REFUSED)
        rows = rows[_within_room(best[rows], least[rows], room)]
        held[asking[rows], np.argmax(held[asking[rows]] == _NOBODY, axis=1)] = ids[best[rows]]
        scores[rows, best[rows]] = _REFUSED
        room -= np.bincount(best[rows], minlength=len(ids))
        again = (held[asking] == _NOBODY).any(axis=1) & (least != _REFUSED)
        asking, scores = asking[again], scores[again]
    for slot in sorted(stuck):
        while np.any(held[slot] == _NOBODY):
            _exchange(held, ids, slot)


def _within_room(asked: Seats, scores: Column, room: Seats) -> Seats:
    """Return which requests are accepted: each member in ``asked`` accepts the lowest scores, as many as fit."""
    order = np.lexsort((scores, asked))
    counts = np.bincount(asked, minlength=len(room))
    rank = np.arange(len(asked)) - (np.cumsum(counts) - counts)[asked[order]]
    return order[rank < room[asked[order]]]


def _exchange(held: Seats, ids: Seats, slot: int) -> None:
    """Fill a vacant position of ``slot`` when every member with room already holds it.

    The member with the fewest slots replaces another member in another slot, and the replaced one fills the vacancy.
    This is very rare, but without it some member would exceed its bound.
    """
    emptiest = int(ids[np.argmin(np.bincount(held[held != _NOBODY], minlength=IDS)[ids])])
    for owners in held:
        if emptiest in owners or _NOBODY in owners:
            continue
        for position, owner in enumerate(owners.tolist()):
            if owner not in held[slot]:
                owners[position] = emptiest
                held[slot, np.argmax(held[slot] == _NOBODY)] = owner
                return
    raise AssertionError("a member with room held every slot")


def _mixed(numbers: Column) -> Column:
    return mix64_column(numbers.ravel()).reshape(numbers.shape)
