"""Reports: inits, acks and fails of one process, buffered, folded and sent to the servers of their roots.

Entry points: ``state.ClientState`` (the buffer) and ``sending.Sending``. ``accumulator`` and ``replication`` are pure.
"""
