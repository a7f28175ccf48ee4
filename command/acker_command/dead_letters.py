"""Dead letters: ``acker dead-letters FILE...``, which shows records without retries left, and puts them back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import click
from click.core import ParameterSource

from acker_client.source.put_back import store
from acker_client.source.put_back.letter_lines import ReadLine
from acker_client.source.put_back.store import read_files
from acker_client.source.records.dead_letter import DeadLetter
from acker_command import letters_picture, options, picture
from acker_command.letters import Wanted, alike, json_of, newest_first, since
from acker_command.options import Mistake, json_option

# Names this many damaged lines of a file, and counts the others.
NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class Selected:
    """The selected letters of some files, the newest first, and notes about other lines."""

    letters: list[DeadLetter]
    notes: list[str]


def _since(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else since(text, time.time())
    except ValueError:
        raise Mistake(
            f"--since {text}: give a time like 2026-11-22T08:30 (UTC), or a span like 90m, 2h or 3d"
        ) from None


@click.command("dead-letters", context_settings=options.SETTINGS)
@click.argument("files", nargs=-1, metavar="FILE...", type=str)
@click.option("--source", metavar="NAME", help="Only letters of this source.")
@click.option("--reason", metavar="TEXT", help="Only letters whose reason contains this text, in any case.")
@click.option("--since", "since_s", metavar="TIME", callback=_since, help="Only letters since a time, or a span: 2h.")
@click.option("--by", type=click.Choice(["reason", "source"]), help="Group them, with an example of each group.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Most letters listed.")
@click.option("--show", type=click.IntRange(1), metavar="N", help="Print all of letter N of the list.")
@click.option("--put-back", type=str, metavar="FILE", help="Move them into this file.")
@json_option
def dead_letters(
    files: Sequence[str],
    source: str | None,
    reason: str | None,
    since_s: float | None,
    by: str | None,
    limit: int,
    show: int | None,
    put_back: str | None,
    as_json: bool,
) -> None:
    """List records without retries left, the newest first; group them; put them back for another try.

    \b
    record    its place in its input
    tries     number of failures, + number of interruptions
    reason    the first line of the reason of its last failure; --show N prints all of it

    --put-back moves the selected letters into a file, created if needed, which a source reads once:
    PutBack("again.jsonl", name="again", checkpoint="again.ckpt"). A running source goes on writing letters. After a
    crash the same command continues where it was. A letter without the whole record stays.

    A FILE may be the URL of a folder in an object store, like s3://bucket/dead. Then --put-back takes another folder.

    Exits with status 2 if a file cannot be read or written, is in use, or holds something else.
    """
    if not files:
        raise Mistake("no file is named: give the file that the source has as dead_letters, like dead.jsonl")
    files = list(dict.fromkeys(files))
    origin_of = click.get_current_context().get_parameter_source
    options_of = {"put_back": "--put-back", "show": "--show", "by": "--by", "limit": "--limit"}
    given = [option for name, option in options_of.items() if origin_of(name) is not ParameterSource.DEFAULT]
    if len(given) > 1:
        raise Mistake(f"{given[0]} and {given[1]} do not go together: give one of them")
    wanted = Wanted(source, reason, since_s)
    if put_back is not None:
        _put_back(files, put_back, wanted.holds, as_json=as_json)
        return
    found = _find_letters(files, wanted.holds)
    total = len(found.letters)
    if show is not None:
        _show(found, show, as_json=as_json)
    elif by is not None:
        groups = alike(found.letters, by)
        if as_json:
            counted = [{by: group.name, "letters": group.count, "example": json_of(group.example)} for group in groups]
            _print({"total": total, "groups": counted, "notes": found.notes})
        else:
            picture.show(lambda columns: letters_picture.grouped(groups, by, total, found.notes, columns))
    elif as_json:
        _print({"total": total, "letters": [json_of(each) for each in found.letters[:limit]], "notes": found.notes})
    else:
        picture.show(lambda columns: letters_picture.listed(found.letters[:limit], total, found.notes, columns))


def _find_letters(files: Sequence[str], is_wanted: Callable[[DeadLetter], bool]) -> Selected:
    letters: list[DeadLetter] = []
    notes: list[str] = []
    for name, lines in _read(files):
        letters += [line.letter for line in lines if line.letter is not None and is_wanted(line.letter)]
        notes += _damaged(name, lines)
    return Selected(newest_first(letters), notes)


def _read(files: Sequence[str]) -> Iterator[tuple[str, list[ReadLine]]]:
    """Yield each file, or object in a folder, and its lines. Raises :class:`Mistake` if there are whole lines and none
    of them is a letter."""
    for name, lines in chain.from_iterable(map(read_files, files)):
        whole = [line for line in lines if line.raw.endswith(b"\n")]
        if whole and not any(line.letter for line in lines):
            raise Mistake(
                f"{name} is not a file of dead letters (line {whole[0].number}: {whole[0].wrong}): give the file that"
                " the source has as dead_letters"
            )
        yield name, lines


def _damaged(path: str, lines: Sequence[ReadLine]) -> list[str]:
    bad = [line for line in lines if line.letter is None]
    notes = [f"{path}: line {line.number} is damaged, and left out ({line.wrong})" for line in bad[:NAMED_MAX]]
    left = len(bad) - len(notes)
    return [*notes, f"{path}: {left:,} other lines are damaged, too"] if left else notes


def _show(found: Selected, number: int, *, as_json: bool) -> None:
    if number > len(found.letters):
        has = f"there are {len(found.letters):,}" if found.letters else "there are none"
        raise Mistake(f"--show {number}: no such letter, {has}; the list without --show has their numbers")
    letter = found.letters[number - 1]
    if as_json:
        _print(json_of(letter))
    else:
        picture.show(lambda _: letters_picture.whole(letter))


def _put_back(files: Sequence[str], again: str, is_wanted: Callable[[DeadLetter], bool], *, as_json: bool) -> None:
    damaged = [note for name, lines in _read(files) for note in _damaged(name, lines)]
    moved = {path: store.put_back(path, again, is_wanted) for path in files}
    count, left = (sum(getattr(each, what) for each in moved.values()) for what in ("put_back", "left"))
    kept = [
        f"{line.place or path}: line {line.number} stays: {line.letter.why_not_again}"
        for path, each in moved.items()
        for line in each.kept
        if line.letter is not None
    ]
    if as_json:
        _print({"put_back": count, "left": left, "notes": [*kept, *damaged]})
        return
    click.echo(f"{count:,} put back into {again}, {left:,} left in {', '.join(files)}")
    for note in [*kept, *damaged]:
        click.echo(f"! {note}")


def _print(what: dict[str, Any]) -> None:
    click.echo(json.dumps(what))
