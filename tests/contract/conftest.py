"""Fixtures: a connection to a server process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from contract_client import Acker


@pytest.fixture
def acker(lasting_server: Any) -> Iterator[Acker]:
    """A connection to a server with its defaults, which all tests share."""
    with Acker(lasting_server.address) as acker:
        yield acker
