"""The command ``acker``. Decides the names of its subcommands; each loads what it needs when it is called."""

from __future__ import annotations

import sys
from typing import NoReturn

try:
    import click
except ModuleNotFoundError:
    sys.exit(
        "acker: the command line needs click: pip install 'acker[cli]' (or start the server: python -m acker_service)"
    )

# Each subcommand parses its own options, so that it has one set of errors however it is started.
_PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
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


def _service(word: str, options: tuple[str, ...]) -> NoReturn:
    try:
        from acker_service.__main__ import main as service_main
    except ModuleNotFoundError as error:
        raise click.ClickException(f"the server needs {error.name}: pip install 'acker[service]'") from None
    sys.exit(service_main([word, *options]))


@main.command(context_settings=_PASS_ON, add_help_option=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def demo(options: tuple[str, ...]) -> None:
    """Count words in Spark, break things on purpose, check every answer (acker demo --help)."""
    from acker_command.demo.command import demo as demo_command

    demo_command.main(options, prog_name="acker demo")
