"""``acker token new``: tokens that a server takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from acker_command import options
from acker_command.token import token
from acker_service.access.roles import Principal, Role
from acker_service.access.tokens import Tokens


def test_a_new_token_is_printed_once_and_the_file_knows_its_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tokens"
    words = ["new", "--role", "client", "--role", "operator", "--name", "etl", "--file", str(file)]
    made = [_print(words, capsys) for _ in range(2)]
    known = Tokens(str(file), lambda: 0.0)
    for each in made:
        assert known.identify(f"Bearer {each}") == Principal("etl", frozenset({Role.CLIENT, Role.OPERATOR}))
        assert each not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_token_of_a_namespace_needs_a_line_that_declares_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tokens"
    words = ["new", "--role", "client", "--name", "job", "--namespace", "etl", "--file", str(file)]
    assert options.run(token, words) == 2
    assert "line 1: no line declares etl: add `namespace etl memory=512MiB`" in capsys.readouterr().err
    assert not file.exists()
    file.write_text("namespace etl memory=64MiB")
    made = _print(words, capsys)
    assert Tokens(str(file), lambda: 0.0).identify(f"Bearer {made}") == Principal(
        "job", frozenset({Role.CLIENT}), "etl"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["new", "--role", "admin", "--name", "etl"], "'admin' is not one of 'client', 'operator', 'scraper'"),
        (["new", "--name", "etl"], "Missing option '--role'"),
        (["new", "--role", "client", "--name", "the etl"], "give one word, without spaces"),
        (["new", "--role", "client", "--name", "etl", "--namespace", "a b"], "give one word, without spaces"),
        (
            ["new", "--role", "operator", "--name", "etl", "--namespace", "a", "--file", "{folder}/namespace"],
            "operator is a role for the whole server",
        ),
        (["new", "--role", "client", "--name", "etl", "--file", "{folder}/none/tokens"], "No such file or directory"),
        (["new", "--role", "client", "--name", "etl", "--file", "{folder}/text"], "line 1: should be: sha256:HEX"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    (tmp_path / "text").write_text("nonsense")
    (tmp_path / "namespace").write_text("namespace a memory=64MiB\n")
    assert options.run(token, [word.format(folder=tmp_path) for word in words]) == 2
    printed = capsys.readouterr()
    assert expected in printed.err
    assert printed.out == ""


def _print(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert options.run(token, words) == 0
    return capsys.readouterr().out.strip()
