"""Decoding: bytes of an input become lines, and lines become Arrow columns. Runs in executors."""
