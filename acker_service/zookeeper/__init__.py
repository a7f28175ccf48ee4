"""ZooKeeper: the server's registration and its view of the cluster. Entry point: ``registry.Registry``.

Only ``registry`` imports kazoo.
"""
