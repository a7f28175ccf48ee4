"""One conversation with one server: its channel, the greeting, and calls that are tried until they are answered."""
