"""``python -m acker_service [serve|health] [options]``: run a server, or check whether one is ready."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from acker_protocol.version import VERSION
from acker_service import config
from acker_service.config import Config, ConfigError
from acker_service.http import health
from acker_service.process import logs
from acker_service.process.compiling import set_up_numba
from acker_service.process.container import default_memory
from acker_service.process.parent import end_with_parent
from acker_service.process.signals import Signals


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status. A user error is reported as one line on stderr."""
    if arguments[:1] == ["health"]:
        return check_health(arguments[1:])
    return serve(arguments[1:] if arguments[:1] == ["serve"] else arguments)


def check_health(words: Sequence[str]) -> int:
    """Check the server that these options and the environment describe. Returns 0 if it is ready, else 1."""
    if "--help" in words or "-h" in words:
        print(health.USAGE)
        return 0
    try:
        ready_file = config.ready_file(words, os.environ)
        if ready_file is not None:
            address = health.check_ready_file(ready_file)
        else:
            address = health.check(config.read(words, os.environ, default_memory()))
        print(f"ready at {address}")
    except (ConfigError, health.NotReady) as error:
        print(f"acker health: {error}", file=sys.stderr)
        return 1
    return 0


def serve(words: Sequence[str]) -> int:
    """Serve until a signal comes. Returns 0, 1 if the state was not written, or 2 if the server could not start."""
    if "--help" in words or "-h" in words:
        print(config.usage())
        return 0
    if "--version" in words:
        print(f"acker {VERSION}")
        return 0
    try:
        options = config.read(words, os.environ, default_memory())
    except ConfigError as error:
        return _print_error(error)
    # Comes first: loading the rest takes seconds, and process 1 of a container loses signals without a handler.
    signals = Signals()
    if options.until_stdin_ends:
        end_with_parent(lambda: _remove_own_access(options))
    lines = logs.configure(sys.stderr, format=options.log_format, level=options.log_level)
    try:
        set_up_numba()
        from acker_service import ports, server
        from acker_service.state import state_file
    except ModuleNotFoundError as error:
        return _print_error(f"the server needs {error.name}: pip install 'acker[service]'")
    try:
        return server.run(options, signals, lines)
    except (ports.StartError, state_file.StateError) as error:
        return _print_error(error)


def _remove_own_access(options: Config) -> None:
    if options.own_access is not None:
        # Not at the top: few servers need it, and it takes long to import.
        from acker_service.access import own_access

        own_access.remove(Path(options.own_access))


def _print_error(error: object) -> int:
    print(f"acker serve: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
