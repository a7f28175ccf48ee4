"""Property tests have no deadline an example: how busy the machine is says nothing about the protocol."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("acker", deadline=None)
settings.load_profile("acker")
