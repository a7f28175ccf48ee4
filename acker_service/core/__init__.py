"""The server's core, pure: what every call means, and all that is kept. No socket, thread, clock or protobuf."""
