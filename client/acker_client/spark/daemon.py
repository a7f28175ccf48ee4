"""PySpark's worker daemon, which forks Python workers. It loads the imports of a tracked step before it forks.

Saves each new worker one or two seconds of imports, which matters where tasks fail. It saves each task 70 ms: PySpark
collects garbage after every task, and the collector skips the objects of these imports. It saves each task another 40
ms of waiting, because workers acknowledge the first bytes of a task at once. To use it, set
``spark.python.daemon.module`` to ``acker_client.spark.daemon``. It never imports gRPC, because a channel and its
threads must be created in the worker, after the fork.
"""

from __future__ import annotations

import gc
import importlib
import socket
import sys
from typing import Any

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


def acknowledge_at_once(daemon: Any) -> None:
    """Make the workers of ``daemon`` (``pyspark.daemon``) acknowledge the first bytes of each task at once.

    The JVM sends a small task in two writes. By Nagle's algorithm, the second one waits for the acknowledgement of the
    first, which the system of a worker that has just sent results delays by 40 ms.
    """
    work = daemon.worker

    def worker(connection: socket.socket, *rest: Any) -> Any:
        # The worker calls this for each task. Only Linux has the option, which lasts until the worker sends results.
        if connection.family != socket.AF_UNIX and hasattr(socket, "TCP_QUICKACK"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return work(connection, *rest)

    daemon.worker = worker


if __name__ == "__main__":
    from pyspark import daemon

    load()
    acknowledge_at_once(daemon)
    daemon.manager()
