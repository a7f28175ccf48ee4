"""State: the file that a server writes when it stops and reads when it starts. Entry point: ``state_file.StateDir``."""
