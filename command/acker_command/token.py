"""``acker token new``: makes a token for a caller of servers with ``--tokens``.

Decides what is printed where: the token on standard output, for the caller; its line, for the servers' file, at the end
of that file or on standard error. The token itself is stored nowhere.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from acker_command import options
from acker_command.options import Mistake
from acker_service.access import tokens
from acker_service.access.roles import Role


@click.group(context_settings=options.SETTINGS)
def token() -> None:
    """Make tokens for callers of servers that were started with --tokens."""


@token.command(context_settings=options.SETTINGS)
@click.option(
    "--role",
    "roles",
    type=click.Choice([str(role) for role in Role]),
    multiple=True,
    required=True,
    help="What the caller may do; may be repeated. client: emit and ack; operator: status and drain; scraper: metrics.",
)
@click.option("--name", required=True, help="The caller's name, for the servers' logs.")
@click.option("--namespace", default="", help="The caller's namespace, which a line of the file declares.")
@click.option("--file", type=click.Path(dir_okay=False), help="The servers' --tokens file, to add the line to.")
def new(roles: tuple[str, ...], name: str, namespace: str, file: str | None) -> None:
    """Print a new token. Its hash goes to the end of --file, or to standard error.

    \b
    acker token new --role client --name orders-job --file tokens > orders-job.token
    """
    if len(name.split()) != 1:
        raise Mistake(f"--name: {name!r}: give one word, without spaces")
    if len(namespace.split()) > 1:
        raise Mistake(f"--namespace: {namespace!r}: give one word, without spaces")
    made = tokens.new_token()
    line = tokens.line_of(made, [Role(role) for role in roles], name, namespace.strip())
    if file is None:
        click.echo(line, err=True)
    else:
        _append(Path(file), line)
    click.echo(made)


def _append(path: Path, line: str) -> None:
    try:
        before = path.read_text() if path.exists() else ""
        after = before + ("" if not before or before.endswith("\n") else "\n") + line + "\n"
        tokens.parse(after)
        # Written beside the file and renamed, as servers may read it at any time.
        temporary = path.with_name(path.name + ".tmp")
        temporary.touch(mode=0o600)
        temporary.write_text(after)
        os.replace(temporary, path)
    except (OSError, ValueError) as error:
        raise Mistake(f"--file: {path}: {getattr(error, 'strerror', None) or error}") from None
