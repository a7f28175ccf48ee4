"""Kinesis: the lines as records of a stream, in the server that moto brings along.

A record's partition key says which line it is; who checks goes by the sequence numbers that the stream has given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.source import Kinesis
from acker_command.demo.corpus import Corpus
from acker_command.demo.errors import DemoError
from acker_command.demo.expected import Ints
from acker_command.demo.inputs.demo_input import SourceInput, SourceOptions
from acker_command.demo.inputs.embedded import embedded

STREAM = "lines"
SHARDS = 3
REGION = "us-east-1"
RECORDS_PER_CALL_MAX = 500
KEY_MAX = 256
IDLE_S = 0.1

_PROGRAM = """
import logging, os, sys
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.read()
os._exit(0)
"""


class KinesisLines(SourceInput):
    """A shard has the lines whose keys fall into its range."""

    packages = ("boto3", "moto", "flask", "flask_cors")
    install = "pip install 'acker[kinesis]' 'moto[kinesis]' flask flask-cors"
    # moto takes and gives some thousand records a second.
    records_max = 5_000
    columns = (
        "data AS value",
        "substr(partition_key, instr(partition_key, ':') + 1) AS path",
        "bigint(substring_index(partition_key, ':', 1)) AS line",
    )

    def __init__(self, text: Corpus, folder: Path, batch_records: int) -> None:
        super().__init__(text, folder, batch_records)
        self._url = ""
        self._record_at: dict[tuple[str, str], int] = {}
        self._last_of: dict[str, str] = {}

    @property
    def place(self) -> str:
        return f"a stream of {SHARDS} shards (moto's mock of Kinesis)"

    def begin(self, exits: ExitStack) -> None:
        self._url = exits.enter_context(embedded(_PROGRAM, self.folder / "kinesis.log"))
        client = self._session().client("kinesis", endpoint_url=self._url)
        client.create_stream(StreamName=STREAM, ShardCount=SHARDS)
        entries = self._entries()
        while some := list(islice(entries, RECORDS_PER_CALL_MAX)):
            self._put(client, some)

    def source(self, options: SourceOptions) -> Kinesis:
        session = self._session()
        return Kinesis(STREAM, endpoint_url=self._url, session=session, stop="end", idle_s=IDLE_S, **options)

    def records(self, origins: pa.RecordBatch) -> Ints:
        shards, numbers = (origins.column(name).to_pylist() for name in ("shard", "sequence_number"))
        return np.array([self._record_at[place] for place in zip(shards, numbers, strict=True)], np.int64)

    def is_at_end(self) -> bool:
        """Whether of every shard the last record that was put there is done."""
        done = {shard: each["mark"].get("after") for shard, each in self._saved().items()}
        return all(done.get(shard) == last for shard, last in self._last_of.items())

    def _session(self) -> Any:
        """Credentials that look for nothing on this machine."""
        import boto3

        return boto3.Session("demo", "demo", region_name=REGION)

    def _entries(self) -> Iterator[dict[str, Any]]:
        for path, line, content in self.text.lines():
            key = f"{line}:{path}"
            if len(key) > KEY_MAX:
                raise DemoError(f"--source kinesis: {path}: a key has at most {KEY_MAX} characters; give shorter paths")
            yield {"Data": content, "PartitionKey": key}

    def _put(self, client: Any, entries: list[dict[str, Any]]) -> None:
        answer = client.put_records(StreamName=STREAM, Records=entries)
        if answer["FailedRecordCount"]:
            raise DemoError(f"the mock of Kinesis did not take {answer['FailedRecordCount']:,} of the lines")
        for given in answer["Records"]:
            self._record_at[given["ShardId"], given["SequenceNumber"]] = len(self._record_at)
            self._last_of[given["ShardId"]] = given["SequenceNumber"]
