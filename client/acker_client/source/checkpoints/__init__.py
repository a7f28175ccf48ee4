"""Checkpoints: how far a source is done, in one JSON file. ``head`` holds the checks for checkpoints of all stores."""
