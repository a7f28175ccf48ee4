"""``acker token new``: makes a token for a caller of servers with ``--tokens``.

Decides what is printed where: the token on standard output, for the caller; its line, for the servers' file, at the end
of that file or on standard error. The token itself is stored nowhere. The file keeps its owner, group and mode, since
servers read it as a user of their own.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from acker_command import options
from acker_command.options import Mistake
from acker_service.access import tokens
from acker_service.access.roles import Role


@click.group(no_args_is_help=False, context_settings=options.SETTINGS)
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

    A file that exists keeps its owner, group and mode; a new one is for its owner only (0600).

    \b
    acker token new --role client --name orders-job --file tokens > orders-job.token
    """
    if len(name.split()) != 1:
        raise Mistake(f"--name: {name!r}: give one word, without spaces")
    if len(namespace.split()) > 1:
        raise Mistake(f"--namespace: {namespace!r}: give one word, without spaces")
    made = tokens.new_token()
    line = tokens.line_of(made, [Role(role) for role in roles], name, namespace.strip())
    try:
        tokens.check_line(line)
    except ValueError as error:
        raise Mistake(str(error)) from None
    if file is None:
        click.echo(made)
        click.echo(line, err=True)
        return
    # The file must not know a token that nobody has got, so the token is printed before the file changes.
    with _added(file, line):
        click.echo(made)


@contextmanager
def _added(file: str, line: str) -> Iterator[None]:
    """Add ``line`` to ``file`` once the body has ended. Raises :class:`Mistake`, if possible before the body."""
    path, temporary = Path(os.path.realpath(file)), None
    try:
        try:
            before = path.read_text() if path.exists() else ""
            after = before + ("" if not before or before.endswith("\n") else "\n") + line + "\n"
            tokens.parse(after)
            # Written beside the file and renamed, as servers may read it at any time.
            temporary = _write_beside(path, after)
        except (OSError, ValueError) as error:
            raise _mistake(file, error) from None
        yield
        try:
            os.replace(temporary, path)
        except OSError as error:
            raise _mistake(file, error) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _write_beside(path: Path, text: str) -> Path:
    """Write ``text`` into a new file that may take the place of ``path``. Return its path."""
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w") as file:
            file.write(text)
            if path.exists():
                _liken(file.fileno(), path.stat())
    except BaseException:
        os.unlink(name)
        raise
    return Path(name)


def _liken(descriptor: int, old: os.stat_result) -> None:
    """Give the new file owner, group and mode of the old one."""
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(descriptor, old.st_uid, old.st_gid)
        except PermissionError:
            raise ValueError("belongs to another user or group: run this as its owner or as root") from None
    os.fchmod(descriptor, old.st_mode & 0o777)


def _mistake(file: str, error: Exception) -> Mistake:
    return Mistake(f"--file: {file}: {getattr(error, 'strerror', None) or error}")
