"""The server's process: signals, threads, memory and log lines. Imports nothing of the acker."""
