"""ZooKeeper: groups of sources that share an input's partitions, and checkpoints in ZooKeeper.

Entry points: ``group.ZooKeeperGroup``, ``offset_store.ZooKeeperOffsets``. ``connection`` is the only module that
imports kazoo. ``assignor``, ``rebalance``, ``znodes`` and ``offsets`` are pure.
"""
