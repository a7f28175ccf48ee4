"""Command: ``acker demo``, its options and its exit status.

0: everything that was promised held. 1: something did not. 2: the demo could not run; the text says why. 130: Ctrl-C.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from acker_command.demo import DemoError
from acker_command.demo.inputs import SOURCES

NEEDED = ("rich", "pyspark", "pyarrow", "pandas", "numba")
INSTALL = "pip install 'acker[all]'"


@click.command(
    "demo", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, no_args_is_help=False
)
@click.option("--source", type=click.Choice(SOURCES), default="files", show_default=True, help="Kind of input.")
@click.option("--input", "patterns", multiple=True, metavar="PATH", help="Files, folders or quoted globs; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")
@click.option("--no-faults", is_flag=True, help="Break nothing.")
@click.option("--records", type=click.IntRange(1), metavar="N", help="Only the first N lines.")
@click.option("--batch-records", type=click.IntRange(1), metavar="N", help="Lines of a batch; default: by the input.")
@click.option("--servers", type=click.IntRange(1, 9), default=1, show_default=True, help="Several: under a ZooKeeper.")
@click.option("--replicas", type=click.IntRange(1, 8), metavar="R", help="Servers of a record; default: 2 of several.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which records the faults strike.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the output (Parquet, dead letters, checkpoint, logs) in DIR, which must be new or empty.",
)
def demo(as_json: bool, **options: Any) -> None:
    """Count words of real text in Spark, break things on purpose, and check every answer.

    Starts a server in a process of its own and a local Spark, reads lines (by default every .py file of this Python's
    standard library), splits them into words, drops the short ones, joins them with a small table, counts them and
    writes Parquet. Meanwhile records raise, a worker process is killed, a task runs twice, a write fails, the server is
    restarted, and killed. (With --servers 3 a ZooKeeper and three servers run, each record on two of them: one is
    killed, one added, one drained, and all are restarted one after the other.) At each ACK the rows committed under
    that root id are compared with what the line must give, derived from the file in plain Python.

    With --source kafka the lines are first put into a topic of librdkafka's mock cluster; with kinesis into a stream of
    moto's server, which is slow: 5,000 lines unless you give --records; with frame into files that a streaming query
    reads, whose foreachBatch is tracked. That cluster, server or query runs on this machine and ends with the
    demo.

    \b
    records        lines of the input
    acked          records whose final answer was ACKED
    dead_lettered  records that were given up, with a reason: poison, or not UTF-8
    lost           records without a final answer; must be 0
    false_acks     ACKs at which the committed rows were not what the line must give; must be 0
    failed         outcomes FAILED: the record raised, and was replayed or given up
    timed_out      outcomes TIMED_OUT
    interrupted    outcomes LOST: the batch was abandoned or the server was lost, and the record was replayed
    replayed       emissions beyond the first of each record
    records_per_s  acked and dead-lettered records, by the seconds from the first batch to the last answer

    Exits with status 0 only if every record is acked or dead-lettered, none is lost, and none is falsely acked. Also,
    the words of all acked roots must have the same counts as in their lines, and the checkpoint must be at its end.
    """
    check_packages(NEEDED, INSTALL)
    # gRPC would log each connection that the demo cuts. It reads this when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from acker_command.demo.inputs import input_of
    from acker_command.demo.job import DemoJob, JobOptions
    from acker_command.demo.result import show

    source, servers, replicas = (options[name] for name in ("source", "servers", "replicas"))
    check_packages(input_of(source).packages, input_of(source).install)
    if (replicas or 0) > servers:
        raise click.UsageError(f"--replicas {replicas}: there are {servers} servers; give --servers {replicas} or more")
    signal.signal(signal.SIGTERM, _stop)
    try:
        with ExitStack() as exits:
            job = DemoJob(JobOptions(**options), exits)
            result = job.run()
    except DemoError as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        click.echo("\nacker demo: stopped; server and Spark are down", err=True)
        sys.exit(130)
    if as_json:
        click.echo(json.dumps(result))
    else:
        show(result, job.verifier.examples)
    sys.exit(0 if result["passed"] else 1)


def check_packages(needed: Sequence[str], install: str) -> None:
    """Raise an error of one line if one of the packages is missing."""
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise click.ClickException(f"the demo needs {', '.join(missing)}: {install}")


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
