"""The plain API: the client that a program holds, and what it has in each process."""
