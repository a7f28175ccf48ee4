"""Dead letters in stores: objects of a folder, which are read, shown and put back like the lines of a file."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client.source import DeadLetterObjects, Files, PutBack, Retry, SourceError
from acker_client.source.dead_letters import letter_objects
from acker_client.source.dead_letters.letters_file import DeadLetterFile
from acker_client.source.put_back import stored
from acker_client.source.put_back.input import first_columns
from acker_client.source.put_back.letter_lines import Moved
from acker_client.source.put_back.store import put_back, read_files
from acker_client.source.records.dead_letter import DeadLetter
from acker_client.source.records.stores import DeadLetterStore
from acker_client.source.storage.store import Store
from acker_client.source.waiting import OutOfReach
from acker_command.dead_letters import dead_letters
from acker_command.options import run
from tests.source.executors import NO_SPARK, Cluster, failing, frame_of
from tests.source.s3_server import S3Server, nothing
from tests.source.stores import filesystem_over, store_over


@pytest.fixture
def server(s3_server: S3Server) -> S3Server:
    return s3_server


def letter(number: int, value: bytes | None = b"x", reason: str = "ValueError: no") -> DeadLetter:
    origin = {"path": "a.jsonl", "line": number, "byte": 10 * number}
    return DeadLetter("orders", reason, 4, 1, 1_700_000_000.5, 1_700_000_060.0 + number, origin, value)


def lines_in(url: str) -> list[int]:
    """Return the numbers of the letters at a URL, in order."""
    return [line.letter.origin["line"] for _, lines in read_files(url) for line in lines if line.letter is not None]


def everything(letter: DeadLetter) -> bool:
    return True


@pytest.mark.long
def test_each_write_is_an_object_and_all_are_read_in_the_order_of_writing(server: S3Server, bucket: str) -> None:
    url = f"s3://{bucket}/dead/orders{server.query}"
    now_s = iter([1_700_000_002.0, 1_700_000_003.5, 1_700_000_003.5])
    letters = DeadLetterObjects(url)
    letters._wall = lambda: next(now_s)
    assert isinstance(letters, DeadLetterStore)
    letters.open()
    assert server.keys(bucket) == ["dead/orders/.writable"]
    letters.write([letter(1), letter(2)])
    letters.write([letter(3)])
    letters.write([letter(4)])
    _, first, second, third = server.keys(bucket)
    assert first.startswith("dead/orders/20231114T221322.000000Z-")
    assert second.startswith("dead/orders/20231114T221323.500000Z-")
    assert (first[-13:], second[-13:], third[-13:]) == ("-000001.jsonl", "-000002.jsonl", "-000003.jsonl")
    assert server.get(bucket, first).decode() == "".join(f"{letter(number).to_json()}\n" for number in (1, 2))
    assert lines_in(url) == [1, 2, 3, 4]
    assert lines_in(f"s3://{bucket}/{third}{server.query}") == [4]
    assert str(letters) == f"s3://{bucket}/dead/orders"


def test_two_drivers_write_objects_of_their_own(server: S3Server, bucket: str) -> None:
    url = f"s3://{bucket}/dead{server.query}"
    for number in range(3):
        letters = DeadLetterObjects(url)
        letters._wall = lambda: 1_700_000_000.0
        letters.write([letter(number)])
    assert sorted(lines_in(url)) == [0, 1, 2]


def test_a_large_write_becomes_several_objects(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_objects, "PART_BYTES", 500)
    url = f"s3://{bucket}/dead{server.query}"
    DeadLetterObjects(url).write(letter(number) for number in range(10))
    assert len(server.keys(bucket)) == 4
    assert lines_in(url) == list(range(10))


def test_letters_are_written_again_if_the_store_was_away_and_none_is_there_twice(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = DeadLetterObjects(f"{bucket}/dead", filesystem=server.filesystem())
    calls = iter(range(20))
    server.before = lambda method, path: (503, "SlowDown") if method != "GET" and next(calls) in (0, 2, 4) else None
    for number in (1, 2):
        while True:
            with suppress(OutOfReach):
                letters.write([letter(number)])
                break
    server.before = nothing
    store_write = Store.write

    def written_without_an_answer(store: Store, path: str, content: bytes) -> None:
        store_write(store, path, content)
        raise OutOfReach("no answer")

    with monkeypatch.context() as outage:
        outage.setattr(Store, "write", written_without_an_answer)
        with pytest.raises(OutOfReach, match=r"dead letters cannot be written to .*no answer$"):
            letters.write([letter(3)])
    letters.write([letter(3)])
    assert lines_in(f"s3://{bucket}/dead{server.query}") == [1, 2, 3]


def test_an_outage_that_lasts_and_a_forbidden_or_missing_bucket_lose_nothing_and_are_named(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_objects, "OUTAGE_S", 0.0)
    letters = DeadLetterObjects(f"{bucket}/dead", filesystem=server.filesystem())
    lost = ".*Nothing is lost: their records are not"
    for failure, says in (((503, "SlowDown"), "does not answer"), ((403, "AccessDenied"), "no permission" + lost)):
        server.before = lambda method, path, failure=failure: failure  # type: ignore[misc]
        match = rf"dead letters cannot be written to {bucket}/dead: .*{says}"
        for attempt in (letters.open, partial(letters.write, [letter(1)])):
            with pytest.raises(SourceError, match=match):
                attempt()
    server.before = nothing
    with pytest.raises(SourceError, match="cannot be written to s3://nowhere/dead: there is no s3://nowhere:"):
        DeadLetterObjects(f"s3://nowhere/dead{server.query}").open()


def test_letters_in_a_file_system_are_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    letters = DeadLetterObjects("deep/dead", filesystem=filesystem_over(tmp_path))
    letters.open()
    letters.write([letter(1)])
    names = sorted(path.name for path in (tmp_path / "deep" / "dead").iterdir())
    assert names[0] == ".writable"
    assert len(names) == 2
    assert names[1].endswith("-000001.jsonl")


@pytest.mark.parametrize("folder", ["dead[1]", "dead*", "dead?", "dead"])
def test_the_letters_of_a_folder_are_found_though_its_name_looks_like_a_pattern(tmp_path: Path, folder: str) -> None:
    for name in (folder, "dead1", f"{folder}/deeper"):
        (tmp_path / name).mkdir()
        for letters in ("b.jsonl", "a.jsonl", ".writable", ".a.jsonl", "a.txt"):
            (tmp_path / name / letters).touch()
    found = letter_objects.objects_of(store_over(tmp_path), folder)
    assert found == [f"{folder}/a.jsonl", f"{folder}/b.jsonl"]


@pytest.mark.parametrize("url", ["dead", "/dead", "ftp://host/dead"])
def test_a_folder_that_is_no_url_needs_a_filesystem(url: str) -> None:
    with pytest.raises(ValueError, match=r"DeadLetterObjects\(.*\): give a URL, like s3://bucket/dead, or filesystem="):
        DeadLetterObjects(url)


# -- put back

letters_of = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([b"a", b"b", None])), max_size=8, unique_by=lambda each: each
)


@pytest.mark.slow
@given(st.lists(letters_of, max_size=3), st.lists(st.sets(st.integers(0, 3)), max_size=3))
@settings(max_examples=60, deadline=None)
def test_putting_back_objects_moves_what_putting_back_a_file_moves(
    tmp_path_factory: pytest.TempPathFactory,
    writes: list[list[tuple[int, bytes | None]]],
    choices: list[set[int]],
) -> None:
    folder = tmp_path_factory.mktemp("twin")
    (folder / "local").mkdir()
    file = DeadLetterFile(folder / "local" / "dead.jsonl")
    file.open()
    objects = DeadLetterObjects("dead", filesystem=filesystem_over(folder))
    for write in writes:
        made = [letter(number, value) for number, value in write]
        file.write(made)
        objects.write(made)
    file.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "folder_of", lambda path: (store_over(folder), path))
        for chosen in choices:

            def is_chosen(letter: DeadLetter, chosen: set[int] = chosen) -> bool:
                return letter.origin["line"] in chosen

            local = put_back(folder / "local" / "dead.jsonl", folder / "local" / "again.jsonl", is_chosen)
            moved = stored.put_back("dead", "again", is_chosen)
            assert (moved.put_back, moved.left, len(moved.kept)) == (local.put_back, local.left, len(local.kept))
        for name in ("dead", "again"):
            path = folder / "local" / f"{name}.jsonl"
            raw = [line.raw for _, lines in stored.read_objects(name) for line in lines]
            assert sorted(raw) == (sorted(path.read_bytes().splitlines(keepends=True)) if path.exists() else [])


class Crash(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("moment", range(4))
def test_a_crash_while_letters_are_put_back_loses_none_and_the_same_command_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    objects = DeadLetterObjects("dead", filesystem=filesystem_over(tmp_path))
    objects.write([letter(1), letter(2)])
    objects.write([letter(3)])
    monkeypatch.setattr(stored, "folder_of", lambda path: (store_over(tmp_path), path))
    left = [moment]

    def dying(step: Any) -> Any:
        def called(*given: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            return step(*given)

        return called

    def is_odd(letter: DeadLetter) -> bool:
        return bool(letter.origin["line"] % 2)

    def numbers(name: str) -> list[int]:
        found = [line.letter for _, lines in stored.read_objects(name) for line in lines]
        return sorted(letter.origin["line"] for letter in found if letter is not None)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", dying(Store.write))
        patch.setattr(Store, "delete", dying(Store.delete))
        with pytest.raises(Crash):
            stored.put_back("dead", "again", is_odd)
    assert {*numbers("dead"), *numbers("again")} == {1, 2, 3}
    stored.put_back("dead", "again", is_odd)
    assert (numbers("dead"), numbers("again")) == ([2], [1, 3])


def test_each_object_is_read_once_while_letters_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "folder_of", lambda path: (store_over(tmp_path), path))
    for name, numbers in (("again", range(3)), ("dead", range(10))):
        objects = DeadLetterObjects(name, filesystem=filesystem_over(tmp_path))
        for number in numbers:
            objects.write([letter(number)])
    reads, read = list[str](), Store.read

    def noted(self: Store, path: str) -> bytes:
        reads.append(path)
        return read(self, path)

    monkeypatch.setattr(Store, "read", noted)
    assert stored.put_back("dead", "again", everything).put_back == 10
    assert (len(reads), len(set(reads))) == (13, 13)


def test_letters_are_put_back_within_a_store_and_not_across(server: S3Server, bucket: str, tmp_path: Path) -> None:
    dead, again = (f"s3://{bucket}/{name}{server.query}" for name in ("dead", "again"))
    letters = DeadLetterObjects(dead)
    letters.write([letter(1), letter(2, None)])
    letters.write([letter(3)])
    moved = put_back(dead, again, everything)
    assert (moved.put_back, moved.left, len(moved.kept)) == (2, 1, 1)
    assert (lines_in(dead), lines_in(again)) == ([2], [1, 3])
    (left,) = [key for key in server.keys(bucket) if key.startswith("dead/") and key.endswith(".jsonl")]
    assert [(line.place, line.number) for line in moved.kept] == [(f"s3://{bucket}/{left}", 2)]
    (kept,) = (replace(line, number=1) for line in moved.kept)
    assert put_back(dead, again, everything) == Moved(0, 1, (kept,))
    with pytest.raises(SourceError, match=r"give two URLs of stores, or two local files"):
        put_back(dead, tmp_path / "again.jsonl", everything)
    with pytest.raises(SourceError, match=r"is where the letters are: name another folder"):
        put_back(dead, dead, everything)
    server.put(bucket, "other/a.jsonl", "no letter\n")
    letters.write([letter(5)])
    with pytest.raises(SourceError, match=r"other is not a file of dead letters \(line 1: not JSON"):
        put_back(dead, f"s3://{bucket}/other{server.query}", everything)


def test_a_record_that_died_in_a_store_is_put_back_and_read_once(server: S3Server, bucket: str, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.write("a.txt", "good", "bad", "worse")
    dead, again = (f"s3://{bucket}/{name}{server.query}" for name in ("dead", "again"))
    source = cluster.source(dead_letters=dead, retry=Retry(max_retries=0), checkpoint=f"s3://{bucket}/c{server.query}")
    summary = source.run(NO_SPARK, failing(lambda row: row.value != "good"))
    assert (summary.acked, summary.dead_lettered) == (1, 2)
    assert put_back(dead, again, everything).put_back == 2
    rows: list[tuple[str, int]] = []

    def process(batch: Any) -> None:
        found = frame_of(batch).rows()
        rows.extend((row.value, row.line) for row in found)
        frame_of(batch).ack(found)

    options: dict[str, Any] = {"name": "again", "checkpoint": tmp_path / "again.ckpt", "dead_letters": dead}
    options["environment"] = cluster.environment()
    paths = f"s3://{bucket}/again/*.jsonl{server.query}"
    assert PutBack(paths, **options).run(NO_SPARK, process).acked == 2
    assert rows == [("bad", 2), ("worse", 3)]
    assert PutBack(paths, **options).run(NO_SPARK, process).records == 0


def test_the_columns_of_letters_in_a_store_are_those_that_the_first_one_names(server: S3Server, bucket: str) -> None:
    letters = DeadLetterObjects(f"s3://{bucket}/again{server.query}")
    paths = f"s3://{bucket}/again/*{server.query}"
    assert first_columns(paths) == ""
    letters.write([replace(letter(1), schema="key binary")])
    letters.write([letter(2)])
    assert first_columns(paths) == "key binary"
    assert first_columns(f"{bucket}/again/*", server.filesystem()) == "key binary"


def test_the_letters_of_a_source_are_no_part_of_its_input(server: S3Server, bucket: str, tmp_path: Path) -> None:
    DeadLetterObjects(f"s3://{bucket}/in/dead{server.query}").write([letter(1)])
    cluster = Cluster(tmp_path)
    source = Files(
        f"s3://{bucket}/in/**/*.jsonl{server.query}",
        name="orders",
        dead_letters=f"s3://{bucket}/in/dead",
        environment=cluster.environment(),
    )
    input_, _ = source.input()
    with pytest.raises(SourceError, match=r"in/dead/.*\.jsonl' is written by this source: keep it out of the paths"):
        input_.start({})


# -- the command


def test_the_command_shows_letters_of_a_folder_and_moves_them(
    server: S3Server, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dead, again = (f"s3://{bucket}/{name}{server.query}" for name in ("dead", "again"))
    letters = DeadLetterObjects(dead)
    letters.write([letter(1, reason="KeyError: 'qty'")])
    letters.write([letter(2)])
    server.put(bucket, "dead/z.jsonl", letter(3).to_json() + "\nnot JSON\n")

    def printed(*words: str) -> str:
        assert run(dead_letters, words) == 0
        return capsys.readouterr().out

    found = json.loads(printed(dead, "--json"))
    assert [each["origin"]["line"] for each in found["letters"]] == [3, 2, 1]
    assert found["notes"] == [
        f"s3://{bucket}/dead/z.jsonl: line 2 is damaged, and left out (not JSON: Expecting value)"
    ]
    assert printed(dead, "--reason", "KeyError", "--put-back", again).startswith(
        f"1 put back into {again}, 3 left in {dead}\n"
    )
    assert (lines_in(dead), lines_in(again)) == ([2, 3], [1])
    assert run(dead_letters, (f"s3://{bucket}/nothing{server.query}",)) == 0
    assert "no dead letters" in capsys.readouterr().out
    assert run(dead_letters, (f"s3://nowhere/dead{server.query}",)) == 2
    assert "there is no s3://nowhere: create it, or name another" in capsys.readouterr().err
