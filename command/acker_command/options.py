"""Options: the common part of commands that ask servers: ``--servers``, ``--json``, and errors of one sentence.

Exit status 2: the command failed; the sentence is on standard error.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from acker_client.errors import AckerError
from acker_client.settings import (
    ACCESS_FILE_VARIABLE,
    SERVERS_VARIABLE,
    TLS_FILE_VARIABLES,
    TLS_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    Settings,
    access_from,
    addresses,
)
from acker_command.overview import Overview, SeenMember
from acker_protocol.placement import parts_of

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

# Click's names for the types of numbers, and ours.
_KINDS = {"float range": "number", "float": "number", "integer range": "whole number", "integer": "whole number"}

# For the end of the help.
VARIABLES = (
    f"Variables for servers with TLS: {', '.join(TLS_FILE_VARIABLES.values())} (files), or {TLS_VARIABLE}=true; with"
    f" tokens: {TOKEN_FILE_VARIABLE} or {TOKEN_VARIABLE}. {ACCESS_FILE_VARIABLE} names the access.json of a server with"
    " --own-access, and takes the place of all others."
)

servers_option = click.option(
    "--servers",
    metavar="HOST:PORT,...",
    help=f"The servers; any one of a cluster in ZooKeeper is enough. [{SERVERS_VARIABLE}]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else.")


class Mistake(click.ClickException):
    """The command cannot do what it was asked for. The text is one sentence."""

    exit_code = 2


def settings(servers: str | None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings that reach the servers. Raises :class:`Mistake`."""
    if servers is None and not any(environ.get(name, "").strip() for name in (SERVERS_VARIABLE, ACCESS_FILE_VARIABLE)):
        raise Mistake(
            f"no servers are named: give --servers host:port,host:port, or set {SERVERS_VARIABLE} or"
            f" {ACCESS_FILE_VARIABLE}"
        )
    try:
        if servers is None:
            return Settings.from_environment(environ)
        return Settings(addresses(servers), **access_from(environ))
    except ValueError as error:
        raise Mistake(str(error)) from None


def json_of(overview: Overview, more: Callable[[SeenMember], Mapping[str, Any]]) -> dict[str, Any]:
    """Return what ``--json`` prints about members, with 64-bit numbers as hex, which no reader rounds. ``more`` adds
    fields for one member."""
    ensemble, epoch = parts_of(overview.epoch)
    return {
        "epoch": epoch,
        "ensemble": ensemble,
        "members": [
            {
                "id": seen.id,
                "address": seen.address,
                "generation": None if seen.generation is None else f"{seen.generation:016x}",
                "version": seen.version,
                "state": None if seen.state is None else seen.state.name.lower(),
                "answers": seen.is_answering,
                "away_s": seen.away_ms / 1000,
                **more(seen),
            }
            for seen in overview.members
        ],
        "notes": list(overview.notes),
    }


def run(command: click.Command, words: Sequence[str]) -> int:
    """Run ``command`` with the arguments ``words``; return the exit status."""
    name = f"acker {command.name}"
    try:
        return int(command.main(list(words), prog_name=name, standalone_mode=False) or 0)
    except click.NoSuchOption as error:
        known = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        near = nearest(error.option_name, [*known, "--help"])
        return _complain(name, f"{error.option_name}: no such option{near}; `{name} --help` lists them all")
    except click.UsageError as error:
        said = " ".join(error.format_message().split()).rstrip(".")
        for of_click, of_people in _KINDS.items():
            said = said.replace(f"is not a valid {of_click}", f"is not a {of_people}")
        return _complain(name, f"{said}; `{name} --help` says what it takes")
    except click.ClickException as error:
        return _complain(name, error.format_message())
    except AckerError as error:
        return _complain(name, str(error))
    except click.Abort:
        return 130


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a "no such option" error: the nearest of ``known``, if there is one."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; the nearest is {close[0]}" if close else ""


def _complain(name: str, sentence: str) -> int:
    print(f"{name}: {sentence}", file=sys.stderr)
    return 2
