"""Given: checks the options that a user gave a constructor.

Decides the errors for an option that does not exist, and for a source without a name.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any

from acker_client.source.engine.options import CommonOptions, Options

# This option is not for users. It replaces Spark, server and clock in tests.
_UNNAMED = {"environment"}


def options_of(constructor: Callable[..., Any], given: CommonOptions) -> Options:
    """Check and return the common options that ``constructor`` was given. Raises ``TypeError`` for a missing name, or
    for an option that does not exist (the error names the nearest one). Raises ``ValueError`` as ``Options`` does."""
    name = constructor.__name__
    own = [each.name for each in signature(constructor).parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    known = [*own, *(option for option in CommonOptions.__annotations__ if option not in _UNNAMED)]
    for option in sorted(given.keys() - CommonOptions.__annotations__.keys()):
        close = get_close_matches(option, known, n=1)
        near = f"; the nearest is {close[0]}" if close else ""
        raise TypeError(f"{option}: there is no such option of {name}{near}; there are {', '.join(known)}")
    if "name" not in given:
        raise TypeError(f"{name} without a name: give the source one, like name='orders'")
    return Options.of(given)
