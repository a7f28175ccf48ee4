"""Rivals: two programs that a Python user might write instead of the acker, for XOR, completion and expiry.

One is a dict behind gRPC with a call per record, whose reply says whether the root is complete. The other is Redis with
a Lua function and a call per batch. Neither knows identities, batches, leases or confirmations, so a retry breaks both.
"""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.uint64]

RECORD = struct.Struct("<QQ?")
METHOD = "/Rival/Update"
CALLS_IN_FLIGHT = 100
BATCHES_IN_FLIGHT = 8
EXPIRY_S = 30.0

# Keys are raw root ids. A value holds the ack val and whether the init was seen. The ack val is in two halves, since
# Lua's numbers are doubles. A completed root goes to a list that the source pops. A key that expires by itself notifies
# nobody, so a source that wants an answer for every root needs the deadlines in a sorted set. Without the set
# (`told` 0) keys just vanish.
LUA = """
local is_init, updates, expiry_ms, told = ARGV[1] == "1", ARGV[2], ARGV[3], ARGV[4] == "1"
local done, born = {}, {}
for i = 1, #updates, 16 do
  local key = string.sub(updates, i, i + 7)
  local low, high = struct.unpack("<I4I4", updates, i + 8)
  local seen, known = is_init and 1 or 0, redis.call("GET", key)
  if known then
    local l, h, s = struct.unpack("<I4I4B", known)
    low, high = bit.bxor(low, l), bit.bxor(high, h)
    if low < 0 then low = low + 4294967296 end
    if high < 0 then high = high + 4294967296 end
    if s == 1 then seen = 1 end
  end
  if seen == 1 and low == 0 and high == 0 then
    redis.call("DEL", key)
    done[#done + 1] = key
  else
    local value = struct.pack("<I4I4B", low, high, seen)
    if told then redis.call("SET", key, value)
    elseif is_init or not known then redis.call("SET", key, value, "PX", expiry_ms)
    else redis.call("SET", key, value, "KEEPTTL") end
    if is_init then born[#born + 1] = key end
  end
end
if told then
  local clock = redis.call("TIME")
  local deadline = clock[1] * 1000 + math.floor(clock[2] / 1000) + expiry_ms
  for i = 1, #born, 1000 do
    local scored = {}
    for k = i, math.min(i + 999, #born) do
      scored[#scored + 1] = deadline
      scored[#scored + 1] = born[k]
    end
    redis.call("ZADD", "deadlines", unpack(scored))
  end
  for i = 1, #done, 1000 do redis.call("ZREM", "deadlines", unpack(done, i, math.min(i + 999, #done))) end
end
if #done > 0 then redis.call("RPUSH", "outcomes", table.concat(done)) end
return "ok"
"""


def per_record_updates_per_s(messages: Sequence[tuple[bool, Column, Column]]) -> float:
    """Return updates per second of the dict, with pipelined calls. ``messages``: (is init, roots, vals)."""
    with _per_record_server() as address, grpc.insecure_channel(address) as channel:
        update = channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=bytes)
        records = [
            RECORD.pack(root, val, is_init)
            for is_init, roots, vals in messages
            for root, val in zip(roots.tolist(), vals.tolist(), strict=True)
        ]
        started, done, in_flight = time.perf_counter(), 0, []
        for record in records:
            in_flight.append(update.future(record))
            if len(in_flight) >= CALLS_IN_FLIGHT:
                done += len(in_flight.pop(0).result())
        done += sum(len(call.result()) for call in in_flight)
        elapsed = time.perf_counter() - started
    if done * 4 != len(records):
        raise AssertionError(f"{done} roots completed of {len(records) // 4}")
    return len(records) / elapsed


def redis_updates_per_s(messages: Sequence[tuple[bool, Column, Column]], *, told: bool = True) -> float | None:
    """Return updates per second of Redis with LUA, a call per message; None if redis-server is not installed.

    Every few calls the source pops the completed roots. ``told``: deadlines are in a sorted set, so that the source
    could learn of expired roots.
    """
    with _redis() as connection:
        if connection is None:
            return None
        sha = connection.call(b"SCRIPT", b"LOAD", LUA.encode())
        expiry, mode = str(int(EXPIRY_S * 1000)).encode(), b"1" if told else b"0"
        blobs = [(b"1" if is_init else b"0", np.stack(columns, axis=1).tobytes()) for is_init, *columns in messages]
        started, done = time.perf_counter(), 0
        for first in range(0, len(blobs), BATCHES_IN_FLIGHT):
            batch = blobs[first : first + BATCHES_IN_FLIGHT]
            for kind, blob in batch:
                connection.send(b"EVALSHA", sha, b"0", kind, blob, expiry, mode)
            connection.send(b"LPOP", b"outcomes", b"1000")
            for _ in batch:
                connection.receive()
            done += sum(len(blob) // 8 for blob in connection.receive_many())
        elapsed = time.perf_counter() - started
    updates = sum(len(roots) for _, roots, _ in messages)
    if done * 4 != updates:
        raise AssertionError(f"{done} roots completed of {updates // 4}")
    return updates / elapsed


def redis_version() -> str:
    """Return the version that `redis-server --version` prints, or "not installed"."""
    path = shutil.which("redis-server")
    return "not installed" if path is None else subprocess.check_output([path, "--version"], text=True).split()[2]


def serve_per_record() -> None:
    """Serve the dict behind gRPC. Prints its port first, and never returns."""
    ledger: dict[int, tuple[int, bool, float]] = {}

    def update(content: bytes, context: grpc.ServicerContext) -> bytes:
        root, val, is_init = RECORD.unpack(content)
        known, seen, deadline = ledger.get(root, (0, False, 0.0))
        val, seen = known ^ val, seen or is_init
        if seen and not val:
            ledger.pop(root, None)
            return b"\1"
        ledger[root] = (val, seen, time.monotonic() + EXPIRY_S if is_init else deadline)
        return b""

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"Update": grpc.unary_unary_rpc_method_handler(update)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Rival", handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


@contextmanager
def _per_record_server() -> Iterator[str]:
    command = [sys.executable, "-c", "from benchmarks.rivals import serve_per_record; serve_per_record()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


class _Redis:
    """A connection to Redis, with the part of its protocol that a function call needs."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._reader = self._socket.makefile("rb")

    def call(self, *words: bytes) -> bytes:
        self.send(*words)
        return self.receive()

    def send(self, *words: bytes) -> None:
        parts = [b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)]
        self._socket.sendall(b"".join(parts))

    def receive(self) -> bytes:
        line = self._reader.readline()
        if line[:1] != b"$":
            raise RuntimeError(f"redis answered {line!r}")
        return self._reader.read(int(line[1:]) + 2)[:-2]

    def receive_many(self) -> list[bytes]:
        """Return an array of strings, empty for nil."""
        line = self._reader.readline()
        if line[:1] != b"*":
            raise RuntimeError(f"redis answered {line!r}")
        return [self.receive() for _ in range(int(line[1:]))]

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


@contextmanager
def _redis() -> Iterator[_Redis | None]:
    path = shutil.which("redis-server")
    if path is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/socket"
        command = [path, "--port", "0", "--unixsocket", place, "--save", "", "--appendonly", "no", "--dir", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                connection = _connected(place, process)
                yield connection
                connection.close()
            finally:
                process.kill()


def _connected(path: str, process: subprocess.Popen[bytes]) -> _Redis:
    while process.poll() is None:
        try:
            return _Redis(path)
        except OSError:
            time.sleep(0.01)
    raise RuntimeError(f"redis-server ended with {process.returncode}")
