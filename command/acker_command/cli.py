"""The command ``acker``. Decides the names of its subcommands; each loads what it needs when it is called."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

try:
    import click
except ModuleNotFoundError:
    sys.exit(
        "acker: the command line needs click: pip install 'acker[cli]' (or start the server: python -m acker_service)"
    )

# Each subcommand parses its own options, so that it has one set of errors however it is started.
_PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


class _Commands(click.Group):
    """In the order of this file, and with the nearest one for a word that is none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word in self.commands or word.startswith("-"):
            return super().resolve_command(ctx, args)
        close = get_close_matches(word, self.commands, n=1)
        near = f"; the nearest is {close[0]}" if close else ""
        click.echo(f"acker: {word}: no such command{near}; `acker --help` lists them all", err=True)
        sys.exit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="acker", message="acker %(version)s")
def main() -> None:
    """Storm's reliability for Spark: track every record until everything derived from it is done."""


@main.command(context_settings=_PASS_ON, add_help_option=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def serve(options: tuple[str, ...]) -> None:
    """Start a server (acker serve --help has its options)."""
    _service("serve", options)


@main.command(context_settings=_PASS_ON, add_help_option=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def health(options: tuple[str, ...]) -> None:
    """Ask whether the server with the same options is ready."""
    _service("health", options)


@main.command(context_settings=_PASS_ON, add_help_option=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def ring(options: tuple[str, ...]) -> None:
    """Show the servers and the balance (acker ring --help)."""
    _ask("ring", options)


@main.command(context_settings=_PASS_ON, add_help_option=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def status(options: tuple[str, ...]) -> None:
    """Show what each server has to do (acker status --help)."""
    _ask("status", options)


@main.command(context_settings=_PASS_ON, add_help_option=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def drain(options: tuple[str, ...]) -> None:
    """Ask a server to finish and end (acker drain --help)."""
    _ask("drain", options)


@main.command("dead-letters", context_settings=_PASS_ON, add_help_option=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def dead_letters(options: tuple[str, ...]) -> None:
    """Look at dead letters, and put them back for another try."""
    if find_spec("pyarrow") is None:
        raise click.ClickException("acker dead-letters needs pyarrow: pip install 'acker[spark]'")
    _ask("dead_letters", options)


def _ask(word: str, words: tuple[str, ...]) -> NoReturn:
    if find_spec("rich") is None:
        raise click.ClickException(f"acker {word.replace('_', '-')} needs rich: pip install 'acker[cli]'")
    from acker_command.options import run

    sys.exit(run(getattr(import_module(f"acker_command.{word}"), word), words))


def _service(word: str, options: tuple[str, ...]) -> NoReturn:
    try:
        from acker_service.__main__ import main as service_main
    except ModuleNotFoundError as error:
        raise click.ClickException(f"the server needs {error.name}: pip install 'acker[service]'") from None
    sys.exit(service_main([word, *options]))


@main.command(context_settings=_PASS_ON, add_help_option=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def demo(options: tuple[str, ...]) -> None:
    """Run a Spark job, break things on purpose, check outcomes."""
    from acker_command.demo.command import demo as demo_command
    from acker_command.options import run

    sys.exit(run(demo_command, options))
