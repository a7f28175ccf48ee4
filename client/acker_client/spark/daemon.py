"""Daemon: PySpark's own, which forks Python workers, with what a tracked step imports loaded before the fork.

A new worker is then ready at once instead of after a second or two of imports, which matters where tasks fail.
Set ``spark.python.daemon.module`` to ``acker_client.spark.daemon`` to use it. It never imports gRPC: a channel, and the
threads of it, belong to one worker, after the fork.
"""

from __future__ import annotations

import importlib
import sys

LOADED = ("numpy", "pandas", "pyarrow", "pyarrow.compute", "pyspark.worker", "acker_client.spark")


def load() -> None:
    """Import what workers will need. What is missing is left for the worker to complain of."""
    for name in LOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    if "grpc" in sys.modules:
        raise RuntimeError("gRPC was imported before the fork of Python workers: import it inside tasks only")


if __name__ == "__main__":
    from pyspark.daemon import manager

    load()
    manager()
