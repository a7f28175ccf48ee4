"""Stubs: messages and calls that protoc generates from acker.proto in this test run, in a descriptor pool of their own.

The only names of the .proto that this module knows are the name of the file and the name of the service.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor
from grpc_tools import protoc

FOLDER = Path(__file__).parents[2] / "proto"
FILE = "acker/v1/acker.proto"
TEXT = (FOLDER / FILE).read_text()
VECTORS = (FOLDER / "acker/v1/vectors.json").read_text()
SERVICE = "Acker"


def _generated() -> FileDescriptor:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "acker.descriptors"
        if protoc.main(["protoc", f"-I{FOLDER}", f"--descriptor_set_out={out}", FILE]):
            raise AssertionError(f"protoc does not take {FILE}")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    return pool.FindFileByName(FILE)


_FILE = _generated()

#: The messages of the .proto, by name: ``pb.WatchRequest(...)``.
pb = SimpleNamespace(
    **{name: message_factory.GetMessageClass(kind) for name, kind in _FILE.message_types_by_name.items()}
)
#: By enum of the .proto: its names by number.
NAMES = {name: {v.number: v.name for v in kind.values} for name, kind in _FILE.enum_types_by_name.items()}
#: The number of each enum value, by name.
NUMBERS = {name: number for kind in NAMES.values() for number, name in kind.items()}


class Stub:
    """The calls of the service as methods: ``stub.Watch(pb.WatchRequest(...), timeout=1.0)``."""

    def __init__(self, channel: grpc.Channel) -> None:
        service = _FILE.services_by_name[SERVICE]
        for method in service.methods:
            request, reply = (message_factory.GetMessageClass(kind) for kind in (method.input_type, method.output_type))
            path = f"/{service.full_name}/{method.name}"
            call: Any = channel.unary_unary(path, request.SerializeToString, reply.FromString)
            setattr(self, method.name, call)
