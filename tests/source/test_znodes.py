"""Paths and content of a group's nodes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from acker_client.source.zookeeper.znodes import GroupPaths, consumer_id, name_of, registration, topics_of

PATHS = GroupPaths("orders")
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def test_the_nodes_are_where_consumers_of_old_kafka_have_them() -> None:
    consumer = consumer_id("orders", "host.example", 1_700_000_000_000, 0xBEEF)
    assert consumer == "orders_host.example-1700000000000-0000beef"
    assert PATHS.id(consumer) == f"/consumers/orders/ids/{consumer}"
    assert PATHS.owner("clicks/3") == "/consumers/orders/owners/clicks/3"
    assert PATHS.offset("clicks/3") == "/consumers/orders/offsets/clicks/3"
    assert PATHS.owner("shardId-000000000007") == "/consumers/orders/owners/@/shardId-000000000007"


def test_a_registration_says_version_subscription_pattern_and_timestamp() -> None:
    content = registration(["b", "a"], 17)
    assert json.loads(content) == {
        "version": 1,
        "subscription": {"a": 1, "b": 1},
        "pattern": "static",
        "timestamp": "17",
    }
    assert topics_of(content) == {"a", "b"}


def test_other_content_is_a_registration_without_topics() -> None:
    assert [topics_of(each) for each in (b"", b"[]", b'{"subscription":3}', b"\xff")] == [frozenset()] * 4


@given(NAMES)
def test_no_name_of_a_partition_makes_a_path_that_zookeeper_refuses_and_each_comes_back(partition: str) -> None:
    path = PATHS.offset(partition)
    *_, topic, number = path.split("/")
    assert path == f"{PATHS.offsets}/{topic}/{number}"
    assert name_of(topic, number) == partition
    for element in (topic, number):
        assert element not in ("", ".", "..")
        assert element.isascii()
        assert element.isprintable()


@given(NAMES, NAMES)
def test_two_partitions_never_share_a_node(one: str, two: str) -> None:
    assert (PATHS.owner(one) == PATHS.owner(two)) == (one == two)
