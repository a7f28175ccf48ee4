"""PySpark's worker daemon, which forks Python workers. It loads the imports of a tracked step before it forks.

Saves each new worker one or two seconds of imports, which matters where tasks fail. It also saves each task 70 ms:
PySpark collects garbage after every task, and the collector skips the objects of these imports. To use it, set
``spark.python.daemon.module`` to ``acker_client.spark.daemon``. It never imports gRPC, because a channel and its
threads must be created in the worker, after the fork.
"""

from __future__ import annotations

import gc
import importlib
import sys

LOADED = ("numpy", "pandas", "pyarrow", "pyarrow.compute", "pyspark.worker", "acker_client.spark")


def load() -> None:
    """Import the modules that workers need. Hide their objects from the garbage collector.

    Skips missing modules: the worker reports them.
    """
    for name in LOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    if "grpc" in sys.modules:
        raise RuntimeError("gRPC was imported before the fork of Python workers: import it inside tasks only")
    # Must come first: garbage would be frozen too, and stay for good.
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    from pyspark.daemon import manager

    load()
    manager()
