"""The acker's server: a pure core (``core.shard``) and adapters for gRPC, HTTP, ZooKeeper and the state file.

Import the modules; this package re-exports nothing.
"""
