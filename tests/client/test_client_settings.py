"""Settings: valid values, pickling, and errors for everything else."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from acker_client.settings import Settings, addresses


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:1", ("a:1",)),
        ("a", ("a:7070",)),
        (" a:1 , b:2,", ("a:1", "b:2")),
        ("[::1]", ("[::1]:7070",)),
        ("[::1]:8", ("[::1]:8",)),
        (["a:1", "b"], ("a:1", "b:7070")),
    ],
)
def test_addresses_are_read_with_a_default_port(text: Any, found: tuple[str, ...]) -> None:
    assert addresses(text) == found


@pytest.mark.parametrize("text", ["", " , ", "a:", ":1", "a:port", "a:0", "a:65536", "a:-1", "http://a:1"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="localhost:7070"):
        addresses(text)


@pytest.mark.parametrize("servers", [7070, b"a:7070", ["a", 3], "a b:7070", "user@a:7070", "a;7070"])
def test_malformed_addresses_are_refused_with_the_format(servers: Any) -> None:
    with pytest.raises(ValueError, match=r"servers.*write host:port, like 'localhost:7070'"):
        addresses(servers)


@pytest.mark.parametrize("servers", ["::1", "::1:7070", "fe80::1%eth0"])
def test_an_ipv6_address_without_brackets_is_refused_with_how_to_write_it(servers: str) -> None:
    with pytest.raises(ValueError, match=r"write it in brackets, like '\[::1\]:7070'"):
        addresses(servers)


@pytest.mark.parametrize("token", ["sesame\n", "sésame", 5])
def test_a_token_that_cannot_travel_is_refused_and_not_shown(token: Any) -> None:
    with pytest.raises(ValueError, match="token: give a string of printable ASCII") as refused:
        Settings(("a:1",), token=token)
    assert str(token).strip() not in str(refused.value)


@pytest.mark.parametrize(
    "option",
    [
        {"budget_s": 0},
        {"budget_s": "5"},
        {"budget_s": float("nan")},
        {"budget_s": float("inf")},
        {"call_timeout_s": -1},
        {"on_unreachable": "shrug"},
        {"buffer_entries": 0},
        {"buffer_entries": 1.5},
    ],
)
def test_a_bad_option_is_named(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        Settings(("a:1",), **option)


def test_settings_travel_and_are_keys() -> None:
    settings = Settings(("a:1", "b"), token="secret", budget_s=5)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert len({settings, pickle.loads(pickle.dumps(settings))}) == 1


def test_the_token_is_not_printed() -> None:
    assert "secret" not in repr(Settings(("a:1",), token="secret"))


def test_the_environment_names_the_servers() -> None:
    settings = Settings.from_environment({"ACKER_SERVERS": "a:1,b:2", "ACKER_TOKEN": "t"})
    assert settings == Settings(("a:1", "b:2"), token="t")


def test_without_servers_the_error_names_the_setting() -> None:
    with pytest.raises(ValueError, match="ACKER_SERVERS"):
        Settings.from_environment({"ACKER_SERVERS": " "})
