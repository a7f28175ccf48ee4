"""``python -m acker_service [serve|health] [options]``: serve, or ask whether a server is ready."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from acker_protocol.version import VERSION
from acker_service import config
from acker_service.config import ConfigError
from acker_service.http import health
from acker_service.process.signals import Signals


def main(arguments: Sequence[str]) -> int:
    """Do what the first argument asks for and return the exit status. A user's mistake is one line on stderr."""
    if arguments[:1] == ["health"]:
        return check_health(arguments[1:])
    return serve(arguments[1:] if arguments[:1] == ["serve"] else arguments)


def check_health(words: Sequence[str]) -> int:
    """Ask the server with these options and this environment: 0 when it is ready, else 1."""
    if "--help" in words or "-h" in words:
        print(health.USAGE)
        return 0
    try:
        print(f"ready at {health.check(config.read(words, os.environ))}")
    except (ConfigError, health.NotReady) as error:
        print(f"acker health: {error}", file=sys.stderr)
        return 1
    return 0


def serve(words: Sequence[str]) -> int:
    """Serve until a signal comes: 0, 1 when the state could not be written, or 2 for a mistake in the options."""
    if "--help" in words or "-h" in words:
        print(config.usage())
        return 0
    if "--version" in words:
        print(f"acker {VERSION}")
        return 0
    try:
        options = config.read(words, os.environ)
    except ConfigError as error:
        return _complain(error)
    # First: to load the rest takes seconds, and to process 1 of a container a signal without a handler is lost.
    signals = Signals()
    try:
        from acker_service import server
        from acker_service.state import state_file
    except ModuleNotFoundError as error:
        return _complain(f"the server needs {error.name}: pip install 'acker[service]'")
    try:
        return server.run(options, signals)
    except (server.StartError, state_file.StateError) as error:
        return _complain(error)


def _complain(error: object) -> int:
    print(f"acker serve: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
