"""The file of dead letters: one JSON line for each letter, on disk when ``write`` returns."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.source import Batch, Emissions, Failures, Listener, Retry
from acker_client.source.dead_letters import letters_file as dead_letters
from acker_client.source.dead_letters.letters_file import DeadLetterFile
from acker_client.source.dead_letters.letters_log import DeadLetterLog
from acker_client.source.decoding.lines import LINE_BYTES_MAX
from acker_client.source.engine.dead_lettering import DeadLettering
from acker_client.source.errors import SourceError
from acker_client.source.files.input import FileInput
from acker_client.source.records.dead_letter import VALUE_BYTES_MAX, DeadLetter
from acker_client.source.records.in_flight import InFlight
from acker_client.source.records.input import Original
from acker_client.source.records.parts import Parts
from acker_client.source.waiting import OUTAGE_S, OutOfReach
from acker_protocol.ids import mix64_column
from acker_protocol.messages import Verdict
from tests.source.disks import forbidden, full, room_for
from tests.source.executors import NO_SPARK, Cluster, failing, save_all


def letter(value: Any = b"x", reason: str = "ValueError: no") -> DeadLetter:
    origin = {"path": "a.jsonl", "line": 7, "byte": 1234}
    return DeadLetter("orders", reason, 4, 1, 1_700_000_000.5, 1_700_000_060.0, origin, value)


def test_a_letter_has_reason_attempts_times_origin_and_value() -> None:
    assert json.loads(letter().to_json()) == {
        "source": "orders",
        "reason": "ValueError: no",
        "attempts": {"failed": 4, "interrupted": 1},
        "first": "2023-11-14T22:13:20.500+00:00",
        "last": "2023-11-14T22:14:20.000+00:00",
        "path": "a.jsonl",
        "line": 7,
        "byte": 1234,
        "value": "x",
    }


@given(st.binary(max_size=200), st.text(max_size=50))
def test_any_value_and_any_reason_come_back_from_one_line(value: bytes, reason: str) -> None:
    line = letter(value, reason).to_json()
    read = json.loads(line)
    assert "\n" not in line
    assert read["reason"] == reason
    assert (read["value"].encode() if "value" in read else base64.b64decode(read["value_base64"])) == value


def test_a_huge_value_is_cut_and_says_how_long_it_was() -> None:
    read = json.loads(letter(b"a" * (VALUE_BYTES_MAX + 5)).to_json())
    assert (len(read["value"]), read["bytes"]) == (VALUE_BYTES_MAX, VALUE_BYTES_MAX + 5)


def test_columns_are_an_object_and_text_where_they_are_huge() -> None:
    assert json.loads(letter({"sku": "ä", "qty": 1}).to_json())["value"] == {"sku": "ä", "qty": 1}
    huge = json.loads(letter({"sku": "a" * VALUE_BYTES_MAX}).to_json())
    assert (len(huge["value"]), huge["bytes"]) == (VALUE_BYTES_MAX, VALUE_BYTES_MAX + len('{"sku": ""}'))


def test_letters_are_synced_before_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    letters = DeadLetterFile(tmp_path / "dead.jsonl")
    letters.write([letter(), letter(None)])
    letters.close()
    assert synced[-1] == (tmp_path / "dead.jsonl").stat().st_size
    assert [json.loads(line)["value"] for line in (tmp_path / "dead.jsonl").open()] == ["x", None]


def test_a_directory_that_is_made_for_letters_is_synced_in_its_parent_and_then_the_file_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    letters = DeadLetterFile(tmp_path / "dead" / "letters.jsonl")
    letters.open()
    letters.close()
    assert synced == [tmp_path.stat().st_ino, letters.path.parent.stat().st_ino]


def test_a_torn_letter_of_a_crash_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    path.write_text(letter().to_json() + "\n" + letter().to_json()[:20])
    letters = DeadLetterFile(path)
    letters.write([letter(b"whole")])
    letters.close()
    assert json.loads(path.read_text().splitlines()[-1])["value"] == "whole"


def test_a_file_of_letters_and_a_directory_made_for_it_are_for_their_user_alone(tmp_path: Path) -> None:
    letters = DeadLetterFile(tmp_path / "dead" / "letters.jsonl")
    letters.write([letter()])
    letters.close()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (letters.path.parent, letters.path)] == [0o700, 0o600]


def test_a_directory_and_a_file_of_letters_that_exist_keep_their_modes(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    path.touch()
    path.chmod(0o640)
    tmp_path.chmod(0o750)
    letters = DeadLetterFile(path)
    letters.write([letter()])
    letters.close()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (tmp_path, path)] == [0o750, 0o640]


def test_a_file_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "deeper" / "dead.jsonl"
    with pytest.raises(SourceError, match=rf"cannot be written to {path} .*: create its directory.* Nothing is lost"):
        DeadLetterFile(path).write([letter()])


def test_letters_on_a_full_disk_are_named_and_closing_the_file_fails_no_more(tmp_path: Path) -> None:
    letters = DeadLetterFile(full(tmp_path / "dead.jsonl"))
    with pytest.raises(SourceError, match=rf"to {letters.path} \(No space left on device\): make room.*read again"):
        letters.write([letter()])
    letters.close()


def test_letters_that_are_cut_short_are_taken_back_whole(tmp_path: Path) -> None:
    letters = DeadLetterFile(tmp_path / "dead.jsonl")
    letters.write([letter(b"first")])
    before = letters.path.read_bytes()
    with (
        room_for(2 * len(before)),
        pytest.raises(SourceError, match=rf"cannot be written to {letters.path} \(File too large\): make room"),
    ):
        letters.write([letter(b"second"), letter(b"third"), letter(b"fourth")])
    assert letters.path.read_bytes() == before
    letters.write([letter(b"fifth")])
    letters.close()
    assert [json.loads(line)["value"] for line in letters.path.open()] == ["first", "fifth"]


def test_a_forbidden_file_of_letters_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "forbidden"
    folder.mkdir()
    letters = DeadLetterFile(folder / "dead.jsonl")
    with (
        forbidden(folder),
        pytest.raises(SourceError, match=rf"to {letters.path} \(Permission denied\): give this user the right"),
    ):
        letters.open()


values = st.one_of(
    st.none(),
    st.binary(max_size=50),
    st.text(max_size=50).map(lambda text: text.encode(errors="surrogatepass")),
    st.dictionaries(st.text(max_size=5), st.one_of(st.none(), st.integers(), st.text(max_size=5)), max_size=3),
)


columns = st.none() | st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=3)


@given(values, st.text(max_size=50), st.text(max_size=9), columns)
def test_a_letter_that_is_read_back_is_the_one_that_was_written(
    value: Any, reason: str, schema: str, columns: dict[str, Any] | None
) -> None:
    written = replace(letter(value, reason), schema=schema, columns=columns)
    assert DeadLetter.of_json(written.to_json()) == written


def test_a_record_without_a_value_can_be_put_back_and_one_that_could_not_be_read_cannot() -> None:
    assert replace(letter(None), columns={"key": None}).why_not_again == ""
    assert letter(None).why_not_again == "the input could not give its record once more"


def test_a_value_of_sixteen_mebibytes_is_kept_whole() -> None:
    whole = letter(b"\0" * VALUE_BYTES_MAX)
    line = whole.to_json()
    assert DeadLetter.of_json(line) == whole
    assert len(line) < LINE_BYTES_MAX


def test_a_letter_that_was_cut_says_so_when_it_is_read_back_and_stays_cut() -> None:
    line = letter(b"a" * (VALUE_BYTES_MAX + 5)).to_json()
    read = DeadLetter.of_json(line)
    assert read.value_bytes == VALUE_BYTES_MAX + 5
    assert read.why_not_again == "it has only a part of the record, which has 16,777,221 bytes"
    assert read.to_json() == line


@pytest.mark.parametrize("line", ["", "{", "[]", '"text"', "{}", '{"source": 1}', letter().to_json()[:-3]])
def test_text_that_is_not_a_letter_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"not (a dead letter|JSON: .*)"):
        DeadLetter.of_json(line)


@pytest.mark.parametrize(
    ("field", "damaged"),
    [
        ('"value": "x"', '"value": 5'),
        ('"value": "x"', '"value": ["x"]'),
        ('"value": "x"', '"value_base64": "%%"'),
        ('"value": "x"', '"value": "x", "bytes": "many"'),
        ('"value": "x"', '"value": ' + "[" * 100_000),
        ('"failed": 4', '"failed": Infinity'),
        ('"value": "x"', '"value": "x", "schema": 5'),
        ('"value": "x"', '"value": "x", "columns": ["x"]'),
    ],
)
def test_a_badly_edited_letter_counts_as_damaged(field: str, damaged: str) -> None:
    line = letter(b"x").to_json()
    assert field in line
    with pytest.raises(ValueError, match="not a dead letter"):
        DeadLetter.of_json(line.replace(field, damaged))


def test_a_letter_with_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not a dead letter"):
        DeadLetter.of_json(letter().to_json().replace("2023", "long ago"))


def test_a_file_that_another_process_holds_for_long_is_waited_for_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters, said = DeadLetterFile(tmp_path / "dead.jsonl"), list[str]()
    letters.open()
    with open(letters.path, "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def let_go(text: str, *of: object) -> None:
            said.append(text % of)
            fcntl.flock(held, fcntl.LOCK_UN)

        monkeypatch.setattr(dead_letters, "LONG_S", 0.0)
        monkeypatch.setattr(dead_letters.log, "warning", let_go)
        letters.write([letter()])
    assert len(letters.path.read_text().splitlines()) == 1
    assert f"waiting for another process that holds {letters.path}" in said[0]


def test_letters_go_to_a_function_and_count_as_kept_once_it_has_returned(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.write("a.txt", "good", "bad", "worse")
    taken: list[DeadLetter] = []
    options: dict[str, Any] = {"dead_letters": taken.extend, "retry": Retry(max_retries=0)}
    summary = cluster.source(**options).run(NO_SPARK, failing(lambda row: row.value != "good"))
    assert [each.value for each in taken] == [b"bad", b"worse"]
    assert (summary.acked, summary.dead_lettered) == (1, 2)


def test_a_function_that_raises_has_kept_no_letter_and_their_records_are_read_again(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.write("a.txt", "good", "bad")

    def refuse(letters: list[DeadLetter]) -> None:
        raise ConnectionError("the queue is away")

    options: dict[str, Any] = {"retry": Retry(max_retries=0), "checkpoint": tmp_path / "c"}
    source = cluster.source(dead_letters=refuse, **options)
    says = r"not taken by .*refuse \(ConnectionError: the queue is away\)\. Nothing is lost: their records are not done"
    with pytest.raises(SourceError, match=says) as raised:
        source.run(NO_SPARK, failing(lambda row: row.value == "bad"))
    assert isinstance(raised.value.__cause__, ConnectionError)
    assert source.summary().dead_lettered == 0
    assert cluster.source(**options).run(NO_SPARK, save_all).acked == 1


def test_letters_go_to_the_log_a_line_each_in_ascii(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(tmp_path)
    cluster.write("a.txt", "good", "bad\x1b[2J\u2028ä")
    options: dict[str, Any] = {"dead_letters": "log", "retry": Retry(max_retries=0)}
    summary = cluster.source(**options).run(NO_SPARK, failing(lambda row: row.value != "good"))
    assert (summary.acked, summary.dead_lettered) == (1, 1)
    (line,) = (record.getMessage() for record in caplog.records if record.name == "acker_client.source.dead_letters")
    assert (line.isascii(), line.isprintable(), line.count("\n")) == (True, True, 0)
    read = json.loads(line.removeprefix("dead letter: "))
    assert (read["value"], read["path"], read["line"]) == ("bad\x1b[2J\u2028ä", f"{tmp_path}/a.txt", 2)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("value", [b"a" * 3000, {"sku": "a" * 3000}], ids=["bytes", "columns"])
def test_a_long_value_is_cut_in_the_log(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    DeadLetterLog().write([replace(letter(value), schema="sku string", columns={"key": "k" * 3000})])
    read = json.loads(caplog.messages[0].removeprefix("dead letter: "))
    whole = len(value) if isinstance(value, bytes) else len(json.dumps(value))
    assert (len(read["value"]), read["bytes"]) == (2000, whole)
    assert len(caplog.messages[0]) < 2500


def test_a_file_of_the_name_log_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cluster = Cluster(tmp_path)
    cluster.write("a.txt", "bad")
    cluster.source(dead_letters="./log", retry=Retry(max_retries=0)).run(NO_SPARK, failing(lambda row: True))
    assert json.loads((tmp_path / "log").read_text())["value"] == "bad"


@dataclass
class AwayLetters:
    """A store of letters that is away until ``back_s`` of the time of ``cluster``."""

    cluster: Cluster
    back_s: float
    letters: list[DeadLetter] = field(default_factory=list)
    tries: int = 0

    def open(self) -> None: ...

    def write(self, letters: Iterable[DeadLetter]) -> None:
        self.tries += 1
        if self.cluster.time.clock() < self.back_s:
            raise OutOfReach("the store does not answer")
        self.letters += letters

    def close(self) -> None: ...


def test_while_the_store_of_letters_is_away_other_records_go_on_and_each_letter_is_written_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.write("a.txt", "bad", "b", "c", "bad too", "e")
    store, acked_at = AwayLetters(cluster, 50.0), list[float]()
    source = cluster.source(
        dead_letters=store, retry=Retry(max_retries=0), batch_records=1, checkpoint=tmp_path / "c", follow_s=1.0
    )

    def process(batch: Batch) -> None:
        failing(lambda row: row.value.startswith("bad"))(batch)
        acked_at.append(cluster.time.clock())
        assert not store.letters

    class Until(Listener):
        def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
            if len(store.letters) == 2:
                source.stop()

    source.options = replace(source.options, listener=Until())
    summary = source.run(NO_SPARK, process)
    assert [letter.value for letter in store.letters] == [b"bad", b"bad too"]
    assert (summary.acked, summary.dead_lettered, summary.open) == (3, 2, 0)
    assert max(acked_at) < 50.0 <= cluster.time.clock()
    assert cluster.source(checkpoint=tmp_path / "c").run(NO_SPARK, save_all).records == 0


def test_a_run_ends_once_the_store_of_letters_is_away_for_long_and_when_it_is_told_to_and_loses_nothing(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    cluster.write("a.txt", "good", "bad")
    store = AwayLetters(cluster, 10_000.0)
    options: dict[str, Any] = {"checkpoint": tmp_path / "c", "retry": Retry(max_retries=0)}
    bad = failing(lambda row: row.value == "bad")
    with pytest.raises(SourceError, match=r"^the store does not answer\. nothing is lost"):
        cluster.source(dead_letters=store, **options).run(NO_SPARK, bad)
    assert 300.0 <= cluster.time.clock() < 330.0
    source = cluster.source(dead_letters=store, **options)

    def process(batch: Batch) -> None:
        bad(batch)
        source.stop()

    summary = source.run(NO_SPARK, process)
    assert (summary.records, summary.open, summary.dead_lettered) == (1, 1, 0)
    assert cluster.time.clock() < 340.0
    assert cluster.source(**options).run(NO_SPARK, save_all).acked == 1


def test_letters_of_a_partition_that_cannot_be_read_wait_and_those_of_the_others_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path)
    cluster.write("a.txt", "a")
    cluster.write("b.txt", "b")
    store = AwayLetters(cluster, 0.0)

    def away(_: object) -> list[str]:
        return [str(tmp_path / "a.txt")] if cluster.time.clock() < 50.0 else []

    monkeypatch.setattr(FileInput, "away", away, raising=False)
    source = cluster.source(dead_letters=store, retry=Retry(max_retries=0))
    source.run(NO_SPARK, failing(lambda row: True))
    assert [(letter.value, letter.last_s >= 1_700_000_050.0) for letter in store.letters] == [
        (b"b", False),
        (b"a", True),
    ]


def test_letters_wait_for_an_input_that_is_away_and_if_it_stays_away_the_run_ends_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, originals = Cluster(tmp_path), FileInput.originals
    cluster.write("a.txt", "good", "bad", "worse")
    back_s = [50.0]

    def away_for_a_while(input_: Any, chosen: Any) -> Any:
        if cluster.time.clock() < back_s[0]:
            raise OutOfReach("the store does not answer")
        return originals(input_, chosen)

    monkeypatch.setattr(FileInput, "originals", away_for_a_while)
    options: dict[str, Any] = {"checkpoint": tmp_path / "c", "retry": Retry(max_retries=0)}
    assert cluster.source(**options).run(NO_SPARK, failing(lambda row: row.value == "bad")).dead_lettered == 1
    (line,) = (tmp_path / "dead.jsonl").read_text().splitlines()
    assert DeadLetter.of_json(line).value == b"bad"
    assert cluster.time.clock() >= 50.0
    cluster.write("b.txt", "bad too")
    back_s[0] = 10_000.0
    with pytest.raises(SourceError, match=r"records cannot be read: the store does not answer\. nothing is lost"):
        cluster.source(**options).run(NO_SPARK, failing(lambda row: True))
    assert len((tmp_path / "dead.jsonl").read_text().splitlines()) == 1
    again = cluster.source(**options).run(NO_SPARK, save_all)
    assert (again.records, again.acked) == (1, 1)


class Dying:
    """Records that have spent their retries, and their letters. ``away``: the records that cannot be read."""

    def __init__(self, cluster: Cluster, store: AwayLetters) -> None:
        self.cluster, self.store, self.away = cluster, store, set[int]()
        self.is_input_away = False
        options = cluster.source(dead_letters=store, max_dead_share=1.0).options
        lookup: Any = SimpleNamespace(
            parts=Parts[Any]({}),
            is_reachable=lambda: not self.is_input_away,
            away_records=lambda: np.array(sorted(self.away), np.int64),
            originals=self._originals,
        )
        in_flight = InFlight(1, Retry(), cluster.environment().draw)
        self.letters = DeadLettering(options, cluster.environment(), lookup, in_flight)
        self.letters.note_first_emission(0, 0.0)

    def _originals(self, records: Any) -> list[Original]:
        if self.is_input_away:
            raise OutOfReach("no broker")
        return [Original({"record": record}, b"") for record in records.tolist()]

    def die(self, *records: int) -> None:
        numbers = np.array(records, np.int64)
        kinds = np.full(len(numbers), Verdict.FAILED, np.uint8)
        roots = mix64_column(numbers.astype(np.uint64))
        self.letters.queue(Failures(numbers, roots, kinds, np.zeros(len(numbers), np.uint32), ()))

    def at(self, now_s: float) -> list[int]:
        """Write letters at this time. Returns the records that are done."""
        self.cluster.time.sleep(now_s - self.cluster.time.clock())
        return self.letters.write_queued().records.tolist() if self.letters.has_queued else []

    @property
    def written(self) -> list[int]:
        return [letter.origin["record"] for letter in self.store.letters]


@pytest.fixture
def dying(tmp_path: Path) -> Dying:
    cluster = Cluster(tmp_path)
    return Dying(cluster, AwayLetters(cluster, 0.0))


@pytest.mark.parametrize("back_s", [OUTAGE_S - 50.0, OUTAGE_S + 5.0])
def test_letters_that_a_store_takes_after_an_outage_are_done_also_if_other_records_have_died_meanwhile(
    dying: Dying, back_s: float
) -> None:
    dying.store.back_s = back_s
    dying.die(1)
    assert dying.at(0.0) == []
    assert dying.at(OUTAGE_S - 60.0) == []
    dying.die(2)
    assert dying.at(back_s) == [1]
    assert dying.at(back_s) == [2]
    assert dying.written == [1, 2]
    dying.store.back_s = OUTAGE_S + 700.0
    dying.die(3)
    # Another outage, which counts from its own beginning.
    assert [dying.at(now_s) for now_s in (OUTAGE_S + 400.0, OUTAGE_S + 690.0, OUTAGE_S + 705.0)] == [[], [], [3]]


def test_a_run_that_ends_because_of_one_partition_has_written_no_letter_of_a_record_that_is_not_done(
    dying: Dying,
) -> None:
    dying.away = {1}
    dying.die(1)
    done = []
    for now_s in range(0, int(OUTAGE_S), 20):
        dying.die(100 + now_s)
        done += dying.at(float(now_s))
    assert done == dying.written == list(range(100, 100 + int(OUTAGE_S), 20))
    dying.die(999)
    with pytest.raises(SourceError, match=r"their records cannot be read\. nothing is lost"):
        dying.at(OUTAGE_S + 1.0)
    assert dying.written == done


def test_a_partition_that_goes_away_later_has_its_own_time_before_the_run_ends(dying: Dying) -> None:
    dying.die(1, 2)
    dying.away = {1}
    assert dying.at(0.0) == [2]
    dying.die(3)
    dying.away = {1, 3}
    assert dying.at(200.0) == []
    dying.away = {3}
    assert dying.at(250.0) == [1]
    assert dying.at(OUTAGE_S + 150.0) == []
    with pytest.raises(SourceError, match="their records cannot be read"):
        dying.at(OUTAGE_S + 201.0)
    dying.away = set()
    assert dying.at(OUTAGE_S + 220.0) == [3]


@pytest.mark.parametrize("what", ["store", "input", "partition"])
def test_an_outage_ends_with_the_records_that_waited_for_it(
    dying: Dying, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    def go_away(now_s: float) -> None:
        dying.store.back_s = now_s + 1.0 if what == "store" else 0.0
        dying.is_input_away, dying.away = what == "input", {1, 2} if what == "partition" else set()

    go_away(0.0)
    dying.die(1)
    assert dying.at(0.0) == []
    # Another member of the group has the partition now.
    dying.letters.drop_records(np.array([1]))
    assert not dying.letters.has_queued
    go_away(10_000.0)
    dying.die(2)
    assert dying.at(10_000.0) == []
    go_away(-1.0)
    dying.is_input_away, dying.away = False, set()
    assert dying.at(10_020.0) == [2]
    assert sum("waiting for it" in line for line in caplog.messages) == 2
