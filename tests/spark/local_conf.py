"""The Spark settings of every local session that tests start."""

from __future__ import annotations

from pathlib import Path


def local_conf(folder: Path) -> dict[str, str]:
    """Return the settings. Spark writes its files to ``folder``."""
    return {
        # Tests run many small jobs, for which full JIT compilation costs more than it saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # With TCP, Spark trusts the first connection to its port, which may come from a client that looks for a dead
        # server.
        "spark.python.unix.domain.socket.enabled": "true",
        # After a loss of shuffle files, the executor of a local session cannot register again, and each heartbeat
        # fails. After 60 failures (ten minutes) Spark would end the JVM with status 56.
        "spark.executor.heartbeat.maxFailures": "100000",
        "spark.local.dir": str(folder),
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
