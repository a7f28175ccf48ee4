"""One conversation with one server: its channel, the greeting, and trying until there is an answer."""
