"""Options: where their values come from, and the error for a wrong option, which names the option and the fix."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from acker_client.settings import addresses
from acker_service import config
from acker_service.config import OPTIONS, Config, ConfigError


def complaint(arguments: list[str], environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        config.read(arguments, environment or {})
    return str(caught.value)


def test_the_config_without_flags_and_variables_is_the_default_and_binds_to_loopback() -> None:
    assert config.read([], {}) == Config()
    assert (Config().host, Config().port, Config().http_port) == ("127.0.0.1", 7070, 7071)


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_default() -> None:
    environment = {"ACKER_PORT": "1", "ACKER_WORKERS": "2"}
    options = config.read(["--port", "3"], environment)
    assert (options.port, options.workers, options.grace_s) == (3, 2, Config().grace_s)


def test_a_flag_takes_its_value_as_next_word_or_behind_an_equals_sign() -> None:
    assert config.read(["--port=5", "--host", "::1", "--reflection"], {}) == Config(port=5, host="::1", reflection=True)


@pytest.mark.parametrize(
    ("text", "size"), [("65536", 65536), ("1MiB", 1 << 20), ("2 mib", 2 << 20), ("1_000_000", 1_000_000)]
)
def test_a_size_may_have_a_unit(text: str, size: int) -> None:
    assert config.read(["--max-message-bytes", text], {}).max_message_bytes == size


def test_off_switches_off() -> None:
    options = config.read(["--http-port", "off", "--max-pending-per-source=off"], {})
    assert (options.http_port, options.max_pending_per_source) == (None, None)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_error_names_the_option_as_flag_and_as_variable(option: dataclasses.Field[Any]) -> None:
    if option.metadata["shape"] in ("a directory", "a path"):
        assert config.flag(option.name) in complaint([config.flag(option.name), "a", config.flag(option.name), "b"])
        return
    nonsense = " " if option.name == "host" else "nonsense"
    for said in (
        complaint([config.flag(option.name) + "=" + nonsense]),
        complaint([], {config.variable(option.name): nonsense}),
    ):
        assert config.flag(option.name) in said
        assert config.variable(option.name) in said
        assert "should be" in said


@pytest.mark.parametrize(
    "option", [option for option in OPTIONS if option.metadata["low"] is not None], ids=lambda option: option.name
)
def test_the_error_for_a_value_out_of_range_has_the_range(option: dataclasses.Field[Any]) -> None:
    for value in (option.metadata["low"] - 1, option.metadata["high"] + 1):
        said = complaint([f"{config.flag(option.name)}={value}"])
        assert config.label(option.name) in said
        assert "outside" in said


def test_nan_is_outside_every_range() -> None:
    assert "outside" in complaint(["--grace-s", "nan"])


def test_the_error_for_an_unknown_option_names_the_nearest() -> None:
    assert complaint(["--max-pendin", "3"]).startswith("--max-pendin: no such option; the nearest is --max-pending;")
    assert "the nearest is ACKER_STATE_DIR" in complaint([], {"ACKER_STATEDIR": "/x"})
    assert complaint(["--frobnicate"]).startswith("--frobnicate: no such option; `acker serve --help`")
    assert complaint(["7070"]) == "7070: not an option; `acker serve` takes options only, like --port 7070"


def test_a_flag_without_its_value_or_given_twice_is_an_error() -> None:
    assert "--port (ACKER_PORT): has no value" in complaint(["--port"])
    assert "--port (ACKER_PORT): has no value" in complaint(["--port", "--reflection"])
    assert "given twice" in complaint(["--port=1", "--port=2"])


# Services called `acker`, `acker-http` and so on.
@pytest.mark.parametrize("service", ["ACKER", "ACKER_HTTP", "ACKER_PROD", "ACKER_2"])
def test_variables_of_clients_and_those_that_kubernetes_injects_are_passed_over(service: str) -> None:
    environment = {
        "ACKER_SERVERS": "a:1",
        "ACKER_TOKEN": "secret",
        f"{service}_SERVICE_HOST": "10.0.0.7",
        f"{service}_SERVICE_PORT": "7070",
        f"{service}_SERVICE_PORT_GRPC": "7070",
        f"{service}_PORT": "tcp://10.0.0.7:7070",
        f"{service}_PORT_7070_TCP": "tcp://10.0.0.7:7070",
        f"{service}_PORT_7070_TCP_ADDR": "10.0.0.7",
    }
    assert config.read([], environment) == Config()
    assert f"{service}_PORT" in complaint([], {f"{service}_PORT": "10.0.0.7:7070"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "::0", "[::0]", "0:0:0:0:0:0:0:0"])
@pytest.mark.parametrize("given", [{"zookeeper": "a:1", "id": 1, "insecure": True}, {"own_access": "own"}])
def test_a_server_that_listens_on_all_addresses_needs_one_to_advertise(host: str, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"--advertise \(ACKER_ADVERTISE\): needed with"):
        Config(host=host, **given)
    Config(host=host, advertise="driver:7070", **given)


def test_discard_state_without_state_dir_is_an_error() -> None:
    assert "--state-dir" in complaint(["--discard-state"])


def test_help_names_every_option() -> None:
    for option in OPTIONS:
        assert config.flag(option.name) in config.usage()
        assert config.variable(option.name) in config.usage()


@pytest.mark.parametrize(
    "given", [{"log_level": "loud"}, {"log_format": "xml"}, {"advertise": "nowhere"}, {"host": " "}]
)
def test_a_config_built_in_code_is_checked_like_one_from_flags(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=config.flag(next(iter(given)))):
        Config(**given)


@pytest.mark.parametrize("name", ["a..b", "a" * 64])
def test_a_host_that_is_no_name_is_refused(name: str) -> None:
    assert complaint(["--advertise", f"{name}:7070"]).startswith("--advertise (ACKER_ADVERTISE): ")
    assert complaint(["--host", name]).startswith("--host (ACKER_HOST): ")
    assert Config(host="ä.example", advertise="ä.example:7070", insecure=True).host == "ä.example"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("fd00::7:17670", "[fd00::7]:17670"),
        ("[fd00::7]:17670", "[fd00::7]:17670"),
        ("::1:0", "[::1]:0"),
        ("10.0.0.7:7070", "10.0.0.7:7070"),
        ("acker-0.acker:7070", "acker-0.acker:7070"),
    ],
)
def test_an_ipv6_host_gets_the_brackets_that_clients_need(text: str, read: str) -> None:
    assert config.read(["--advertise", text], {}).advertise == read
    assert Config(advertise=text).advertise == read
    if not read.endswith(":0"):
        assert addresses(read) == (read,)


@pytest.mark.parametrize(
    "text", ["fd00::7", "::1", "[fd00::7:17670", "fd00::7]:17670", "a:b:7070", "[a]:7070", ":7070"]
)
def test_an_address_without_a_port_or_with_half_a_host_is_refused(text: str) -> None:
    assert "--advertise (ACKER_ADVERTISE): " in complaint(["--advertise", text])


def test_a_container_that_is_too_small_is_named_as_the_cause() -> None:
    with pytest.raises(ConfigError) as raised:
        config.read([], {}, (256 << 20) * 3 // 4)
    assert str(raised.value) == (
        "a server needs 384MiB, and takes 192MiB here: by default three quarters of the container's limit, or half of "
        "the machine's memory. Give the container 512MiB or more, or give --max-memory (ACKER_MAX_MEMORY)"
    )
    assert config.read([], {}, (512 << 20) * 3 // 4).max_memory == 384 << 20


def test_a_size_out_of_range_is_refused_with_sizes() -> None:
    said = complaint(["--max-memory", "100MiB"])
    assert said == "--max-memory (ACKER_MAX_MEMORY): 100MiB is outside 384MiB to 4096GiB; choose a size within"


def test_the_memory_of_the_container_counts_where_none_is_named() -> None:
    assert config.read([], {}, 1 << 30).max_memory == 1 << 30
    assert config.read(["--max-memory", "2GiB"], {}, 1 << 30).max_memory == 2 << 30
    assert config.read([], {"ACKER_MAX_MEMORY": "2GiB"}, 1 << 30).bounds == Config(max_memory=2 << 30).bounds
    with pytest.raises(ConfigError, match=r"--max-pending \(ACKER_MAX_PENDING\).*--max-memory is 1024MiB"):
        config.read(["--max-pending", "20000000"], {}, 1 << 30)
