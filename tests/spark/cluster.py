"""A standalone Spark cluster in the driver's own JVM, like ``local-cluster``: a master and two workers.

The workers have two loopback addresses, because Spark runs a speculative copy only on another host than the original.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark import SparkContext

HOSTS = ("127.0.0.1", "127.0.0.2")


def start_cluster(folder: Path, memory_mb: int = 700) -> str:
    """Start the cluster and return its master's URL. Call this before any SparkContext exists."""
    SparkContext._ensure_initialized()
    gateway: Any = SparkContext._gateway
    conf = gateway.jvm.org.apache.spark.SparkConf(False)
    deploy = gateway.jvm.org.apache.spark.deploy
    master = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)
    address = str(master._1().address().toSparkURL())
    addresses = gateway.new_array(gateway.jvm.java.lang.String, 1)
    addresses[0] = address
    none = gateway.jvm.scala.Option.empty()
    for number, host in enumerate(HOSTS):
        work = str(folder / host)
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, memory_mb, addresses, work, gateway.jvm.scala.Option.apply(number), conf, none
        )
    return address
