"""Checkpoints: how far a source is done. ``content`` says what is in one, ``head`` holds the checks for all stores."""
