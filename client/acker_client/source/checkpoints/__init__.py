"""Checkpoints: up to where a source is done, in one JSON file. ``head`` checks what was read, whatever the store."""
