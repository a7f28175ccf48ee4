"""What a server process has of the operating system: signals, threads, memory, lines of log. Knows no acker."""
