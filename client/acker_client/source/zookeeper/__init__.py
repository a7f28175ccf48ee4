"""ZooKeeper: groups of sources that share an input's partitions, and checkpoints in ZooKeeper.

Entry points: ``group.ZooKeeperGroup``, ``offset_store.ZooKeeperOffsets``. ``connection`` is the only module that
imports kazoo. ``assignor``, ``rebalance``, ``znodes`` and ``offsets`` are pure.
"""

from acker_client.source.zookeeper.group import ZooKeeperGroup
from acker_client.source.zookeeper.offset_store import ZooKeeperOffsets

__all__ = ["ZooKeeperGroup", "ZooKeeperOffsets"]
