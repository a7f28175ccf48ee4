"""Local conf: the settings of every local session that tests start."""

from __future__ import annotations

from pathlib import Path


def local_conf(folder: Path) -> dict[str, str]:
    """``folder``: for what Spark writes down."""
    return {
        # Many small jobs: compiling them well costs more than it gives back.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # Spark takes whoever knocks first at a port of its own for itself: it may be a client that looks for a dead
        # server.
        "spark.python.unix.domain.socket.enabled": "true",
        # Once shuffle files are lost, the executor of a local session cannot register any more: each heartbeat fails,
        # and after the sixtieth, ten minutes on, Spark ends the JVM with status 56.
        "spark.executor.heartbeat.maxFailures": "100000",
        "spark.local.dir": str(folder),
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
