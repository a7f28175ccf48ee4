"""Requests to a server's HTTP port."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any


def page(server: Any, path: str, method: str = "GET") -> tuple[int, str]:
    """Request a page and return its status and body."""
    request = urllib.request.Request(f"http://{server.http_address}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
