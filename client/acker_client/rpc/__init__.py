"""Calls to one server: channel, handshake, retries and deadlines.

Entry points: ``caller.Caller`` (one call, retried within its budget), ``retrying`` (reports, retried until accepted),
``side_by_side`` (the same call to several servers). ``transport`` is the only client module that imports grpc.
"""
