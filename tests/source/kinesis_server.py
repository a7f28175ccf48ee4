"""Kinesis on loopback: moto's server in its own process, patched where it is known to differ from AWS.

Differences between moto 5.2 and AWS:

- moto moves a parent's records to its children in a split, and copies them in a merge. AWS leaves them in the parent.
- moto still writes to closed shards. AWS writes only to open ones.
- moto counts sequence numbers from 1. AWS gives out sequence numbers of 56 digits, with gaps.
- moto returns an iterator after the end of a closed shard. AWS returns none.

With ``mended=False`` the last two are not patched, as sources have to work with either. ``fail`` makes calls fail over
HTTP, because moto neither throttles nor lets iterators expire. Run as a program, this module is the server. Its first
line is its URL. It ends when its standard input ends, so at the latest with its parent process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
REGION = "eu-central-1"
# Keeps a client from looking for credentials and settings on this machine or its network.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
START = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898


class KinesisServer:
    """Context manager for the server's process, with a client for the test itself."""

    def __init__(self, *, mended: bool = True) -> None:
        self._mended = mended

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.source.kinesis_server", *([] if self._mended else ["as-it-is"])]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, "moto's server did not start"
        self.client = self.session().client("kinesis", endpoint_url=self.url)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate("")

    def session(self) -> Any:
        """Return a ``boto3.Session`` with credentials, so that it looks for none."""
        import boto3

        return boto3.Session("testing", "testing", region_name=REGION)

    def create(self, stream: str, shards: int) -> None:
        self.client.create_stream(StreamName=stream, ShardCount=shards)

    def put(self, stream: str, records: Iterable[str], shard: int | None = None) -> None:
        """Put records, each with itself as its key. ``shard``: put all of them into this shard."""
        of = {} if shard is None else {"ExplicitHashKey": self._hash_key(stream, shard)}
        waiting = [{"Data": each.encode(), "PartitionKey": each, **of} for each in records]
        for first in range(0, len(waiting), 500):
            answer = self.client.put_records(StreamName=stream, Records=waiting[first : first + 500])
            assert answer["FailedRecordCount"] == 0

    def split(self, stream: str, shard: int) -> None:
        middle = str(sum(map(int, self._range(stream, shard))) // 2)
        self.client.split_shard(StreamName=stream, ShardToSplit=_named(shard), NewStartingHashKey=middle)

    def merge(self, stream: str, first: int, second: int) -> None:
        self.client.merge_shards(StreamName=stream, ShardToMerge=_named(first), AdjacentShardToMerge=_named(second))

    def fail(self, operation: str, *codes: str) -> None:
        """Let the next calls of an operation fail, each with one of ``codes``. A code like "503" is an HTTP status with
        an empty body."""
        body = json.dumps({"operation": operation, "codes": codes}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/faults", body)).read()

    def _range(self, stream: str, shard: int) -> tuple[str, str]:
        (found,) = (
            each for each in self.client.list_shards(StreamName=stream)["Shards"] if each["ShardId"] == _named(shard)
        )
        return found["HashKeyRange"]["StartingHashKey"], found["HashKeyRange"]["EndingHashKey"]

    def _hash_key(self, stream: str, shard: int) -> str:
        return self._range(stream, shard)[0]


def _named(shard: int) -> str:
    return f"shardId-{shard:012d}"


# -- the process


class Faults:
    """Passes calls to moto, or answers them with the errors that ``/faults`` was told."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._codes: dict[str, deque[str]] = {}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/faults":
            asked = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            self._codes.setdefault(asked["operation"], deque()).extend(asked["codes"])
            start_response("200 OK", [("Content-Type", "application/json")])
            return [b"{}"]
        codes = self._codes.get(environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2])
        if not codes:
            return self._application(environ, start_response)
        code = codes.popleft()
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        status = f"{code} Trouble" if code.isdigit() else "400 Bad Request"
        body = b"" if code.isdigit() else json.dumps({"__type": code, "message": f"{code}, as asked for"}).encode()
        start_response(status, [("Content-Type", "application/x-amz-json-1.1")])
        return [body]


def mend(models: Any, *, also_the_end: bool) -> None:
    """Make moto's streams behave as AWS documents it. ``also_the_end``: also sequence numbers and ends of shards."""

    def shard_for(stream: Any, partition_key: str, explicit_hash_key: str) -> Any:
        key = (
            int(explicit_hash_key)
            if explicit_hash_key
            else int(models.md5_hash(partition_key.encode()).hexdigest(), 16)
        )
        return next(
            shard
            for shard in stream.shards.values()
            if shard.is_open and shard.starting_hash <= key <= shard.ending_hash
        )

    def keeping(reshard: Any) -> Any:
        def resharded(stream: Any, *of: Any) -> None:
            before = {name: shard.records for name, shard in stream.shards.items()}
            for shard in stream.shards.values():
                shard.records = {}
            reshard(stream, *of)
            for name, records in before.items():
                stream.shards[name].records = records

        return resharded

    numbers = iter(range(START, START + 10**15, 1_000_003))

    def put(shard: Any, partition_key: str, data: str, explicit_hash_key: str) -> str:
        number = next(numbers)
        shard.records[number] = models.Record(partition_key, data, number, explicit_hash_key)
        return str(number)

    models.Stream.get_shard_for_key = shard_for
    models.Stream.split_shard = keeping(models.Stream.split_shard)
    models.Stream.merge_shards = keeping(models.Stream.merge_shards)
    if also_the_end:
        models.Shard.put_record = put
        models.KinesisBackend.get_records = _ending(models.KinesisBackend.get_records)


def _ending(get_records: Any) -> Any:
    from moto.kinesis.utils import decompose_shard_iterator

    def ended(backend: Any, stream_arn: Any, shard_iterator: str, limit: Any) -> Any:
        iterator, records, behind_ms = get_records(backend, stream_arn, shard_iterator, limit)
        stream, name, last = decompose_shard_iterator(iterator)
        shard = backend.describe_stream(stream_arn, stream).shards[name]
        is_end = not shard.is_open and int(last) >= shard.get_max_sequence_number()
        return (None if is_end else iterator), records, behind_ms

    return ended


def main(*arguments: str) -> None:
    import logging

    from moto.kinesis import models
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    mend(models, also_the_end="as-it-is" not in arguments)
    application = Faults(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    import threading

    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
