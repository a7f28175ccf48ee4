"""Checks that stored content is the expected checkpoint, for all kinds of stores. Pure.

Refuses, in this order: content that is no checkpoint, a newer version, a checkpoint of another source, damaged content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from acker_client.source.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Head:
    """The expected head of a checkpoint at ``place``: its ``format`` and ``versions``; ``of``: its other fields.

    The rest is advice for error messages: ``another`` place to name, how to ``begin_anew``, and how to keep the
    checkpoints of several sources ``apart``.
    """

    place: str
    format: str
    versions: Collection[int]
    of: Mapping[str, str]
    another: str
    begin_anew: str
    apart: str

    def parse(self, content: bytes, digest_of: Callable[[Mapping[str, Any]], str]) -> dict[str, Any]:
        """Return the checkpoint. ``digest_of`` computes its expected digest. Raises ``CheckpointError``."""
        try:
            saved = json.loads(content)
        except (RecursionError, ValueError):
            saved = None
        if not isinstance(saved, dict) or saved.get("format") != self.format:
            raise CheckpointError(
                f"{self.place} is not a checkpoint of the acker, or is damaged: name {self.another}, or"
                f" {self.begin_anew}"
            )
        version = saved.get("version")
        if not isinstance(version, int) or version not in self.versions:
            raise CheckpointError(
                f"checkpoint {self.place} has version {version!r}, and this acker reads versions up to"
                f" {max(self.versions)}: start with the acker that wrote it, or a newer one"
            )
        for what, expected in self.of.items():
            if saved.get(what) != expected:
                raise CheckpointError(
                    f"checkpoint {self.place} is of {what} {saved.get(what)!r}, not of {expected!r}{_written(saved)}:"
                    f" {self.apart}"
                )
        if saved.get("digest") != digest_of(saved):
            raise CheckpointError(
                f"checkpoint {self.place} is damaged (its digest does not fit): restore it, or {self.begin_anew}"
            )
        return saved

    def incomplete(self, what: str, error: Exception) -> CheckpointError:
        """Return the error for a checkpoint without valid progress of ``what``."""
        return CheckpointError(
            f"checkpoint {self.place} does not say how far {what} is done ({error!r}): restore it, or {self.begin_anew}"
        )


def _written(saved: Mapping[str, Any]) -> str:
    """Return the last writer and the time for an error message; "" if the checkpoint names none."""
    by = saved.get("by")
    if isinstance(by, dict):
        return f" (last written at {by.get('time')} by process {by.get('pid')} on {by.get('host')})"
    return f" (last written by {by})" if isinstance(by, str) else ""
