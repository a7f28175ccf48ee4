"""Chapter 2 of acker.proto: the formulas, checked against the vectors in its text and in vectors.json."""

from __future__ import annotations

import json
import re
from typing import Any

import contract_client as ours
import pytest
from contract_client import ACK, Entry, column, edge0, fail, mix64, reset, root_of, slot, task_identity, unmix64, values
from contract_placement import defaults, place
from contract_stubs import TEXT, VECTORS, pb

CHAPTER = re.sub(r"\n// *", " ", TEXT[TEXT.index("// 2. FORMULAS") : TEXT.index("// 3. TREES")])
FIRST = 1000
ROOT = root_of(FIRST, 0)


def said(sentence: str) -> int:
    """Return the number that follows ``sentence`` in the chapter."""
    found = re.search(re.escape(sentence) + r" *=? *(0x[0-9A-F]+|\d+)", CHAPTER)
    assert found, f"the chapter does not say {sentence!r}"
    return int(found[1], 0)


def test_the_text_gives_vectors_for_mix64() -> None:
    for value in ("1", "2", "0xFFFFFFFFFFFFFFFF"):
        assert said(f"mix64({value}) =") == mix64(int(value, 0))


def test_the_text_gives_vectors_for_roots_their_slots_and_initial_edges() -> None:
    for number in range(3):
        root = said(f"root({number}) =")
        assert root == root_of(FIRST, number)
        assert said(f"{root:#018X}, of slot".replace("0X", "0x")) == slot(root)
    assert said("of slot 125, edge0 =") == edge0(ROOT)


def test_the_text_gives_vectors_for_digests() -> None:
    entries = [Entry(ROOT, edge0(ROOT))]
    assert said("digest of one ack of root(0) with its edge0 =") == ours.digest(entries)
    entries += [Entry(root_of(FIRST, 1), 5, 3, "any"), reset(root_of(FIRST, 2))]
    assert said("(kind 4) of root(2) with 0 =") == ours.digest(entries)


def test_the_text_gives_vectors_for_what_binds_those_who_work_together() -> None:
    assert said('hash64("orders.items") =') == ours.hash64("orders.items")
    edge = edge0(ROOT)
    assert said('child edge of edge0 of root(0) above, "orders.items", k = 1, d = 7:') == ours.child_edge(
        edge, "orders.items", 1, 7
    )
    identity = task_identity("orders.items", [(ROOT, edge)])
    assert said("that consumed root(0) at its edge0: high") == identity.high
    assert said(f"high {identity.high:#018X}, low".replace("0X", "0x")) == identity.low


# -- vectors.json

BESIDE = json.loads(VECTORS)


def number(text: str) -> int:
    return int(text, 16)


def test_ids_are_those_of_the_vectors() -> None:
    for vector in BESIDE["mix64"]:
        assert mix64(number(vector["value"])) == number(vector["mixed"])
        assert unmix64(number(vector["mixed"])) == number(vector["value"])
    for vector in BESIDE["hash64"]:
        assert ours.hash64(vector["name"]) == number(vector["hash"])
    for vector in BESIDE["roots"]:
        root = root_of(number(vector["base"]), number(vector["number"]))
        assert (root, slot(root), edge0(root)) == (number(vector["root"]), vector["slot"], number(vector["edge0"]))


def test_edges_and_identities_are_those_of_the_vectors() -> None:
    for vector in BESIDE["edges"]:
        parent = number(vector["edge"]), vector["operator"], number(vector["ordinal"]), number(vector["digest"])
        assert ours.child_edge(*parent) == number(vector["child"])
    for vector in BESIDE["identities"]:
        consumed = [(number(root), number(edge)) for root, edge in vector["consumed"]]
        identity = task_identity(vector["operator"], consumed)
        assert (identity.high, identity.low) == (number(vector["high"]), number(vector["low"]))


@pytest.mark.parametrize("vector", BESIDE["placements"], ids=lambda vector: vector["name"])
def test_placements_are_those_of_the_vectors(vector: dict[str, Any]) -> None:
    session, batch = number(vector["session"]), number(vector["number"])
    placed = place(vector["ids"], session, batch, vector["replicas"], vector["spread"])
    indices = [vector["members"].index(member) for row in placed for member in row]
    assert bytes(indices).hex() == vector["indices"]


def test_the_text_gives_placements_of_its_own_and_says_what_they_are_without_a_users_word() -> None:
    for ids, session, spread, sentence in (
        ([0, 1, 3], 7, 8, "members 0, 1 and 3, R = 2, spread 8: slots 0 to 3 are placed on "),
        ([0, 1, 2, 3, 4, 5], 7, 4, "members 0 to 5, R = 2, spread 4, session 7, number 9: slots 0 to 3 on "),
    ):
        shown = ", ".join(" ".join(map(str, row)) for row in place(ids, session, 9, 2, spread)[:4])
        assert sentence + shown in re.sub(" +", " ", CHAPTER)
    assert [defaults(members) for members in (1, 2, 9)] == [(1, 8), (2, 8), (2, 8)]
    assert defaults(20, replicas=12, spread=3) == (12, 12)


@pytest.mark.parametrize("vector", BESIDE["reports"], ids=lambda vector: vector["name"])
def test_whole_messages_are_those_of_the_vectors(vector: dict[str, Any]) -> None:
    there = pb.ApplyRequest.FromString(bytes.fromhex(vector["message"]))
    roots, vals = values(there.root_ids), values(there.ack_vals)
    kinds = list(there.kinds) or [ACK] * len(roots)
    texts = iter(there.reasons[index] for index in values(there.reason_ids, "I"))
    entries = [
        Entry(root, val, kind, next(texts) if kind & 2 else "")
        for root, val, kind in zip(roots, vals, kinds, strict=True)
    ]
    assert ours.fold(reversed(entries)) == entries
    identity = pb.Identity(**{name: _plain(value) for name, value in vector["identity"].items()})
    inits = vector["inits"] and pb.Inits(
        session=number(vector["inits"]["session"]),
        batch=vector["inits"]["batch"],
        covered=column(bound for pair in vector["inits"]["covered"] for bound in pair),
    )
    here = ours.message(identity, entries, entries, inits)
    assert here == there
    assert there.digest == number(vector["digest"])
    assert [slot(root) for root in roots] == vector["slots"]


def _plain(value: Any) -> Any:
    return number(value) if isinstance(value, str) else value


def test_folding_xors_ack_vals_joins_kinds_and_keeps_the_first_reason() -> None:
    entries = [Entry(ROOT, 6), fail(ROOT, "first"), Entry(ROOT, 5), fail(ROOT, "second")]
    assert ours.fold(entries) == [Entry(ROOT, 3, 3, "first")]
