"""ZooKeeper: the server's registration and its view of the cluster. Entry point: ``registry.Registry``.

``cluster_config`` decides which cluster the chroot belongs to, ``own_nodes`` whether this server's id is free, and
``registry`` when to ask and what the answers mean for the view. Only ``nodes`` imports kazoo.
"""
