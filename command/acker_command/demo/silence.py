"""Silence: Spark's own chatter goes to a log file, so that the demo's standard error stays readable.

Decides only where file descriptor 2 leads while the JVM starts; a JVM keeps what it was started with.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def to_file(path: Path) -> Iterator[None]:
    """Everything that is written to descriptors 1 and 2 meanwhile, by whomever, goes to ``path``; also what processes
    write that are started meanwhile, for as long as they live."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    with open(path, "ab") as file:
        for number in kept:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
