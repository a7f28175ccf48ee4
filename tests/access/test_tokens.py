"""Tokens and roles: who may call what."""

from __future__ import annotations

import errno
import random
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.errors import Rejected
from acker_client.rpc.access import ServerAccess
from acker_client.settings import Settings
from acker_protocol.v1 import acker_pb2
from acker_service.access import roles, tokens
from acker_service.access.access import Access
from acker_service.access.files import WatchedFiles
from acker_service.access.roles import AccessDenied, Principal, Role
from acker_service.access.tokens import Tokens, TokensError
from acker_service.core.quotas import Quotas

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,12}", fullmatch=True)
SOME_ROLES = st.sets(st.sampled_from(list(Role)), min_size=1)
NS = "namespace ns memory=64MiB"
CALLS = [method.name for method in acker_pb2.DESCRIPTOR.services_by_name["Acker"].methods]


@pytest.mark.long
@given(st.dictionaries(NAMES, SOME_ROLES, max_size=5), st.text(max_size=50))
def test_a_caller_is_who_its_token_belongs_to_and_another_text_is_nobody(
    tmp_path_factory: pytest.TempPathFactory, callers: dict[str, set[Role]], other: str
) -> None:
    made = {name: tokens.new_token() for name in callers}
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text("# who may call\n\n" + "".join(f"{tokens.line_of(made[n], [*callers[n]], n)}\n" for n in callers))
    known = Tokens(str(path), lambda: 0.0)
    for name, token in made.items():
        assert known.identify(f"Bearer {token}") == Principal(name, frozenset(callers[name]))
        assert known.identify(token) is None
        assert known.identify(f"Bearer {token}x") is None
        assert known.identify(f"Bearer {tokens.hash_of(token)}") is None
    assert known.identify(f"Bearer {other}") is None
    assert known.identify(None) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sha256:12 client etl", "sha256 should be 64 digits of hex"),
        (f"md5:{'0' * 64} client etl", "should begin with sha256: or certificate:"),
        (f"sha256:{'0' * 64} admin etl", "'admin' is not a role; the roles are client, operator, scraper"),
        (f"sha256:{'0' * 64} client", "should be: sha256:HEX ROLE[,ROLE] NAME"),
        (f"sha256:{'0' * 64} client a\nsha256:{'0' * 64} client b", "line 2: the same sha256 as a; leave one"),
        (f"sha256:{'0' * 64} client a ns b", "should be: sha256:HEX ROLE[,ROLE] NAME [NAMESPACE]"),
        (f"sha256:{'0' * 64} client a ns", "line 1: no line declares ns: add `namespace ns memory=512MiB`"),
        (f"{NS}\nsha256:{'0' * 64} scraper a ns", "line 2: scraper is a role for the whole server: leave out the"),
        (f"{NS}\ncertificate:a client,operator a ns", "line 2: operator is a role for the whole server"),
        (f"{NS}\n{NS}", "line 2: a second line for namespace ns; leave one"),
        ("namespace", "'' is not the name of a namespace"),
        ("namespace a/b memory=64MiB", "'a/b' is not the name of a namespace: give 1 to 63 letters, digits"),
        ("namespace ns", "namespace ns needs memory=, such as memory=512MiB"),
        ("namespace ns sources=5", "namespace ns needs memory="),
        ("namespace ns memory=lots", "memory=lots: should be a size such as 512MiB"),
        ("namespace ns memory=64MiB sources=0", "sources=0: should be a whole number from 1 to 2,000,000,000"),
        ("namespace ns memory=64MiB sources=5 sources=6", "sources= is given twice; leave one"),
        (
            "namespace ns memory=64MiB roots=5",
            "'roots=5' is not a quota; the quotas are memory=, max_pending=, sources=",
        ),
    ],
)
def test_a_wrong_line_of_the_file_is_named(tmp_path: Path, line: str, expected: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(line)
    with pytest.raises(TokensError) as raised:
        Tokens(str(path), lambda: 0.0)
    assert expected in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_changed_file_counts_within_a_second_and_a_wrong_one_leaves_the_old_callers(tmp_path: Path) -> None:
    path, now = tmp_path / "tokens", [0.0]
    first, second = tokens.new_token(), tokens.new_token()
    path.write_text(tokens.line_of(first, [Role.CLIENT], "first"))
    known = Tokens(str(path), lambda: now[0])
    path.write_text(tokens.line_of(second, [Role.CLIENT], "the-second"))
    assert known.identify(f"Bearer {second}") is None
    now[0] += tokens.LOOK_S
    assert known.identify(f"Bearer {first}") is None
    assert known.identify(f"Bearer {second}") is not None
    for wrong in ("nonsense", None):
        path.unlink()
        if wrong is not None:
            path.write_text(wrong)
        now[0] += tokens.LOOK_S
        assert known.identify(f"Bearer {second}") is not None


def test_a_file_that_cannot_be_read_for_a_while_is_read_as_soon_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, now = tmp_path / "tokens", [0.0]
    revoked, renewed = tokens.new_token(), tokens.new_token()
    path.write_text(tokens.line_of(revoked, [Role.CLIENT], "first"))
    known = Tokens(str(path), lambda: now[0])
    path.write_text(tokens.line_of(renewed, [Role.CLIENT], "the-second"))
    with monkeypatch.context() as failing:
        failing.setattr(WatchedFiles, "read", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        for _ in range(3):
            now[0] += tokens.LOOK_S
            assert known.identify(f"Bearer {revoked}") is not None
    assert [record.getMessage() for record in caplog.records] == ["tokens_not_read"]
    now[0] += tokens.LOOK_S
    assert known.identify(f"Bearer {revoked}") is None
    assert known.identify(f"Bearer {renewed}") is not None


@given(
    st.dictionaries(NAMES, st.tuples(*(st.none() | st.integers(1, 1000) for _ in range(3))), max_size=4),
    st.randoms(use_true_random=False),
)
def test_namespaces_are_declared_in_any_order_with_any_quotas(
    declared: dict[str, tuple[int | None, ...]], chance: random.Random
) -> None:
    lines, names = [], ("max_pending", "sources", "connections")
    for namespace, numbers in declared.items():
        words = [f"{name}={number}" for name, number in zip(names, numbers, strict=True) if number is not None]
        words.append("memory=64MiB")
        chance.shuffle(words)
        lines.append(f"namespace {namespace} {' '.join(words)}")
        lines.append(tokens.line_of(namespace, [Role.CLIENT], "caller", namespace))
    chance.shuffle(lines)
    found = tokens.parse("\n".join(lines))
    assert found.quotas == {name: Quotas(64 << 20, *numbers) for name, numbers in declared.items()}
    for namespace in declared:
        caller = found.by_hash[tokens.hash_of(namespace)]
        assert caller == Principal("caller", frozenset({Role.CLIENT}), namespace)


def test_a_file_with_quotas_that_do_not_fit_leaves_the_old_callers(tmp_path: Path) -> None:
    path, now, declared = tmp_path / "tokens", [0.0], []

    def set_quotas(quotas: Mapping[str, Quotas]) -> None:
        if sum(each.memory_bytes for each in quotas.values()) > 100 << 20:
            raise ValueError("too much")
        declared.append(dict(quotas))

    path.write_text(f"{NS}\n{tokens.line_of('first', [Role.CLIENT], 'first', 'ns')}")
    known = Tokens(str(path), lambda: now[0], set_quotas)
    path.write_text(f"namespace ns memory=200MiB\n{tokens.line_of('second', [Role.CLIENT], 'second', 'ns')}")
    now[0] += tokens.LOOK_S
    assert known.identify("Bearer first") is not None
    assert known.identify("Bearer second") is None
    assert declared == [{"ns": Quotas(64 << 20)}]
    with pytest.raises(TokensError, match=f"{path}: too much"):
        Tokens(str(path), lambda: now[0], set_quotas)


def test_every_call_of_the_protocol_has_its_role() -> None:
    assert set(CALLS) - set(roles.NEEDED) == {"Drain"}
    client, operator, scraper = (Principal(role, frozenset({role})) for role in Role)
    allowed = {call: {who.name for who in (client, operator, scraper) if _may(call, who)} for call in CALLS}
    assert allowed == {
        "Hello": {"client", "operator"},
        "View": {"client", "operator"},
        **{call: {"client"} for call in ("Apply", "OpenBatch", "Settle", "Watch", "Pins")},
        "Stats": {"operator", "scraper"},
        "Drain": {"operator"},
    }


def test_without_a_file_of_tokens_everybody_may_call() -> None:
    Access(None, lambda: 0.0).check("Drain", "10.0.0.7", None)


def test_probes_are_let_in_without_a_look_at_the_file_which_may_wait_for_the_shards() -> None:
    known = Mock()
    for page in roles.OPEN:
        assert Access(known, lambda: 0.0).check(page, "10.0.0.7", "Bearer x") is None
    known.identify.assert_not_called()


def test_a_refusal_says_the_same_to_every_unknown_caller_and_is_logged_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text(tokens.line_of(tokens.new_token(), [Role.CLIENT], "etl"))
    access = Access(Tokens(str(path), lambda: 0.0), lambda: 0.0)
    said = set()
    for shown in (None, "Bearer", "Bearer x", "Basic eA==", f"Bearer {tokens.new_token()}"):
        with pytest.raises(AccessDenied) as refused:
            access.check("Apply", "10.0.0.7", shown)
        said.add(str(refused.value))
    assert len(said) == 1
    assert [record.getMessage() for record in caplog.records] == ["call_refused"]


def _may(call: str, caller: Principal) -> bool:
    try:
        roles.check(call, caller)
    except AccessDenied:
        return False
    return True


def test_a_token_file_is_read_again_when_it_changes_and_not_while_it_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("")
    access = ServerAccess("localhost:7400", Settings(("localhost:7400",), token_file=str(path)))
    with pytest.raises(Rejected, match=r"token_file: .*: it is empty"):
        access.metadata()
    for content, sent in (("first\n", "first"), ("", "first"), ("a\nb", "first"), ("second", "second")):
        path.write_text(content)
        assert access.metadata() == (("authorization", f"Bearer {sent}"),)
