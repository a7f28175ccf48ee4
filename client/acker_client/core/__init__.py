"""What a client decides without a server, a socket or a thread: pure."""
