"""Placement: which members hold which slots of a batch, the same in every process and every language.

Decides the members of a view, the members that a batch lives on, and the replicas of each slot (acker.proto, chapter 2,
has the steps; vectors.json has placements) and nothing else: pure integers, no floats, no ``hash()``. A server has a
*seat* by its id. A table says which seats hold which slots while every seat is taken; what the table gives to empty
seats goes to members that have room.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import MASK, SLOT_SHIFT, SLOTS, Column, check_column, mix64_column

# The greatest id is below this, so that a table of seats stays small: number the servers 0, 1, 2 ...
IDS = 1024
SPREAD = 8
# No member holds more than 21/20 of the mean, rounded up.
_OVER, _UNDER = 21, 20

# An epoch is one number, so that epochs compare as numbers do: below these bits what ZooKeeper counts, above them the
# incarnation of the ensemble that counts it.
_ENSEMBLE_SHIFT = 64

Seats = npt.NDArray[np.int64]
Replicas = npt.NDArray[np.uint16]

_NOBODY = -1
_REFUSED = np.uint64(MASK)


def epoch_of(ensemble: int, number: int) -> int:
    """The epoch ``number`` of an ensemble, both uint64. Every epoch of a later ensemble is greater."""
    return ensemble << _ENSEMBLE_SHIFT | number


def parts_of(epoch: int) -> tuple[int, int]:
    """The ensemble of ``epoch``, and its number there."""
    return divmod(epoch, 1 << _ENSEMBLE_SHIFT)


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A server in a view. ``generation``: uint64, another one where it came back without its state.

    Raises ValueError for an id outside 0 to 1023, a generation outside 64 bits and an empty address.
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
            raise ValueError(f"member {self.id}: address {self.address!r} is empty or no text; give host:port")


@dataclass(frozen=True, slots=True)
class View:
    """The members at an epoch (``epoch_of``), ascending by id whatever order they were given in; there may be none.

    Raises ValueError for a negative epoch and for two members of one id.
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
    """Which members of a view hold which slots of a batch; pickles to two kilobytes a replica, and the members.

    ``members``: those that the batch lives on, ascending by id. ``replicas``: uint16[1024, R], for each slot the
    indices into ``members`` of its replicas, in order and distinct; not to be written into. ``seats``: for each seat
    the index of its member, -1 where it is empty; :func:`place_seats` makes the same placement of them anywhere.
    """

    epoch: int
    members: tuple[Member, ...]
    replicas: Replicas
    seats: tuple[int, ...] = ()

    def slots_of(self, index: int) -> bytes:
        """The slots of ``members[index]``, 1024 bits: slot s is bit ``s % 8``, from the lowest, of byte ``s // 8``."""
        return np.packbits((self.replicas == index).any(axis=1), bitorder="little").tobytes()

    def replicas_of(self, root_ids: Column) -> Replicas:
        """Indices into ``members`` of the replicas of each of ``root_ids: uint64[n]``: uint16[n, R]."""
        check_column("root_ids", root_ids)
        found: Replicas = self.replicas[mix64_column(root_ids) >> np.uint64(SLOT_SHIFT)]
        return found


def place(view: View, session: int, number: int, replicas: int, spread: int = SPREAD) -> Placement:
    """Place a batch on at most ``spread`` members of ``view``, each slot on ``replicas`` of them.

    No member holds more slots than :func:`slots_at_most`. ``session`` and ``number`` of the batch decide which members
    hold it where the view has more of them than ``spread``. Raises ValueError where there are fewer members, or a
    smaller ``spread``, than ``replicas``. The first placing on so many seats makes their table, 0.1 to 0.4 ms a seat.
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
    """Return the placement that follows from who sits where (None: nobody): steps 2 to 4 of :func:`place`."""
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
    """How many slots each of so many members holds at most: 1.05 x their mean of 1024 x replicas / members, rounded up.

    Rounded up, as a slot is whole: 1.05 x the mean of 200 members is 5.376, and with 5 each some slots had no member.
    """
    return min(SLOTS, -(-_OVER * SLOTS * replicas // (_UNDER * members)))


def _by_id(ids: Seats) -> Seats:
    """Who sits where, by id: int64[greatest id + 1], ``_NOBODY`` where a seat is empty."""
    seated = np.full(int(ids[-1]) + 1, _NOBODY, np.int64)
    seated[ids] = ids
    return seated


def _drawn(ids: Seats, session: int, number: int, spread: int) -> Seats:
    """Who sits where, drawn for one batch: int64[spread]. A member that joins replaces at most one of them."""
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
    """Which seats hold which slots while every seat is taken: int64[1024, replicas].

    Each seat that is added takes from the fullest: their counts differ by one at most, and nothing moves but to it.
    """
    held = [list(range(replicas)) for _ in range(SLOTS)]
    counts = [SLOTS] * replicas
    for seat in range(replicas, seats):
        most, least = -(-SLOTS * replicas // (seat + 1)), SLOTS * replicas // (seat + 1)
        # First what is above the most that a seat may hold now, then whatever this seat still lacks.
        counts.append(0)
        order = np.argsort(_scores(seat)).tolist()
        _take(seat, held, counts, order, most, sum(max(0, count - most) for count in counts))
        _take(seat, held, counts, order, least, least - counts[seat])
    table = np.array(held, np.int64)
    table.setflags(write=False)
    return table


def _take(seat: int, held: list[list[int]], counts: list[int], order: list[int], bound: int, lacking: int) -> None:
    """Give ``seat`` as many replicas as are ``lacking``, in order, of each slot's fullest if above ``bound``."""
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
    """How little a seat wants each slot: uint64[1024], the least first."""
    return mix64_column(np.arange(seat * SLOTS + 1, (seat + 1) * SLOTS + 1, dtype=np.uint64))


def _fill(held: Seats, ids: Seats) -> None:
    """Give what is vacant in ``held`` to members with room, in rounds: each slot asks, and members take the best."""
    room = slots_at_most(len(ids), held.shape[1]) - np.bincount(held[held != _NOBODY], minlength=IDS)[ids]
    asking, stuck = np.flatnonzero((held == _NOBODY).any(axis=1)), []
    # Another score than the table's: what a seat did not take has a bad one of those with it.
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
    """Which of those that ask are taken: of each member that is ``asked``, as many as it has room for, least first."""
    order = np.lexsort((scores, asked))
    counts = np.bincount(asked, minlength=len(room))
    rank = np.arange(len(asked)) - (np.cumsum(counts) - counts)[asked[order]]
    return order[rank < room[asked[order]]]


def _exchange(held: Seats, ids: Seats, slot: int) -> None:
    """Fill a vacancy of a ``slot`` that all with room hold already: the emptiest replaces somebody elsewhere.

    So rare that it has to be made up to be seen, and only then does the bound of each member hold without exception.
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
