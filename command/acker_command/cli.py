"""The command ``acker``. Decides the names of its subcommands; each loads what it needs when it is called."""

from __future__ import annotations

import errno
import io
import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

try:
    import click
except ModuleNotFoundError:
    sys.exit(
        "acker: the command line needs click: pip install 'acker[cli]' (or start the server: python -m acker_service)"
    )

SERVICE = "acker_service.__main__"
# Each subcommand, in the order of the help: its module, the packages it needs with their extras, and its help.
SUBCOMMANDS: dict[str, tuple[str, dict[str, str], str]] = {
    "serve": (SERVICE, {}, "Start a server (acker serve --help has its options)."),
    "health": (SERVICE, {}, "Ask whether the server with the same options is ready."),
    "ring": ("acker_command.ring", {"rich": "cli"}, "Show the servers and the balance (acker ring --help)."),
    "status": ("acker_command.status", {"rich": "cli"}, "Show what each server has to do (acker status --help)."),
    "drain": ("acker_command.drain", {"rich": "cli"}, "Ask a server to finish and end (acker drain --help)."),
    "token": ("acker_command.token", {}, "Make a token for a caller (acker token new --help)."),
    "dead-letters": (
        "acker_command.dead_letters",
        {"pyarrow": "spark", "rich": "cli"},
        "Look at dead letters, and put them back for another try.",
    ),
    "offsets": (
        "acker_command.offsets",
        {"pyarrow": "spark", "confluent_kafka": "kafka", "rich": "cli"},
        "Show where a source of Kafka is, and move it.",
    ),
    "demo": ("acker_command.demo.command", {}, "Run a Spark job, break things on purpose, check outcomes."),
}
# The output of a command cannot be written, because a disk or a quota is full, or a disk is damaged.
NO_OUTPUT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class _Commands(click.Group):
    """Lists subcommands in the order in which they were added, and names the nearest one for an unknown word."""

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            try:
                return super().main(*args, **extra)
            finally:
                # Python has no standard output if it was started with a closed one.
                if sys.stdout is not None:
                    sys.stdout.flush()
        except OSError as error:
            if error.filename is not None or error.errno not in NO_OUTPUT:
                raise
            # Python flushes what is left once more at its end, and would print that error too.
            sys.stdout = io.StringIO()
            click.echo(f"acker: standard output: {error.strerror}", err=True)
            sys.exit(2)

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


def _add_command(word: str, help: str) -> None:
    # The subcommand parses its own options, so that its errors are the same however it is started.
    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

    @main.command(word, help=help, context_settings=settings, add_help_option=False)
    @click.argument("options", nargs=-1, type=click.UNPROCESSED)
    def call(options: tuple[str, ...]) -> None:
        _call(word, options)


def _call(word: str, options: tuple[str, ...]) -> NoReturn:
    module, needed = SUBCOMMANDS[word][:2]
    for package, extra in needed.items():
        if find_spec(package) is None:
            raise click.ClickException(f"acker {word} needs {package}: pip install 'acker[{extra}]'")
    if module == SERVICE:
        try:
            serve = import_module(SERVICE).main
        except ModuleNotFoundError as error:
            raise click.ClickException(f"the server needs {error.name}: pip install 'acker[service]'") from None
        sys.exit(serve([word, *options]))
    from acker_command.options import run

    sys.exit(run(getattr(import_module(module), word.replace("-", "_")), options))


for _word in SUBCOMMANDS:
    _add_command(_word, SUBCOMMANDS[_word][2])
