"""The console script ``acker``."""
