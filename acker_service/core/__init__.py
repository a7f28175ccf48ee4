"""Core: the pure part of the server: all data, and what every call does to it. No socket, thread, clock or protobuf.

Entry point: ``shard.Shard``, with one method for each call of the API.
"""
