"""Kinesis: the lines as records of a stream, in moto's server.

The partition key of a record is ``line:path``. The verifier identifies a record by its shard and sequence
number, not by this key.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.source import Kinesis
from acker_command.demo import DemoError
from acker_command.demo.corpus import Ints
from acker_command.demo.inputs import DemoInput

STREAM = "lines"
SHARDS = 3
RECORDS_PER_CALL_MAX = 500
KEY_MAX = 256
IDLE_S = 0.1


class KinesisLines(DemoInput):
    """A shard has the lines whose keys fall into its range."""

    packages = ("boto3", "moto", "flask", "flask_cors")
    install = "pip install 'acker[kinesis]' 'moto[kinesis]' flask flask-cors"
    # moto takes some thousand records a second.
    records_max = 5_000
    place = f"a stream of {SHARDS} shards (moto's mock of Kinesis)"
    columns = (
        "data AS value",
        "substr(partition_key, instr(partition_key, ':') + 1) AS path",
        "bigint(substring_index(partition_key, ':', 1)) AS line",
    )

    def begin(self, exits: ExitStack) -> None:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        exits.callback(server.stop)
        self.url = "http://{}:{}".format(*server.get_host_and_port())
        self._record_at: dict[tuple[str, str], int] = {}
        client = self.session().client("kinesis", endpoint_url=self.url)
        client.create_stream(StreamName=STREAM, ShardCount=SHARDS)
        entries = map(_entry, self.text.lines())
        while some := list(islice(entries, RECORDS_PER_CALL_MAX)):
            for given in client.put_records(StreamName=STREAM, Records=some)["Records"]:
                self._record_at[given["ShardId"], given["SequenceNumber"]] = len(self._record_at)

    def source(self, **options: Any) -> Kinesis:
        return Kinesis(STREAM, endpoint_url=self.url, session=self.session(), stop="end", idle_s=IDLE_S, **options)

    def records(self, origins: pa.RecordBatch) -> Ints:
        places = zip(*(origins[name].to_pylist() for name in ("shard", "sequence_number")), strict=True)
        return np.array([self._record_at[place] for place in places], np.int64)

    def is_at_end(self) -> bool:
        """Return whether the last record of every shard is done."""
        saved, last_of = self.saved(), dict(list(self._record_at))
        return all(saved.get(shard, {"mark": {}})["mark"].get("after") == last for shard, last in last_of.items())

    def session(self) -> Any:
        """Return a session with credentials, so that it looks for none on this machine."""
        import boto3

        return boto3.Session("demo", "demo", region_name="us-east-1")


def _entry(at: tuple[str, int, bytes]) -> dict[str, Any]:
    path, line, content = at
    key = f"{line}:{path}"
    if len(key) > KEY_MAX:
        raise DemoError(f"--source kinesis: {path}: a key has at most {KEY_MAX} characters; give shorter paths")
    return {"Data": content, "PartitionKey": key}
