"""Which servers a client considers gone: an old view says nothing about servers that joined later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from acker_client import Settings
from acker_client.cluster.membership import Cluster
from acker_client.errors import Unavailable
from acker_client.rpc.side_by_side import InTurn
from acker_protocol.messages import PROTOCOL_VERSION, Hello, HelloReply, ListedMember, ViewReply
from acker_protocol.placement import Member, View, epoch_of, place


@dataclass
class Registered:
    """Servers by address: the generation of each, and the view (epoch, generation by id) that it answers with."""

    now: float = 0.0
    is_mute: bool = False
    generations: dict[str, int] = field(default_factory=dict)
    views: dict[str, tuple[int, Mapping[int, int]]] = field(default_factory=dict)

    def start(self, number: int, generation: int) -> Member:
        """Start a server, or restart it without its state, and update the views of all servers."""
        self.generations[f"s{number}:1"] = generation
        epoch = 1 + max((epoch for epoch, _ in self.views.values()), default=0)
        listed = {int(address[1]): generation for address, generation in self.generations.items()}
        self.views = dict.fromkeys(self.generations, (epoch, listed))
        return Member(number, generation, f"s{number}:1")

    def connect(self, address: str) -> Any:
        return One(self, address)

    def cluster(self) -> Cluster:
        settings = Settings(tuple(self.generations))
        return Cluster(settings, self.connect, lambda: self.now, self.sleep, lambda: 0.5, InTurn())

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class One:
    servers: Registered
    address: str

    def hello(self, hello: Hello, timeout_s: float) -> HelloReply:
        if self.servers.is_mute:
            raise Unavailable("mute")
        generation, epoch = self.servers.generations[self.address], self.servers.views[self.address][0]
        return HelloReply(PROTOCOL_VERSION, "1", generation, 1 << 20, 64, int(self.address[1]), generation, epoch=epoch)

    def view(self, timeout_s: float) -> ViewReply:
        epoch, listed = self.servers.views[self.address]
        members = tuple(ListedMember(Member(id, generation, f"s{id}:1")) for id, generation in listed.items())
        return ViewReply(1, epoch, members)


@pytest.fixture
def servers() -> Registered:
    servers = Registered()
    servers.start(1, 10)
    servers.start(2, 20)
    return servers


def test_a_server_of_a_batch_that_came_after_the_view_that_a_client_knows_is_not_gone(servers: Registered) -> None:
    client = servers.cluster()
    client.view(client.patience())
    newcomer = servers.start(3, 30)
    assert not client.gone(newcomer)
    servers.now += 2.0
    client.refresh()
    assert not client.gone(newcomer)


def test_a_server_that_a_view_asked_for_since_does_not_list_is_gone(servers: Registered) -> None:
    client = servers.cluster()
    client.view(client.patience())
    stranger = Member(3, 30, "s3:1")
    assert not client.gone(stranger)
    servers.now += 2.0
    client.refresh()
    assert client.gone(stranger) == "its server is gone"


def test_a_server_that_left_and_came_back_is_not_gone_for_a_batch_that_was_placed_on_it_since(
    servers: Registered,
) -> None:
    client = servers.cluster()
    view, back = client.view(client.patience()), Member(2, 20, "s2:1")
    assert back in view.members
    client.hear_of(place(view, 1, 1, 2))
    del servers.generations["s2:1"]
    servers.start(1, 10)
    while not client.gone(back):
        servers.now += 2.0
        client.callers.at("s1:1").greet(client.patience().deadline)
        client.refresh()
    servers.start(2, 20)
    epoch, _ = servers.views["s2:1"]
    client.hear_of(place(View(epoch, view.members), 1, 2, 2))
    assert not client.gone(back)
    servers.now += 2.0
    client.refresh()
    assert not client.gone(back)


def test_a_server_missing_from_the_newest_view_is_gone_for_earlier_batches(servers: Registered) -> None:
    client = servers.cluster()
    client.hear_of(place(client.view(client.patience()), 1, 1, 2))
    del servers.generations["s2:1"]
    servers.start(1, 10)
    client.callers.at("s1:1").greet(client.patience().deadline)
    client.refresh()
    assert client.gone(Member(2, 20, "s2:1")) == "its server is gone"


def test_a_view_of_a_later_ensemble_is_newer_whatever_its_number_and_its_servers_have_time_to_come_back(
    servers: Registered,
) -> None:
    """ZooKeeper has lost its data, so the first views list only the servers that have registered again so far."""
    client = servers.cluster()
    view = client.view(client.patience())
    client.hear_of(place(view, 1, 1, 2))
    late = Member(2, 20, "s2:1")
    servers.views = dict.fromkeys(servers.generations, (epoch_of(7, 1), {1: 10}))
    client.callers.at("s1:1").greet(client.patience().deadline)
    assert client.view(client.patience()) == View(epoch_of(7, 1), view.members[:1])
    assert not client.gone(late)
    servers.now += client.settings.gone_after_s - 1
    assert not client.gone(late)
    # A server that a view of this ensemble listed, and a later view does not, is gone at once.
    servers.views = dict.fromkeys(servers.generations, (epoch_of(7, 2), {2: 20}))
    client.refresh()
    assert not client.gone(late)
    assert client.gone(view.members[0]) == "its server is gone"
    servers.views = dict.fromkeys(servers.generations, (epoch_of(7, 3), {1: 10}))
    client.callers.at("s2:1").greet(client.patience().deadline)
    client.refresh()
    assert client.gone(late) == "its server is gone"


def test_a_process_that_knows_a_server_from_a_batch_of_an_older_ensemble_gives_it_time_too(servers: Registered) -> None:
    client, late = servers.cluster(), Member(2, 20, "s2:1")
    client.hear_of(place(View(9, (Member(1, 10, "s1:1"), late)), 1, 1, 2))
    servers.views = dict.fromkeys(servers.generations, (epoch_of(7, 1), {1: 10}))
    client.view(client.patience())
    assert not client.gone(late)
    servers.now += client.settings.gone_after_s
    client.refresh()
    assert client.gone(late) == "its server is gone"


def test_a_server_that_came_back_is_not_confused_with_its_predecessor(servers: Registered) -> None:
    client = servers.cluster()
    client.callers.at("s2:1").greeted_once(client.patience().deadline)
    client.view(client.patience())
    back = servers.start(2, 21)
    for _ in range(3):
        assert not client.gone(back)
        client.callers.at("s2:1").greeted_once(client.patience().deadline)
        servers.now += 2.0
        client.refresh()


def test_a_server_that_was_greeted_since_and_is_another_one_is_gone(servers: Registered) -> None:
    client = servers.cluster()
    client.callers.at("s2:1").greeted_once(client.patience().deadline)
    before = Member(2, 20, "s2:1")
    assert not client.gone(before)
    servers.start(2, 21)
    client.callers.at("s2:1").connection.greet_anew()
    client.callers.at("s2:1").greeted_once(client.patience().deadline)
    assert not client.gone(before)
    client.callers.at("s2:1").greeted_once(client.patience().deadline)
    assert client.gone(before) == "its server came back without its state"


def test_after_an_outdated_view_another_server_is_asked(servers: Registered) -> None:
    stale = servers.views["s1:1"]
    servers.start(3, 30)
    servers.views["s1:1"] = stale
    client = servers.cluster()
    for address in servers.generations:
        client.callers.at(address).greeted_once(client.patience().deadline)
    assert [member.id for member in client.view(client.patience()).members] == [1, 2, 3]


def test_a_server_that_was_silent_long_ago_and_was_not_asked_since_is_not_gone() -> None:
    servers = Registered()
    servers.start(1, 10)
    servers.start(2, 20)
    servers.views = dict.fromkeys(servers.generations, (0, {}))
    client = servers.cluster()
    client.view(client.patience())
    two = Member(2, 20, "s2:1")
    servers.is_mute = True
    for _ in range(20):
        with pytest.raises(Unavailable):
            client.callers.at("s2:1").greet(client.patience(0.5).deadline)
        servers.now += 1.0
    assert client.gone(two) == "its server has not answered for 19 s"
    servers.now += 60.0
    assert not client.gone(two)
