"""Letters picture: how dead letters look, in a terminal and as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from acker_client.source.records.dead_letter import DeadLetter
from acker_command.letters import Alike, listed_columns, short, shown_value, time_of

# Outside a terminal a line may be long, but shows at most this many characters of a reason.
REASON_WIDTH = 100
VALUE_WIDTH = 60


def listed(letters: Sequence[DeadLetter], total: int, notes: Sequence[str], columns: int | None) -> RenderableType:
    """Draw the first of ``total`` letters, each on a line. ``columns``: the width of a terminal."""
    table = _table(columns, "n", "last (UTC)", "source", "record", "tries", "reason")
    for number, letter in enumerate(letters, 1):
        tries = str(letter.failed) + (f"+{letter.interrupted}" if letter.interrupted else "")
        reason = _shorten(short(letter.reason), columns)
        table.add_row(str(number), time_of(letter.last_s), letter.source, letter.where, tries, reason)
    left = total - len(letters)
    more: list[RenderableType] = [Text(f"and {left:,} older; --limit shows more")] if left else []
    return Group(Text(_count_text(total), "bold"), Text(), *([table] if letters else []), *more, *_noted(notes))


def grouped(
    groups: Sequence[Alike], what: str, total: int, notes: Sequence[str], columns: int | None
) -> RenderableType:
    """Draw groups of letters, with the newest of each."""
    table = _table(columns, "letters", "first (UTC)", "last (UTC)", what, "for example")
    for group in groups:
        example = group.example
        record = f"{example.where} {_shorten(shown_value(example), columns, VALUE_WIDTH)!r}"
        name = _shorten(group.name, columns)
        table.add_row(f"{group.count:,}", time_of(group.first_s), time_of(group.last_s), name, record)
    kinds = f"{len(groups):,} {what}{'' if len(groups) == 1 else 's'}"
    return Group(Text(f"{_count_text(total)}, {kinds}", "bold"), Text(), *([table] if groups else []), *_noted(notes))


def whole(letter: DeadLetter) -> RenderableType:
    """Draw all of one letter."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, value in {
        "source": letter.source,
        **{name: str(value) for name, value in letter.origin.items()},
        "failed": f"{letter.failed} times",
        "interrupted": f"{letter.interrupted} times",
        "first try": f"{time_of(letter.first_s)} UTC",
        "last try": f"{time_of(letter.last_s)} UTC",
    }.items():
        table.add_row(Text(name, "bold"), value)
    parts: list[RenderableType] = [table]
    columns = [] if letter.columns is None else [("other columns", listed_columns(letter.columns))]
    for title, text in (("reason", letter.reason), ("record", shown_value(letter)), *columns):
        parts += [Text(), Text(title, "bold"), Text(text)]
    return Group(*parts)


def _count_text(total: int) -> str:
    return "no dead letters" if not total else f"{total:,} dead letter{'' if total == 1 else 's'}"


def _table(columns: int | None, *names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        is_number = name in ("n", "tries", "letters")
        is_long = name in ("record", "reason", "for example")
        table.add_column(
            name,
            justify="right" if is_number else "left",
            no_wrap=columns is None or not is_long,
            overflow="fold",
        )
    return table


def _shorten(text: str, columns: int | None, width: int = REASON_WIDTH) -> str:
    """Return the text in one line, cut unless a terminal can fold it."""
    line = " ".join(text.split())
    is_folded = columns is not None and width == REASON_WIDTH
    return line if is_folded or len(line) <= width else f"{line[: width - 3]}..."


def _noted(notes: Sequence[str]) -> list[RenderableType]:
    return [Text(), *(Text(f"! {note}", "yellow") for note in notes)] if notes else []
