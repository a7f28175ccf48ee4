"""Dead letters as lines of the log. Nothing keeps them but the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from acker_client.source.records.dead_letter import DeadLetter

# A longer value is cut. The origin locates the whole record.
VALUE_BYTES_MAX = 2000

log = logging.getLogger("acker_client.source.dead_letters")


class DeadLetterLog:
    """A ``DeadLetterStore`` that logs each letter as one line of JSON, at level ERROR."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"the log ({log.name})"

    def open(self) -> None:
        """Nothing to open."""

    def write(self, letters: Iterable[DeadLetter]) -> None:
        for letter in letters:
            # In ASCII, so that no content of a record can begin a line, or move the cursor of a terminal.
            log.error("dead letter: %s", _shortened(letter).to_json(is_ascii=True))

    def close(self) -> None:
        """Nothing to close."""


def _shortened(letter: DeadLetter) -> DeadLetter:
    value = letter.value
    if isinstance(value, Mapping):
        value = json.dumps(dict(value)).encode()
    if value is None or len(value) <= VALUE_BYTES_MAX:
        return letter
    whole = letter.value_bytes or len(value)
    return replace(letter, value=value[:VALUE_BYTES_MAX], value_bytes=whole, schema="", columns=None)
