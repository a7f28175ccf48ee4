"""``acker dead-letters``: list dead letters, show their reasons, and put them back for another try."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from acker_client.source import DeadLetter
from acker_client.source.dead_letters.letters_file import DeadLetterFile
from acker_client.source.put_back.store import read_letters
from acker_command import letters_picture
from acker_command.dead_letters import dead_letters
from acker_command.letters import since
from acker_command.options import run

BEGAN_S = 1_700_000_000.0


def letter(number: int, **given: Any) -> DeadLetter:
    reason = f"items: KeyError: 'qty'\nTraceback (most recent call last):\n  line {number}"
    letter: dict[str, Any] = {
        "source": "orders",
        "reason": reason if number % 3 else "unreadable: not JSON",
        "failed": 4,
        "interrupted": number % 2,
        "first_s": BEGAN_S + number,
        "last_s": BEGAN_S + 60 + number,
        "origin": {"path": "orders/monday.jsonl", "line": number, "byte": 10 * number},
        "value": b'{"sku": %d}' % number,
    }
    return DeadLetter(**(letter | given))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    letters = DeadLetterFile(tmp_path / "dead.jsonl")
    letters.write([*map(letter, range(1, 6)), letter(6, source="events", value={"id": 6, "sku": "ä"})])
    letters.close()
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    ended = run(dead_letters, words)
    out, err = capsys.readouterr()
    assert (ended, err) == (0, "")
    return str(out)


def mistaken(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(dead_letters, words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return str(err.removeprefix("acker dead-letters: ").strip())


def test_the_newest_come_first_with_where_they_stand_and_why_they_died(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, "dead.jsonl", "--limit", "3").splitlines() == [
        "6 dead letters",
        "",
        "n  last (UTC)           source  record                 tries  reason",
        "1  2023-11-14 22:14:26  events  orders/monday.jsonl:6      4  unreadable: not JSON",
        "2  2023-11-14 22:14:25  orders  orders/monday.jsonl:5    4+1  items: KeyError: 'qty'",
        "3  2023-11-14 22:14:24  orders  orders/monday.jsonl:4      4  items: KeyError: 'qty'",
        "and 3 older; --limit shows more",
    ]


def test_they_are_grouped_by_reason_with_an_example_of_each(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = printed(capsys, "dead.jsonl", "--by", "reason").splitlines()[3:]
    assert re.split(" {2,}", first.strip()) == [
        *("4", "2023-11-14 22:14:21", "2023-11-14 22:14:25", "items: KeyError: 'qty'"),
        "orders/monday.jsonl:5 '{\"sku\": 5}'",
    ]
    assert second.endswith("  unreadable: not JSON    orders/monday.jsonl:6 'id: 6 sku: ä'")
    grouped = json.loads(printed(capsys, "dead.jsonl", "--by", "source", "--json"))
    assert [(each["source"], each["letters"]) for each in grouped["groups"]] == [("orders", 5), ("events", 1)]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ((), [6, 5, 4, 3, 2, 1]),
        (("--source", "events"), [6]),
        (("--reason", "keyerror"), [5, 4, 2, 1]),
        (("--reason", "line 4"), [4]),
        (("--since", "2023-11-14T22:14:25"), [6, 5]),
        (("--since", "2023-11-14T23:14:25+01:00", "--source", "orders"), [5]),
        (("--since", "1h"), []),
        (("--limit", "2"), [6, 5]),
    ],
)
def test_they_are_found_by_source_reason_and_time(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], lines: list[int]
) -> None:
    found = json.loads(printed(capsys, "dead.jsonl", "--json", *words))
    assert [each["origin"]["line"] for each in found["letters"]] == lines


def test_one_is_shown_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "dead.jsonl", "--show", "2") == (
        "source       orders\n"
        "path         orders/monday.jsonl\n"
        "line         5\n"
        "byte         50\n"
        "failed       4 times\n"
        "interrupted  1 times\n"
        "first try    2023-11-14 22:13:25 UTC\n"
        "last try     2023-11-14 22:14:25 UTC\n"
        "\n"
        "reason\n"
        "items: KeyError: 'qty'\n"
        "Traceback (most recent call last):\n"
        "  line 5\n"
        "\n"
        "record\n"
        '{"sku": 5}\n'
    )
    shown = json.loads(printed(capsys, "dead.jsonl", "--show", "1", "--json"))
    assert (shown["value"], shown["can_be_put_back"]) == ({"id": 6, "sku": "ä"}, True)


def test_all_of_a_letter_is_shown_as_it_is_and_nothing_in_it_is_markup(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = DeadLetterFile(folder / "markup.jsonl")
    origin = {"path": "[red]/data", "line": 1}
    letters.write(
        [letter(1, reason="no such inputs: [/data/a.csv] :warning:", origin=origin, value={"unit": "\ud83d"})]
    )
    letters.close()
    assert "[red]/data:1    4+1  no such inputs: [/data/a.csv] :warning:\n" in printed(capsys, "markup.jsonl")
    assert "  no such inputs: [/data/a.csv] :warning:  [red]/data:1" in printed(
        capsys, "markup.jsonl", "--by", "reason"
    )
    assert "path         [red]/data\n" in (shown := printed(capsys, "markup.jsonl", "--show", "1"))
    assert shown.endswith("unit: \\ud83d\n")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "[red]/data" in (shown := printed(capsys, "markup.jsonl", "--show", "1"))
    assert "unit: \\ud83d" in shown


def test_a_record_of_kafka_is_shown_with_its_headers_and_one_without_a_value_can_be_put_back(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"key": {"base64": "/w=="}, "headers": [{"key": "a", "value": None}]}
    letters = DeadLetterFile(folder / "kafka.jsonl")
    letters.write([letter(1, value=None, schema="key binary, value binary", columns=columns)])
    letters.close()
    assert printed(capsys, "kafka.jsonl", "--show", "1").splitlines()[-6:] == [
        "record",
        "(none)",
        "",
        "other columns",
        "key: {'base64': '/w=='}",
        "headers: [{'key': 'a', 'value': None}]",
    ]
    shown = json.loads(printed(capsys, "kafka.jsonl", "--show", "1", "--json"))
    assert (shown["schema"], shown["columns"], shown["can_be_put_back"]) == ("key binary, value binary", columns, True)


def test_those_that_are_chosen_are_put_back_and_what_has_no_record_stays(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = DeadLetterFile(folder / "more.jsonl")
    more.write([letter(7), letter(8, value=None)])
    more.close()
    words = ("dead.jsonl", "more.jsonl", "--reason", "KeyError", "--put-back", "again.jsonl")
    assert printed(capsys, *words).splitlines() == [
        "5 put back into again.jsonl, 3 left in dead.jsonl, more.jsonl",
        "! more.jsonl: line 2 stays: the input could not give its record once more",
    ]
    again = [line.letter.origin["line"] for line in read_letters(folder / "again.jsonl") if line.letter]
    assert again == [1, 2, 4, 5, 7]
    assert json.loads(printed(capsys, *words, "--json"))["put_back"] == 0
    assert printed(capsys, "dead.jsonl").startswith("2 dead letters\n")


def test_a_damaged_line_is_named_and_the_others_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / "dead.jsonl").open("a") as file:
        file.write("rubbish\n[]\n{}\n{}\n{}\n{")
    notes = json.loads(printed(capsys, "dead.jsonl", "--json"))["notes"]
    assert notes == [
        "dead.jsonl: line 7 is damaged, and left out (not JSON: Expecting value)",
        "dead.jsonl: line 8 is damaged, and left out (not a dead letter)",
        "dead.jsonl: line 9 is damaged, and left out (not a dead letter)",
        "dead.jsonl: 3 other lines are damaged, too",
    ]
    (folder / "empty.jsonl").touch()
    assert printed(capsys, "empty.jsonl").strip() == "no dead letters"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("none.jsonl",), "none.jsonl cannot be read (No such file or directory): bring it back, or name another"),
        ((), "no file is named: give the file that the source has as dead_letters, like dead.jsonl"),
        (("dead.jsonl", "--show", "9"), "--show 9: no such letter, there are 6; the list without --show has their"),
        (("dead.jsonl", "--since", "long ago"), "--since long ago: give a time like 2026-11-22T08:30 (UTC), or a span"),
        (("dead.jsonl", "--put-back", "dead.jsonl"), "is where the letters are: name another file to put them back"),
        (("none.jsonl", "--put-back", "a"), "none.jsonl cannot be read (No such file or directory): bring it back"),
        (("dead.jsonl", "--sinse", "2h"), "--sinse: no such option; the nearest is --since"),
        (("dead.jsonl", "--by", "hour"), "'hour' is not one of 'reason', 'source'"),
    ],
)
def test_mistakes_are_one_sentence_each(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert says in mistaken(capsys, *words)


WAYS = [("--put-back", "again.jsonl"), ("--show", "1"), ("--by", "reason"), ("--limit", "20")]


@pytest.mark.parametrize(("first", "second"), list(combinations(WAYS, 2)))
def test_two_options_of_which_one_would_be_ignored_are_refused_and_move_no_letter(
    folder: Path, capsys: pytest.CaptureFixture[str], first: tuple[str, str], second: tuple[str, str]
) -> None:
    said = f"{first[0]} and {second[0]} do not go together: give one of them"
    assert mistaken(capsys, "dead.jsonl", *second, *first) == said
    assert not (folder / "again.jsonl").exists()


def test_in_a_narrow_terminal_long_reasons_are_folded_not_cut() -> None:
    reason = "ValueError: " + "long " * 30
    console = Console(width=70, record=True, force_terminal=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(letters_picture.listed([letter(1, reason=reason)], 1, [], 70))
    text = console.export_text()
    assert text.count("long") == 30
    assert max(map(len, text.splitlines())) <= 70


def test_a_file_of_something_else_is_refused_and_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "orders.ckpt").write_text('{\n "format": "acker-checkpoint"\n}\n')
    for more in ([], ["--by", "reason"], ["--put-back", "again.jsonl"]):
        said = mistaken(capsys, "orders.ckpt", *more)
        assert said.startswith("orders.ckpt is not a file of dead letters (line 1: not JSON: ")
        assert said.endswith("): give the file that the source has as dead_letters")
    assert not (folder / "again.jsonl").exists()


def test_a_letter_that_is_just_being_written_is_no_file_of_something_else(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "new.jsonl").write_text('{"source": "ord')
    assert "no dead letters" in printed(capsys, "new.jsonl")


def test_what_is_damaged_is_named_where_letters_are_put_back_and_stays(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "dead.jsonl").open("a") as file:
        file.write("not JSON\n")
    told = printed(capsys, "dead.jsonl", "dead.jsonl", "--put-back", "again.jsonl").splitlines()
    assert told[0] == "6 put back into again.jsonl, 1 left in dead.jsonl"
    assert told[1] == "! dead.jsonl: line 7 is damaged, and left out (not JSON: Expecting value)"
    assert (folder / "dead.jsonl").read_text() == "not JSON\n"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 910.0), ("1.5m", 910.0), ("0.25h", 100.0), ("1970-01-02", 86400)]
)
def test_a_time_and_a_span_are_understood(text: str, seconds: float) -> None:
    assert since(text, 1000.0) == seconds


def test_the_command_is_one_of_ackers(folder: Path) -> None:
    command = [sys.executable, "-m", "acker_command", "dead-letters", "dead.jsonl", "--limit", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("6 dead letters\n")


def test_files_are_named_by_urls_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead, again = f"file://{folder}/dead.jsonl", f"file://{folder}/again.jsonl"
    assert json.loads(printed(capsys, dead, "--json"))["total"] == 6
    printed(capsys, dead, "--source", "events", "--put-back", again)
    assert len(read_letters(folder / "again.jsonl")) == 1
    assert len(read_letters(folder / "dead.jsonl")) == 5
    assert not (folder / "file:").exists()
