"""``python -m acker_service [serve] [options]``: serve, from the command line or the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from acker_protocol.version import VERSION
from acker_service import config
from acker_service.config import ConfigError


def main(arguments: Sequence[str]) -> int:
    """Serve until told to stop; returns the exit status. Errors of the user's are one line on stderr, and 2."""
    words = list(arguments[1:] if arguments[:1] == ["serve"] else arguments)
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
    try:
        from acker_service import server, state_file
    except ModuleNotFoundError as error:
        return _complain(f"the server needs {error.name}: pip install 'acker[service]'")
    try:
        return server.run(options)
    except (server.StartError, state_file.StateError) as error:
        return _complain(error)


def _complain(error: object) -> int:
    print(f"acker serve: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
