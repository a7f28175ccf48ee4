"""Quotas: how the memory of a server is divided among namespaces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_service.core.memory import PROCESS_BYTES, REST_MIN_BYTES, ROOT_BYTES, SHARD_BYTES
from acker_service.core.quotas import DEFAULT, NAMESPACES_MAX, Quotas, divide, least_allotment

MIB = 1 << 20
LEAST = SHARD_BYTES + REST_MIN_BYTES
SIZES = st.integers(0, 400).map(lambda mebibytes: mebibytes * MIB)
QUOTAS = st.builds(Quotas, SIZES.filter(bool), st.none() | st.integers(1, 3_000_000))


@given(st.integers(352, 2000).map(lambda size: size * MIB), st.dictionaries(st.sampled_from("abcd"), QUOTAS))
def test_the_shares_of_all_namespaces_fit_into_the_server_or_the_error_says_what_would(
    max_memory: int, quotas: dict[str, Quotas]
) -> None:
    least = {name: LEAST + ROOT_BYTES * (each.max_pending or 0) for name, each in quotas.items()}
    needed = PROCESS_BYTES + REST_MIN_BYTES + sum(each.memory_bytes for each in quotas.values())
    if needed > max_memory or any(each.memory_bytes < least[name] for name, each in quotas.items()):
        with pytest.raises(ValueError, match="namespace"):
            divide(max_memory, quotas)
        return
    shares = divide(max_memory, quotas)
    assert shares.keys() == {DEFAULT, *quotas}
    used = shares[DEFAULT].bounds.needed_bytes
    for name, each in quotas.items():
        share = shares[name]
        assert share.quotas == each
        assert share.bounds.needed_bytes - PROCESS_BYTES + SHARD_BYTES <= each.memory_bytes
        assert each.max_pending in (None, share.bounds.max_pending)
        used += each.memory_bytes
    assert used <= max_memory
    assert shares[DEFAULT].quotas.memory_bytes == max_memory - sum(each.memory_bytes for each in quotas.values())


def test_a_namespace_that_is_too_small_is_told_what_it_needs() -> None:
    with pytest.raises(ValueError, match=r"^namespace etl: needs memory=37MiB at least$"):
        divide(1 << 30, {"etl": Quotas(LEAST - 1)})
    assert divide(1 << 30, {"etl": Quotas(LEAST)})["etl"].bounds == least_allotment().bounds
    with pytest.raises(ValueError, match=r"needs memory=114MiB at least with this max_pending"):
        divide(1 << 30, {"etl": Quotas(LEAST, max_pending=1_000_000)})


def test_namespaces_that_leave_too_little_for_the_server_are_refused() -> None:
    quotas = {"a": Quotas(100 * MIB), "b": Quotas(200 * MIB)}
    least = PROCESS_BYTES + REST_MIN_BYTES + 300 * MIB
    divide(least, quotas)
    with pytest.raises(
        ValueError, match=r"the namespaces have 300MiB together, and the server needs 352MiB beside them"
    ):
        divide(least - 1, quotas)
    with pytest.raises(ValueError, match=r"the server needs 429MiB beside them"):
        divide(least, quotas, max_pending=1_000_000)


def test_the_number_of_namespaces_is_bounded() -> None:
    quotas = {str(n): Quotas(LEAST) for n in range(NAMESPACES_MAX)}
    divide(1 << 40, quotas)
    with pytest.raises(ValueError, match=r"257 namespaces are too many: a server has 256 at most"):
        divide(1 << 40, {**quotas, "one more": replace(quotas["0"])})
