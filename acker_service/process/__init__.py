"""The server's process: signals, threads, memory and log lines. Imports no other module of the acker."""
