"""A session with ZooKeeper, for the server's registry and for groups of sources. Needs kazoo.

Entry point: ``session.KazooSession``.
"""
