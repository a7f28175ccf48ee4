"""Failed: the error of a record that the user's code fails while tracking is off."""

from __future__ import annotations

from acker_client.errors import AckerError


class RecordFailed(AckerError):
    """The program failed one record while tracking is off. Nobody can be told which one, so the task fails."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason} (tracking is off, so one failed record fails its batch)")
