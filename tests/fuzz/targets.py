"""Targets: everything that reads bytes from outside, what may come of damaged bytes, and what must not.

A target raises its own error for bytes that it cannot read. Whatever it accepts has to keep the rules of its format,
which are written here a second time, from the documents and without the code that is tested.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acker_client.cluster.handed_on import HEADER, taken_up
from acker_client.cluster.published import Published
from acker_client.cluster.published import decode as decode_published
from acker_client.pins import Pin
from acker_client.pins import decode as decode_pins
from acker_client.pins import encode as encode_pins
from acker_client.source.checkpoints.checkpoint_file import CheckpointFile
from acker_client.source.checkpoints.content import digest_of
from acker_client.source.errors import CheckpointError
from acker_client.source.kafka.offset_metadata import CommitMetadata, NewerVersion, RunId
from acker_client.source.records.dead_letter import DeadLetter
from acker_client.source.records.input import Answered, Committed
from acker_client.source.records.ranges import Ranges
from acker_client.source.zookeeper.znodes import registration, topics_of
from acker_protocol import wire
from acker_protocol.ids import SLOTS
from acker_protocol.messages import (
    Apply,
    Entries,
    Hello,
    Identity,
    InitScope,
    Limits,
    OpenBatch,
    Pins,
    Settle,
    Settlement,
    Watch,
)
from acker_protocol.placement import Member, Placement, View, place
from acker_protocol.v1 import acker_pb2 as pb
from acker_service.access.tokens import parse as parse_tokens
from acker_service.config import Config
from acker_service.core.members import (
    Away,
    Registered,
    cluster_of,
    disagreement,
    ensemble_of,
    loaded,
    new_config,
    renewed,
)
from acker_service.core.parts import json_column
from acker_service.core.shard import Shard
from acker_service.state.saved_state import restored
from acker_service.state.state_file import DIGEST_BYTES, StateDir, StateError
from tests.fuzz.mutations import BYTES, JSON, PROTOBUF, Mutate, mutated
from tests.service.conversation import Conversation


class WronglyAccepted(AssertionError):
    """Bytes that a target took, although its format forbids them."""


@dataclass(frozen=True)
class Target:
    """One reader. ``valid``: contents that it accepts. ``read``: returns whether it accepts a content, raises
    :class:`WronglyAccepted`, and anything else for a crash. ``weight``: its share of all inputs."""

    name: str
    valid: Sequence[bytes]
    mutations: Sequence[Mutate]
    read: Callable[[bytes], bool]
    weight: int

    def draw(self, draw: random.Random) -> bytes:
        """Return a valid content with a few changes."""
        return mutated(draw, draw.choice(self.valid), self.valid, self.mutations)


def targets(folder: Path) -> list[Target]:
    """Return all targets. Those that read files write them into ``folder``."""
    return [
        *_requests(),
        Target("anchors", _ANCHORS, JSON, _read_anchors, 20),
        Target("dead letters", _letters(), JSON, _read_letter, 8),
        Target("commits", _commits(), JSON, _read_commit, 8),
        Target("pins", [_PINS.encode()], JSON, _read_pins, 4),
        Target("pins of a source", [zlib.decompress(_PUBLISHED.encode())], JSON, _read_published, 4),
        Target(
            "nodes of servers",
            [_SERVER.dump(), Away(_SERVER.member, 9).dump(), new_config("ab", 7)],
            JSON,
            _read_node,
            4,
        ),
        Target("nodes of consumers", [registration(["orders"], 5)], JSON, _read_registration, 2),
        Target("tokens", [_TOKENS], BYTES, _read_tokens, 4),
        _checkpoint(folder, is_signed=False),
        _checkpoint(folder, is_signed=True),
        _state(folder, is_signed=False),
        _state(folder, is_signed=True),
    ]


def _require(holds: object, rule: str) -> None:
    if not holds:
        raise WronglyAccepted(rule)


# -- requests of the wire


def _requests() -> Iterator[Target]:
    some = np.array([3, 5, 9], np.uint64)
    kinds = np.array([1, 3, 4], np.uint8)
    reports = [
        Apply(Identity(7, 1, True), 11, Entries(some, some)),
        Apply(Identity(7, 2), 11, Entries(some, some, kinds, np.zeros(1, np.uint32), ("no price",))),
        Apply(Identity(7, 3), 11, Entries(some, some), InitScope(7, 1, np.array([[0, 4], [6, 9]], np.uint64))),
    ]
    limits = Limits(30_000, 5_000)
    requests: dict[type[Any], tuple[list[Any], Callable[[Any], None], int]] = {
        Apply: (reports, _check_report, 30),
        OpenBatch: ([OpenBatch(7, 1, 100, 50, True, limits, bytes(128))], _check_open_batch, 5),
        Settle: ([Settle(7, 1, Settlement.DONE)], lambda sent: _require(sent.settlement in (1, 2), "settlement"), 5),
        Watch: ([Watch("orders", 7, 60_000, limits, 0, 10, 100, pins=b"[]")], lambda sent: None, 5),
        Hello: ([Hello(2, "0.2.0")], lambda sent: None, 3),
        Pins: ([Pins(7)], lambda sent: None, 2),
    }
    for kind, (valid, check, weight) in requests.items():
        contents = [wire.encode(each).SerializeToString() for each in valid]
        yield Target(kind.__name__, contents, PROTOBUF, _reader(kind, check), weight)


def _reader(kind: type[Any], check: Callable[[Any], None]) -> Callable[[bytes], bool]:
    def read(content: bytes) -> bool:
        try:
            message = wire.decode(kind, content)
        except wire.Malformed:
            return False
        # Protobuf itself has parsed it, and is believed.
        sent = getattr(pb, f"{kind.__name__}Request").FromString(content)
        check(sent)
        again = wire.encode(message)
        _require(again.SerializeToString() == wire.encode(wire.decode(kind, again)).SerializeToString(), "round trip")
        return True

    return read


def _check_report(sent: Any) -> None:
    count = len(sent.root_ids) // 8
    fails = sum(bool(kind & 2) for kind in sent.kinds)
    _require(sent.HasField("identity"), "identity: needed")
    _require(len(sent.root_ids) == len(sent.ack_vals) == 8 * count, "root_ids, ack_vals: fixed64[n]")
    _require(len(sent.kinds) in (0, count) and all(0 < kind < 8 for kind in sent.kinds), "kinds: uint8[n] of 3 bits")
    _require(len(sent.reason_ids) == 4 * fails, "reason_ids: uint32, one for each fail")
    ids = [int.from_bytes(sent.reason_ids[4 * i : 4 * i + 4], "little") for i in range(fails)]
    _require(all(each < len(sent.reasons) for each in ids), "reason_ids: index into reasons")
    if sent.HasField("inits"):
        _require(not sent.kinds and not sent.reason_ids, "inits have no kinds")
        words = sent.inits.covered
        _require(len(words) % 16 == 0, "covered: pairs")
        bounds = [int.from_bytes(words[i : i + 8], "little") for i in range(0, len(words), 8)]
        _require(all(a <= b for a, b in zip(bounds[::2], bounds[1::2], strict=True)), "covered: start to stop")


def _check_open_batch(sent: Any) -> None:
    _require(len(sent.slots) in (0, 128), "slots: 128 bytes, or none")


# -- anchors, pins, commits, letters, tokens

_ANCHORS = [
    b"1[[0,7]]\n" + bytes(range(1, 33)),
    b"1[[0,18446744073709551615],[3,9]]\n" + bytes(range(1, 17)),
]


def _read_anchors(content: bytes) -> bool:
    try:
        (found,) = taken_up([(HEADER, content)])
    except ValueError:
        return False
    head, _, pairs = content.partition(b"\n")
    _require(head[:1] == b"1" and len(pairs) % 16 == 0, "a version, and whole anchors")
    for replica in json.loads(head[1:]):
        _require(type(replica) is list and len(replica) == 2, "a replica is a pair")
        _require(all(type(each) is int and 0 <= each < 2**64 for each in replica), "of an id and a generation")
    words = [int.from_bytes(pairs[i : i + 8], "little") for i in range(0, len(pairs), 8)]
    _require([*sum(found.anchors, ())] == words and 0 not in words[::2], "the anchors as they are, and no root 0")
    return True


_PINS = encode_pins(
    [Pin(7, 1, 100, 50, Placement(3, (Member(0, 9, "localhost:7070"),), np.zeros((SLOTS, 1), np.uint16)))]
)


def _read_pins(content: bytes) -> bool:
    try:
        found = decode_pins(content)
    except ValueError:
        return False
    roots = np.arange(1, 5, dtype=np.uint64)
    for pin in found:
        pin.has(roots)
        _require(pin.placement.replicas_of(roots).max() < len(pin.placement.members), "each slot has a server")
    _require(encode_pins(decode_pins(encode_pins(found))) == encode_pins(found), "round trip")
    return True


_PLACEMENT = place(View(3, (Member(0, 9, "a:1"), Member(2, 8, "b:1"))), 7, 1, 2)
_PUBLISHED = Published(
    7, 3, 100, 250, (Pin(7, 4, 150, 50, _PLACEMENT), Pin(7, 5, 200, 50, _PLACEMENT)), {5: frozenset({2})}
)


def _read_published(content: bytes) -> bool:
    try:
        found = decode_published(7, zlib.compress(content))
    except ValueError:
        return False
    roots = np.arange(1, 5, dtype=np.uint64)
    found.has(roots)
    for pin in found.pins:
        pin.has(roots)
        pin.placement.replicas_of(roots)
        found.is_out(pin.batch, 0)
    again = decode_published(7, found.encode())
    _require(again.encode() == found.encode(), "round trip")
    return True


_SERVER = Registered(3, "10.0.0.7", 7070, "0.2.0", 9, 8)


def _read_node(content: bytes) -> bool:
    found, _ = loaded(Registered, {"3": content})
    away, _ = loaded(Away, {"3": content})
    disagreement(content)
    _require(0 <= ensemble_of(content) < 2**64, "an incarnation has 64 bits")
    renewed(content)
    for each in (*found, *away):
        _require(type(each).load("3", each.dump()) == each, "round trip")
    return bool(found or away or cluster_of(content))


def _read_registration(content: bytes) -> bool:
    return all(isinstance(topic, str) for topic in topics_of(content)) and bool(topics_of(content))


def _commits() -> list[bytes]:
    done = Ranges.from_runs([100, 3, 5, 200, 1])
    written = CommitMetadata("orders", "host:1", done, Answered(106, 1), "ab12", RunId(3, "0f"))
    return [
        written.to_text(4096).encode(),
        CommitMetadata("orders", "host:1", Ranges.below(100)).to_text(4096).encode(),
    ]


def _read_commit(content: bytes) -> bool:
    try:
        found = CommitMetadata.from_text(content.decode("latin-1"), 100)
    except NewerVersion:
        return False
    if found is None:
        return False
    _require(found.source == "orders", "the checksum holds the source")
    _require(found.done.to_runs() in ([100], [100, 3, 5, 200, 1]), "the checksum holds the ranges")
    _require(min(found.answered.records, found.answered.dead) >= 0, "answered counts")
    return True


def _letters() -> list[bytes]:
    letter = DeadLetter("orders", "KeyError: 'sku'", 3, 1, 1.5e9, 1.6e9, {"path": "a.jsonl", "line": 7}, b'{"a": 1}')
    columns = DeadLetter(
        "orders", "no", 1, 0, 1.5e9, 1.6e9, {"key": 1}, {"a": None, "b": [1.5]}, None, "a int", {"c": 2}
    )
    binary = DeadLetter("orders", "no", 0, 9, 1.5e9, 1.6e9, {}, b"\xff\x00", 99)
    return [each.to_json().encode() for each in (letter, columns, binary)]


def _read_letter(content: bytes) -> bool:
    try:
        letter = DeadLetter.of_json(content.decode(errors="surrogatepass"))
    except ValueError:
        return False
    _require(math.isfinite(letter.first_s) and math.isfinite(letter.last_s), "times")
    _require(DeadLetter.of_json(letter.to_json()).to_json() == letter.to_json(), "round trip")
    return True


_TOKENS = (
    b"# callers\nsha256:" + b"0f" * 32 + b" client,operator ops\ncertificate:jobs.example client jobs etl\n"
    b"namespace etl memory=64MiB max_pending=1000 sources=5\n"
)


def _read_tokens(content: bytes) -> bool:
    try:
        found = parse_tokens(content.decode())
    except ValueError:
        return False
    for shown in found.by_hash:
        _require(len(shown) == 64 and not set(shown) - set("0123456789abcdef"), "a hash is 64 digits of hex")
    for caller in (*found.by_hash.values(), *found.by_certificate.values()):
        _require(caller.name and caller.roles, "a caller has a name and a role")
        _require(caller.namespace in ("", *found.quotas), "a namespace is declared")
        _require(not caller.namespace or caller.roles == {"client"}, "a caller of a namespace is a client")
    _require("" not in found.by_certificate, "a certificate has a name")
    for name, quotas in found.quotas.items():
        _require(name and name.isascii() and not set(name) & set(' "{}\\\n'), "a namespace has a plain name")
        given = (quotas.memory_bytes, quotas.max_pending, quotas.sources, quotas.connections)
        _require(all(each is None or each > 0 for each in given), "quotas are positive")
    return True


# -- checkpoint and state


def _checkpoint(folder: Path, *, is_signed: bool) -> Target:
    """``is_signed``: the digest fits the damaged content, as if a faulty acker had written it."""
    store = CheckpointFile(folder / f"checkpoint-{is_signed}")
    store.source, store.kind = "orders", "files"
    done = {"a": Committed(Ranges.from_runs([5, 2, 3]), {"bytes": 9, "digest": "ab"}, Answered(8, 1))}
    store.save(done)
    valid = [store.path.read_bytes()]
    signed: Any = json.loads(valid[0])

    def read(content: bytes) -> bool:
        if is_signed:
            content = _with_digest(content)
        store.path.write_bytes(content)
        try:
            found = store.load()
        except CheckpointError:
            return False
        if not is_signed:
            _require(json.loads(content)["partitions"] == signed["partitions"] and found == done, "the digest holds it")
        store.save(found)
        _require(store.load() == found, "round trip")
        return True

    return Target("checkpoint, signed again" if is_signed else "checkpoint", valid, JSON, read, 2)


def _with_digest(content: bytes) -> bytes:
    try:
        saved = json.loads(content)
        key = "progress" if saved["version"] == 1 else "partitions"
        return json.dumps(saved | {"digest": digest_of(saved.get(key))}).encode()
    except (KeyError, RecursionError, TypeError, ValueError):
        return content


_CONVERSATION = """watch lines lease 30s
open 1 of lines: a b c timeout 5s
init 1 as r1: a=x b=y
report r2: a^x b!disk full
open 2 of lines: d e
init 2 as r3: d=x e=y
report r4: d^x e^y
settle 2 done"""


def _state(folder: Path, *, is_signed: bool) -> Target:
    """``is_signed``: the checksum fits the damaged content, as if a faulty server had written it."""
    conversation = Conversation()
    for line in _CONVERSATION.splitlines():
        conversation.say(line)
    dumped = [
        (name, {key: each.copy() for key, each in arrays.items()}) for name, arrays in conversation.shard.dump(0.0)
    ]
    # The same again in a namespace.
    parts = [*dumped, ("namespace", {"json": json_column({"name": "etl"})}), *dumped]
    place = folder / f"state-{is_signed}"
    state_dir = StateDir(str(place))
    state_dir.write(parts)
    state_dir.close()
    whole = (place / "acker.state").read_bytes()

    def read(content: bytes) -> bool:
        (place / "acker.state").write_bytes(content)
        state_dir = StateDir(str(place))
        try:
            stored = state_dir.read()
            if stored is None:
                return False
            shards = restored(stored, Config(), incarnation=2, now=1.0)
        except (StateError, ValueError):
            return False
        finally:
            state_dir.close()
        if not is_signed:
            _require(content == whole, "the checksum holds every byte")
        for shard in shards.values():
            _check_shard(shard)
        return True

    if not is_signed:
        return Target("state", [whole], BYTES, read, 2)
    return Target("state, signed again", [whole], JSON, lambda content: read(_with_checksum(content)), 1)


def _with_checksum(content: bytes) -> bytes:
    body = content[:-DIGEST_BYTES]
    return body + hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()


def _check_shard(shard: Shard) -> None:
    """Check that a restored shard goes on: it can be dumped and ticked, and counts nothing below zero."""
    stats = shard.stats
    _require(min(stats.pending, stats.reserved, stats.unconfirmed, stats.orphans) >= 0, "counts")
    list(shard.dump(2.0))
    shard.tick(10_000.0)
    _require(shard.stats.pending == 0, "all roots have ended")
