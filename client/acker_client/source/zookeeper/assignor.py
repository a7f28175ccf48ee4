"""Assignors: decide which consumer of a group gets which partition. Pure.

*range* works exactly as in old Kafka. For each topic it sorts partitions by number and consumers as strings. Each
consumer gets an equal stretch of partitions, and the first consumers get one more if there is a remainder. *sticky*
moves as few partitions as it can, but consumers with the same topics get equal shares, give or take one partition. Both
assignors depend only on their arguments, so that all consumers that see the same state compute the same shares.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

# The topics of each consumer.
Subscriptions = Mapping[str, Collection[str]]
# The partitions of each consumer, in order.
Shares = dict[str, list[str]]
# (all partitions, subscriptions, current owners) -> the share of each consumer.
Assignor = Callable[[Iterable[str], Subscriptions, Mapping[str, str]], Shares]

_NUMBER = re.compile("([0-9]+)")


def split(partition: str) -> tuple[str, str]:
    """Return the topic and the rest of a partition's name: ("orders", "3") for "orders/3". A Kinesis shard has no
    topic, so its topic is ""."""
    topic, _, number = partition.rpartition("/")
    return (topic, number) if topic and number else ("", partition)


def in_order(partitions: Iterable[str]) -> list[str]:
    """Sort partitions by topic, then by the rest of the name, with 9 before 10. Removes duplicates."""
    return sorted(set(partitions), key=lambda each: (_natural(split(each)[0]), _natural(split(each)[1]), each))


def range_shares(partitions: Iterable[str], subscriptions: Subscriptions, owners: Mapping[str, str]) -> Shares:
    """Share each topic out in stretches. For P partitions and C consumers, let q = P // C and r = P % C. The share
    of consumer i starts at partition q * i + min(i, r). It has q partitions, and one more if i < r. Ignores ``owners``.
    """
    shares: Shares = {consumer: [] for consumer in subscriptions}
    for topic, its_partitions in _by_topic(partitions).items():
        consumers = _consumers_of(topic, subscriptions)
        if not consumers:
            continue
        each, more = divmod(len(its_partitions), len(consumers))
        for i, consumer in enumerate(consumers):
            start = each * i + min(i, more)
            shares[consumer] += its_partitions[start : start + each + (i < more)]
    return shares


def sticky_shares(partitions: Iterable[str], subscriptions: Subscriptions, owners: Mapping[str, str]) -> Shares:
    """Let each consumer keep the partitions that it owns, up to the size of its share. Give the rest, in order, to
    consumers with fewer. Consumers that own the most partitions get the larger shares, so that no partition
    moves without need."""
    shares: Shares = {consumer: [] for consumer in subscriptions}
    by_consumers: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for topic, its_partitions in _by_topic(partitions).items():
        by_consumers[tuple(_consumers_of(topic, subscriptions))] += its_partitions
    for consumers, their_partitions in sorted(by_consumers.items()):
        if consumers:
            for consumer, share in _sticky(their_partitions, consumers, owners).items():
                shares[consumer] = in_order([*shares[consumer], *share])
    return shares


ASSIGNORS: Mapping[str, Assignor] = {"range": range_shares, "sticky": sticky_shares}


def _sticky(partitions: list[str], consumers: Iterable[str], owners: Mapping[str, str]) -> Shares:
    kept: Shares = {consumer: [] for consumer in consumers}
    for partition in partitions:
        if owners.get(partition) in kept:
            kept[owners[partition]].append(partition)
    each, more = divmod(len(partitions), len(kept))
    by_owned = sorted(kept, key=lambda consumer: (-len(kept[consumer]), consumer))
    sizes = {consumer: each + (i < more) for i, consumer in enumerate(by_owned)}
    shares = {consumer: kept[consumer][: sizes[consumer]] for consumer in kept}
    taken = {partition for share in shares.values() for partition in share}
    left = iter([partition for partition in partitions if partition not in taken])
    for consumer in sorted(shares):
        shares[consumer] += [next(left) for _ in range(sizes[consumer] - len(shares[consumer]))]
    return shares


def _by_topic(partitions: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for partition in in_order(partitions):
        found[split(partition)[0]].append(partition)
    return found


def _consumers_of(topic: str, subscriptions: Subscriptions) -> list[str]:
    return sorted(consumer for consumer, topics in subscriptions.items() if topic in topics)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(_NUMBER.split(name))]
