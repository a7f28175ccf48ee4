"""Offsets: ``acker offsets SOURCE``, which shows where a source of Kafka is, and moves it while no driver runs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from acker_client.source.errors import SourceError
from acker_client.source.kafka.names import At, KafkaConnection
from acker_client.source.kafka.seeking import Seeking, SourceOffsets, Target
from acker_client.source.storage.urls import local_path, url_of
from acker_command import options, picture
from acker_command.letters import since
from acker_command.options import Mistake, json_option

TIMEOUT_S = 30.0


def _target(context: click.Context, parameter: click.Parameter, text: str | None) -> Target | None:
    if text is None or text in ("earliest", "latest"):
        return text
    try:
        return int(text) if text.isdecimal() else datetime.fromtimestamp(since(text, time.time()), UTC)
    except (ValueError, OverflowError, OSError):
        raise Mistake(
            f"--to {text}: give earliest, latest, an offset, a time like 2026-11-22T08:30 (UTC), or a span like 90m,"
            " 2h or 3d before now"
        ) from None


def _partitions(context: click.Context, parameter: click.Parameter, names: Sequence[str]) -> list[At]:
    try:
        return [At.named(name) for name in names]
    except ValueError as error:
        raise Mistake(f"--partition: {error}") from None


def _checkpoint(context: click.Context, parameter: click.Parameter, path: str | None) -> Path | None:
    if path is None:
        return None
    if url_of(path) is not None:
        raise Mistake(
            f"--checkpoint {path}: a checkpoint in an object store can be neither shown nor moved: start the source"
            " under another name, with another checkpoint and start="
        )
    return Path(local_path(path))


def _settings(context: click.Context, parameter: click.Parameter, path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except OSError as error:
        raise Mistake(f"--command-config {path}: {error.strerror}") from None
    except ValueError:
        raise Mistake(f"--command-config {path}: this is no text; give a file of lines KEY=VALUE") from None
    given = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {key.strip(): value.strip() for key, _, value in given}


@click.command("offsets", context_settings=options.SETTINGS)
@click.argument("source")
@click.option("--bootstrap-servers", required=True, metavar="HOST:PORT,...", help="Brokers of the source.")
@click.option("--group", metavar="NAME", help="Its group_id, if that is not its name.")
@click.option("--checkpoint", metavar="FILE", callback=_checkpoint, help="Its checkpoint, if it is a file.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic; may be repeated.")
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="TOPIC/N",
    callback=_partitions,
    help="Only this partition; may be repeated.",
)
@click.option("--to", metavar="WHERE", callback=_target, help="earliest, latest, an offset, a time, or a span: 2h.")
@click.option("--dry-run", is_flag=True, help="Show where --to would move it, and change nothing.")
@click.option("--stopped", is_flag=True, help="You have made sure that no driver of the source runs.")
@click.option(
    "--command-config",
    "config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    callback=_settings,
    help="Settings of librdkafka (TLS, SASL), a line KEY=VALUE each.",
)
@json_option
def offsets(
    source: str,
    bootstrap_servers: str,
    group: str | None,
    checkpoint: Path | None,
    topics: Sequence[str],
    partitions: Sequence[At],
    to: Target | None,
    dry_run: bool,
    stopped: bool,
    config: dict[str, str],
    as_json: bool,
) -> None:
    """Show where a source of Kafka is in each partition. With --to, move it there: its next start reads from there.

    \b
    committed   the offset of its group; all records below it are done
    checkpoint  the same in its checkpoint file
    holes       stretches of open records before done ones
    next        where its next start reads on: the higher of the two; where --to moves it

    A move backwards reads records again that are done, and a move forwards skips records that are not. It is refused
    while a driver runs: while its checkpoint is locked, or its last commit does not say that it has ended. After a
    crash that commit is missing: make sure that no driver runs, and give --stopped.

    Exits with status 2 if nothing was moved, for whatever reason.
    """
    if to is None and (dry_run or stopped):
        raise Mistake(f"{'--dry-run' if dry_run else '--stopped'} without --to: say where to move the source")
    try:
        connection = KafkaConnection.of(bootstrap_servers, source if group is None else group, config, TIMEOUT_S)
        with Seeking(source, connection, checkpoint) as seeking:
            seen = seeking.look(topics, partitions)
            if to is not None:
                seen = seeking.targets(seen, to)
                if not dry_run:
                    seeking.move(seen, is_stopped=stopped)
    except (ValueError, SourceError) as error:
        raise Mistake(str(error)) from None
    is_moved = to is not None and not dry_run
    if as_json:
        click.echo(json.dumps({"source": source, "moved": is_moved, "partitions": [_json_of(each) for each in seen]}))
    else:
        picture.show(lambda _: _drawn(source, seen, is_moved=is_moved))


def _json_of(each: SourceOffsets) -> dict[str, Any]:
    return {
        "partition": each.at.name,
        "earliest": each.earliest,
        "end": each.end,
        "committed": each.committed,
        "committed_by": each.by or None,
        "running": each.is_running,
        "checkpoint": each.checkpoint,
        "holes": each.holes,
        "next": each.next,
        "target": each.target,
    }


def _drawn(source: str, seen: Sequence[SourceOffsets], *, is_moved: bool) -> RenderableType:
    """Draw a row for each partition, as it was before the move."""
    has_targets = any(each.target is not None for each in seen)
    has_file = any(each.checkpoint is not None for each in seen)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("partition", no_wrap=True)
    names = ["earliest", "end", "committed", *(["checkpoint"] if has_file else []), "holes", "next"]
    for name in [*names, *(["moved to" if is_moved else "would move to"] if has_targets else [])]:
        table.add_column(name, justify="right", no_wrap=True)
    for each in seen:
        shown = [each.earliest, each.end, each.committed, *([each.checkpoint] if has_file else [])]
        shown += [each.holes, each.next, *([each.target] if has_targets else [])]
        table.add_row(each.at.name, *("-" if value is None else str(value) for value in shown))
    count = f"{len(seen)} partition{'' if len(seen) == 1 else 's'}"
    said = f"source {source}: {count}" + (" moved" if is_moved else "")
    running = sorted({each.by for each in seen if each.is_running})
    notes = [Text(f"! {by} has committed, and has not ended: it runs, or has died", "yellow") for by in running]
    return Group(Text(said, "bold"), Text(), table, *([Text(), *notes] if notes and not is_moved else []))
