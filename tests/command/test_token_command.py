"""``acker token new``: tokens that a server takes."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest

from acker_command import options
from acker_command.token import token
from acker_service.access.roles import Principal, Role
from acker_service.access.tokens import Tokens


class _Full(io.StringIO):
    """The standard output on a full disk."""

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


CLIENT = ["new", "--role", "client", "--name", "etl"]


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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of tokens in a directory of its own, as a server that runs as another user reads it."""
    made = tmp_path / "etc" / "tokens"
    made.parent.mkdir()
    made.write_text("# callers of the servers\n")
    made.chmod(0o644)
    return made


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_new_line_keeps_the_mode_of_the_file(file: Path, capsys: pytest.CaptureFixture[str], mode: int) -> None:
    file.chmod(mode)
    _print([*CLIENT, "--file", str(file)], capsys)
    assert file.stat().st_mode & 0o777 == mode
    assert [each.name for each in file.parent.iterdir()] == ["tokens"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_root_leaves_the_file_to_its_owner_and_group(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.chown(file, 10001, 10002)
    _print([*CLIENT, "--file", str(file)], capsys)
    assert (file.stat().st_uid, file.stat().st_gid) == (10001, 10002)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_that_the_caller_cannot_leave_to_its_owner_stays_as_it_is(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    os.chown(file, 10001, 10002)
    monkeypatch.setattr(os, "fchown", refuse)
    assert options.run(token, [*CLIENT, "--file", str(file)]) == 2
    printed = capsys.readouterr()
    assert "belongs to another user or group: run this as its owner or as root" in printed.err
    assert (printed.out, file.read_text()) == ("", "# callers of the servers\n")
    assert [each.name for each in file.parent.iterdir()] == ["tokens"]


def test_a_link_to_the_file_stays_a_link(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    link = tmp_path / "tokens"
    link.symlink_to("etc/tokens")
    made = _print([*CLIENT, "--file", str(link)], capsys)
    assert link.is_symlink()
    assert Tokens(str(file), lambda: 0.0).identify(f"Bearer {made}") is not None


def test_the_file_knows_no_token_that_could_not_be_printed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", _Full())
    with pytest.raises(OSError, match="No space left on device"):
        options.run(token, [*CLIENT, "--file", str(file)])
    assert file.read_text() == "# callers of the servers\n"
    assert [each.name for each in file.parent.iterdir()] == ["tokens"]


@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--role", "client", "--namespace", "bad/../name"], "'bad/../name' is not the name of a namespace"),
        (["--role", "operator", "--namespace", "etl"], "operator is a role for the whole server"),
    ],
)
def test_a_line_that_no_server_takes_is_neither_printed_nor_written(
    file: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str, has_file: bool
) -> None:
    words = ["new", "--name", "etl", *words, *(["--file", str(file)] if has_file else [])]
    assert options.run(token, words) == 2
    printed = capsys.readouterr()
    assert expected in printed.err
    assert "sha256:" not in printed.err
    assert printed.out == ""


def _print(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert options.run(token, words) == 0
    return capsys.readouterr().out.strip()
