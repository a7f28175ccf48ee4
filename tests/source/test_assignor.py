"""Assignments of partitions, compared with old Kafka's formula and with simple reference implementations."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.source.zookeeper.assignor import ASSIGNORS, in_order, range_shares, split, sticky_shares

CONSUMERS = st.lists(st.sampled_from([f"g_host-{i}" for i in (1, 2, 10, 11, 3)]), min_size=1, unique=True)
TOPICS = ("a", "b", "")


def partitions_of(topic: str, count: int) -> list[str]:
    return [f"{topic}/{i}" if topic else f"shardId-{i:012d}" for i in range(count)]


@st.composite
def groups(draw: st.DrawFn, most: int = 12) -> tuple[list[str], dict[str, frozenset[str]]]:
    partitions = [each for topic in TOPICS for each in partitions_of(topic, draw(st.integers(0, most)))]
    topics = st.frozensets(st.sampled_from(TOPICS))
    consumers = draw(CONSUMERS)
    return draw(st.permutations(partitions)), {each: draw(topics) for each in draw(st.permutations(consumers))}


def test_range_assigns_exactly_as_old_kafka() -> None:
    partitions = [f"t/{i}" for i in range(11)]
    subscriptions = {each: ["t"] for each in ("c2", "c10", "c1")}
    # Consumers are sorted as strings, partitions as numbers. Each of 3 consumers gets 3 of 11 partitions, and the first
    # two get one more.
    assert range_shares(partitions, subscriptions, {}) == {
        "c1": ["t/0", "t/1", "t/2", "t/3"],
        "c10": ["t/4", "t/5", "t/6", "t/7"],
        "c2": ["t/8", "t/9", "t/10"],
    }


def test_range_goes_topic_by_topic_so_the_first_consumers_get_the_remainder_of_each() -> None:
    shares = range_shares(["a/0", "b/0", "c/0"], {"x": "abc", "y": "abc"}, {})
    assert shares == {"x": ["a/0", "b/0", "c/0"], "y": []}


def test_range_gives_some_consumers_nothing_when_there_are_too_few_partitions() -> None:
    assert range_shares(["t/0"], {"x": ["t"], "y": ["t"]}, {}) == {"x": ["t/0"], "y": []}


@given(groups())
def test_range_agrees_with_a_simple_reference(group: tuple[list[str], dict[str, frozenset[str]]]) -> None:
    partitions, subscriptions = group
    expected: dict[str, set[str]] = {consumer: set() for consumer in subscriptions}
    for topic in TOPICS:
        names = partitions_of(topic, sum(split(each)[0] == topic for each in partitions))
        readers = sorted(consumer for consumer, topics in subscriptions.items() if topic in topics)
        sizes = dict.fromkeys(readers, 0)
        for k in range(len(names) if readers else 0):
            sizes[readers[k % len(readers)]] += 1
        for reader in readers:
            expected[reader] |= set(names[: sizes[reader]])
            names = names[sizes[reader] :]
    assert {consumer: set(share) for consumer, share in range_shares(partitions, subscriptions, {}).items()} == expected


@pytest.mark.slow
@pytest.mark.parametrize("assignor", ASSIGNORS)
@given(group=groups(), data=st.data())
def test_every_partition_with_readers_goes_to_exactly_one_of_them(
    assignor: str, group: tuple[list[str], dict[str, frozenset[str]]], data: st.DataObject
) -> None:
    partitions, subscriptions = group
    owners = data.draw(st.dictionaries(st.sampled_from(partitions or ["x"]), st.sampled_from([*subscriptions, "dead"])))
    shares = ASSIGNORS[assignor](partitions, subscriptions, owners)
    dealt = [partition for share in shares.values() for partition in share]
    assert sorted(dealt) == sorted(
        each for each in partitions if any(split(each)[0] in topics for topics in subscriptions.values())
    )
    for consumer, share in shares.items():
        assert {split(each)[0] for each in share} <= subscriptions[consumer]
        assert share == in_order(share)


@given(st.integers(0, 6), st.integers(1, 3), st.data())
def test_sticky_moves_no_more_than_the_best_of_all_balanced_assignments(
    count: int, consumers: int, data: st.DataObject
) -> None:
    partitions, names = [f"t/{i}" for i in range(count)], [f"c{i}" for i in range(consumers)]
    owners = data.draw(st.dictionaries(st.sampled_from(partitions or ["x"]), st.sampled_from([*names, "dead"])))
    shares = sticky_shares(partitions, dict.fromkeys(names, ("t",)), owners)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1

    def moves(owner_of: dict[str, str]) -> int:
        return sum(owners.get(each) in names and owners[each] != owner for each, owner in owner_of.items())

    balanced = [
        moves(dict(zip(partitions, dealt, strict=True)))
        for dealt in product(names, repeat=count)
        if max(dealt.count(each) for each in names) - min(dealt.count(each) for each in names) <= 1
    ]
    assert moves({each: consumer for consumer, share in shares.items() for each in share}) == min(balanced)


@given(groups(), st.data())
def test_sticky_keeps_an_assignment_that_is_in_place(
    group: tuple[list[str], dict[str, frozenset[str]]], data: st.DataObject
) -> None:
    partitions, subscriptions = group
    shares = sticky_shares(partitions, subscriptions, {})
    owners = {each: consumer for consumer, share in shares.items() for each in share}
    assert sticky_shares(partitions, subscriptions, owners) == shares


def test_split_gives_a_name_without_a_topic_the_empty_topic() -> None:
    assert [split(each) for each in ("orders/3", "shardId-0", "a/b/0", "/3", "orders/")] == [
        ("orders", "3"),
        ("", "shardId-0"),
        ("a/b", "0"),
        ("", "/3"),
        ("", "orders/"),
    ]
