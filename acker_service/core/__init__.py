"""Core: the pure part of the server, without socket, thread, clock or protobuf.

Holds all data, and decides what each call does.

Entry point: ``shard.Shard``, with one method for each call of the API.
"""
