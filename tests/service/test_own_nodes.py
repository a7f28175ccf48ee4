"""The nodes of one server, with nodes in memory. ``test_registry`` has them in a real ZooKeeper."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from kazoo.exceptions import ConnectionLoss

from acker_service.core.members import Registered
from acker_service.zookeeper.own_nodes import OwnNodes, Rival

SERVER = Registered(1, "h", 7070, "0", 5, 6)
RIVAL = Registered(1, "h", 7070, "0", 8, 9)
ADDRESS_RIVAL = Registered(2, "h", 7070, "0", 8, 9)


class Stat(NamedTuple):
    czxid: int
    ephemeralOwner: int  # noqa: N815  # kazoo's name


class MemoryNodes:
    """Nodes of one session. ``fails_at``: the number of the write that gets no answer, and does not arrive."""

    session: int | None = 1

    def __init__(self) -> None:
        self.kept: dict[str, tuple[bytes, Stat]] = {}
        self.writes, self.fails_at = 0, 0

    def find(self, path: str) -> tuple[bytes, Stat] | None:
        return self.kept.get(path)

    def get(self, path: str) -> tuple[bytes, Stat]:
        return self.kept[path]

    def contents(self, folder: str) -> dict[str, tuple[bytes, Stat]]:
        found = {path.rpartition("/")[2]: each for path, each in self.kept.items() if path.startswith(f"{folder}/")}
        return dict(sorted(found.items()))

    def create(self, path: str, content: bytes, *, ephemeral: bool = False) -> None:
        self._write()
        self.kept[path] = content, Stat(self.writes, (self.session or 0) if ephemeral else 0)

    def put(self, path: str, content: bytes) -> None:
        self.create(path, content)

    def delete(self, path: str) -> None:
        self._write()
        self.kept.pop(path, None)

    def _write(self) -> None:
        self.writes += 1
        if self.writes == self.fails_at:
            raise ConnectionLoss


@pytest.fixture
def nodes() -> Any:
    return MemoryNodes()


@pytest.mark.parametrize("fails_at", [2, 3, 4])
def test_a_registration_that_was_interrupted_is_completed_by_the_next_try(nodes: Any, fails_at: int) -> None:
    nodes.create("/servers/away/1", b"away")
    nodes.fails_at = fails_at
    own = OwnNodes(nodes, SERVER)
    with pytest.raises(ConnectionLoss):
        own.claim_id()
    own.claim_id()
    assert sorted(nodes.kept) == ["/servers/ids/1", "/servers/known/1"]
    before = nodes.writes
    own.claim_id()
    assert nodes.writes == before


def test_a_registration_is_complete_also_if_an_ensemble_without_data_gives_the_same_zxid_again(nodes: Any) -> None:
    own = OwnNodes(nodes, SERVER)
    for _ in range(2):
        own.claim_id()
        assert sorted(nodes.kept) == ["/servers/ids/1", "/servers/known/1"]
        nodes.kept, nodes.writes = {}, 0


def test_an_interrupted_registration_looks_again_for_a_server_that_was_quicker(nodes: Any) -> None:
    own = OwnNodes(nodes, SERVER)
    get = nodes.get

    def interrupted(path: str) -> Any:
        raise ConnectionLoss

    nodes.get = interrupted
    with pytest.raises(ConnectionLoss):
        own.claim_id()
    nodes.get = get
    # The node of the other server was created just before, and was not listed yet.
    nodes.kept["/servers/ids/2"] = ADDRESS_RIVAL.dump(), Stat(0, 2)
    with pytest.raises(Rival):
        own.claim_id()
    assert sorted(nodes.kept) == ["/servers/ids/2"]


def test_a_registration_is_made_again_in_a_new_session(nodes: Any) -> None:
    own = OwnNodes(nodes, SERVER)
    own.claim_id()
    nodes.session = 2
    own.claim_id()
    assert nodes.kept["/servers/ids/1"][1].ephemeralOwner == 2
    nodes.kept["/servers/ids/1"] = RIVAL.dump(), Stat(0, 3)
    with pytest.raises(Rival):
        own.claim_id()
