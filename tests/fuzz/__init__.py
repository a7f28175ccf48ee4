"""Fuzzing: damaged input for everything that reads bytes from outside, against rules that share no code with ours.

``targets`` lists the readers. ``mutations`` damages valid content. ``python -m tests.fuzz`` runs any number of inputs.
"""
