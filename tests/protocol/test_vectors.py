"""Our arithmetic matches the test vectors that implementations in other languages use."""

from __future__ import annotations

import numpy as np

from acker_protocol import ids, messages, reports, wire
from acker_protocol.placement import Member, View, place
from acker_protocol.v1 import acker_pb2 as pb
from tests.vectors import PATH, apply_of, protocol

VECTORS = protocol()


def test_mix64_and_its_inverse_follow_the_vectors() -> None:
    for vector in VECTORS["mix64"]:
        assert ids.mix64(vector["value"]) == vector["mixed"]
        assert ids.unmix64(vector["mixed"]) == vector["value"]


def test_mix64_is_the_finaliser_of_splitmix64() -> None:
    # The first output of SplitMix64 seeded with 0, as published with it.
    assert ids.mix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


def test_columns_follow_the_vectors() -> None:
    values = np.array([vector["value"] for vector in VECTORS["mix64"]], np.uint64)
    mixed = np.array([vector["mixed"] for vector in VECTORS["mix64"]], np.uint64)
    np.testing.assert_array_equal(ids.mix64_column(values), mixed)
    np.testing.assert_array_equal(ids.unmix64_column(mixed), values)


def test_names_hash_as_in_the_vectors() -> None:
    for vector in VECTORS["hash64"]:
        assert ids.hash64(vector["name"]) == vector["hash"]


def test_roots_their_first_edges_and_slots_follow_the_vectors() -> None:
    for vector in VECTORS["roots"]:
        root = ids.root_id(vector["base"], vector["number"])
        assert (root, ids.edge0(root), ids.slot(root)) == (vector["root"], vector["edge0"], vector["slot"])
        column = ids.root_ids(vector["base"], np.array([vector["number"]], np.uint64))
        assert column.tolist() == [vector["root"]]
        assert ids.edge0_column(column).tolist() == [vector["edge0"]]
        assert ids.numbers_of(vector["base"], column).tolist() == [vector["number"]]


def test_edges_of_children_follow_the_vectors() -> None:
    for vector in VECTORS["edges"]:
        operator_hash = ids.hash64(vector["operator"])
        child = ids.child_edge(vector["edge"], operator_hash, vector["ordinal"], vector["digest"])
        assert child == vector["child"]


def test_identities_follow_the_vectors() -> None:
    for vector in VECTORS["identities"]:
        consumed = sum(ids.identity_term(root, edge) for root, edge in vector["consumed"])
        assert ids.identity_of(vector["operator"], consumed) == (vector["high"], vector["low"])


def test_digests_and_slots_of_reports_follow_the_vectors() -> None:
    for vector in VECTORS["reports"]:
        message = apply_of(vector)
        assert reports.digest(message.entries) == vector["digest"]
        assert [ids.slot(root) for root in message.entries.root_ids.tolist()] == vector["slots"]


def test_reports_travel_as_the_bytes_of_the_vectors() -> None:
    for vector in VECTORS["reports"]:
        content = bytes.fromhex(vector["message"])
        assert wire.encode(apply_of(vector)).SerializeToString(deterministic=True) == content
        decoded = wire.decode(messages.Apply, pb.ApplyRequest.FromString(content))
        assert wire.encode(decoded).SerializeToString(deterministic=True) == content


def test_reports_of_the_vectors_are_in_wire_order() -> None:
    for vector in VECTORS["reports"]:
        mixed = ids.mix64_column(apply_of(vector).entries.root_ids)
        assert np.all(mixed[1:] > mixed[:-1])


def test_placements_follow_the_vectors() -> None:
    for vector in VECTORS["placements"]:
        view = View(1, tuple(Member(each, 1, f"server-{each}:7070") for each in vector["ids"]))
        placed = place(view, vector["session"], vector["number"], vector["replicas"], vector["spread"])
        assert [member.id for member in placed.members] == vector["members"]
        assert placed.replicas.ravel().tolist() == list(bytes.fromhex(vector["indices"]))


def test_the_examples_in_the_text_are_placed_so() -> None:
    text = PATH.with_name("acker.proto").read_text()
    for members, spread, said in (
        ((0, 1, 3), 8, "members 0, 1 and 3, R = 2, spread 8: slots 0 to 3 are placed on "),
        (range(6), 4, "members 0 to 5, R = 2, spread 4, session 7, number 9: slots 0 to 3 on "),
    ):
        placed = place(View(1, tuple(Member(each, 1, "any") for each in members)), 7, 9, 2, spread)
        slots = [" ".join(str(placed.members[index].id) for index in row) for row in placed.replicas[:4].tolist()]
        assert f"{said}{', '.join(slots)}\n" in text
