"""``python -m acker_command``: the same as the console script ``acker``."""

from __future__ import annotations

from acker_command.cli import main

main()
