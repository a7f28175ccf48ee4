"""Files that grow while they are read: added lines are read once, even if the file is renamed."""

from __future__ import annotations

import gzip
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client.source import Batch, Files
from acker_client.source.decoding.lines import TextParser
from acker_client.source.errors import CheckpointError, InputChanged
from acker_client.source.files.input import FileInput
from acker_client.source.records.ranges import Ranges
from tests.source.driven import Driven, Tail
from tests.source.executors import NO_SPARK, Cluster, save_all


def rotate_keeping_two(folder: Path) -> None:
    """Rotate like logrotate with `rotate 2` on ext4: the new app.log gets the inode of the file that was removed."""
    oldest, spare = folder / "app.log.2", folder / "spare"
    if oldest.exists():
        oldest.rename(spare)
    rotate(folder)
    spare.write_text("")
    spare.rename(folder / "app.log")


def rotate(folder: Path) -> None:
    """Rotate like logrotate with `create`: app.log becomes app.log.1, and app.log.1 becomes app.log.2."""
    names = sorted(folder.glob("app.log*"), key=lambda path: -int(path.suffix[1:] if path.suffix != ".log" else 0))
    for path in names:
        number = 0 if path.suffix == ".log" else int(path.suffix[1:])
        path.rename(folder / f"app.log.{number + 1}")


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_every_line_is_read_once_through_appends_rotations_new_files_and_restarts(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("follow")
    pattern = f"{folder}/*"
    written: list[str] = []
    begun = dict.fromkeys(("app.log", "other.txt"), "")
    done: list[str] = []
    tail, read = Tail(pattern, block_bytes=16), dict[int, str]()
    for number in range(data.draw(st.integers(1, 25))):
        turn = data.draw(st.sampled_from(["line", "line", "begin", "rotate", "look", "look few", "finish", "restart"]))
        name = data.draw(st.sampled_from(sorted(begun)))
        if turn in ("line", "begin"):
            with (folder / name).open("a") as file:
                text = f"{begun[name]}<{number}>"
                file.write(f"<{number}>" + ("\n" if turn == "line" else ""))
            begun[name] = "" if turn == "line" else text
            written += [text] if turn == "line" else []
        elif turn == "rotate" and (folder / "app.log").exists():
            with (folder / "app.log").open("a") as writer:
                rotate(folder)
                if begun["app.log"]:  # the writer still has the old file open, and ends its line there
                    writer.write("\n")
                    written.append(begun["app.log"])
                    begun["app.log"] = ""
        elif turn.startswith("look"):
            records = tail.look(3 if turn == "look few" else 1000)
            read |= dict(zip(records, tail.read(records), strict=True))
        elif turn == "finish" and read:
            finished = data.draw(st.sets(st.sampled_from(sorted(read))))
            tail.driven.finish(sorted(finished & tail.driven._open))
        elif turn == "restart":
            done += [value for record, value in read.items() if record not in tail.driven._open]
            tail, read = Tail(pattern, dict(tail.driven.committed()), block_bytes=16), {}
    while records := tail.look():
        read |= dict(zip(records, tail.read(records), strict=True))
    assert sorted([*done, *read.values()]) == sorted(written)


def test_a_file_that_is_rotated_under_the_reader_is_read_on_and_the_new_one_too(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\n")
    tail = Tail(f"{tmp_path}/app.log")
    first = tail.look()
    with log.open("a") as writer:
        writer.write("two\nthr")
        rotate(tmp_path)
        log.write_text("four\n")
        assert tail.read(first) == ["one"]  # like a late task or a replay
        writer.write("ee\n")
        writer.flush()
        assert tail.new() == ["two", "three", "four"]
    assert [row["path"] for row in tail.driven.origins([0, 1, 3]).to_pylist()] == [
        str(log),
        f"{log}.1",
        str(log),
    ]
    slices = tail.driven.slices([0, 1, 2, 3], 1)
    rotate(tmp_path)
    assert [v for rows in slices[0].read() for v in rows.columns.column("value").to_pylist()] == [
        "one",
        "two",
        "three",
        "four",
    ]
    committed = tail.finish_all()
    assert sorted(committed) == [str(log), f"{log}#2"]
    log.write_text("five\n")
    again = Tail(f"{tmp_path}/app.log", committed)
    assert again.new() == ["five"]
    assert sorted(again.finish_all()) == [str(log), f"{log}#2", f"{log}#3"]


def test_lines_added_before_an_unseen_rotation_are_read_at_the_next_start(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\n")
    tail = Tail(str(log))
    tail.look()
    committed = tail.finish_all()
    with log.open("a") as file:
        file.write("two\n")
    rotate(tmp_path)
    log.write_text("three\n")
    assert Tail(str(log), committed).new() == ["two", "three"]


def test_a_line_that_nothing_ends_waits_for_its_end_and_is_read_as_it_is_once_its_file_was_renamed_and_stood_still(
    tmp_path: Path,
) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\ntw")
    tail = Tail(f"{tmp_path}/app.log*")
    assert [tail.new(), tail.new()] == [["one"], []]
    with log.open("a") as file:
        file.write("o\nthr")
    assert [tail.new(), tail.new()] == [["two"], []]
    rotate(tmp_path)
    with (tmp_path / "app.log.1").open("a") as file:
        file.write("e")
    assert [tail.new(), tail.new(), tail.new()] == [[], ["thre"], []]
    with (tmp_path / "app.log.1").open("a") as file:
        file.write("e\n")
    with pytest.raises(InputChanged, match=r"line 3\) was read before a line feed ended it. It has grown"):
        tail.look()


def test_a_file_that_was_truncated_in_its_place_is_an_error_that_says_how_to_rotate(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    for now in ("", "ONE\ntwo\nthree\n", "ONE\nTWO\n"):
        log.write_text("one\ntwo\n")
        tail = Tail(str(log))
        tail.look()
        committed = tail.finish_all()
        log.write_text(now)
        with pytest.raises(
            InputChanged, match=r"truncated or written anew since.*logrotate's `create`, not `copytrunc"
        ):
            tail.look()
        with pytest.raises(CheckpointError, match=r"app.log (was read to byte 8|is not what it was)"):
            Tail(str(log), committed)


@pytest.mark.parametrize("block_bytes", [80, 80_000])
@pytest.mark.parametrize("is_followed", [True, False])
def test_a_file_that_is_overwritten_in_its_place_while_lines_of_it_are_left_is_an_error_never_other_lines(
    tmp_path: Path, block_bytes: int, is_followed: bool
) -> None:
    log, count = tmp_path / "app.log", block_bytes // 2
    log.write_text("".join(f"old {k:05}\n" for k in range(count)))
    follow_s = 2.0 if is_followed else None
    input_ = FileInput(str(log), TextParser(), block_bytes=block_bytes, follow_s=follow_s, clock=lambda: 0.0)
    driven = Driven(input_)
    assert len(driven.plan(block_bytes // 16)) == block_bytes // 16
    log.write_text("".join(f"new {k:05}\n" for k in range(2 * count)))
    with pytest.raises(InputChanged, match="truncated or written anew since"):
        list(iter(lambda: len(driven.take(input_.plan(1000, 2))), 0))


def test_a_file_that_is_removed_once_it_is_done_is_let_go_and_before_that_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\ntwo\n")
    tail = Tail(f"{tmp_path}/app.log")
    assert tail.new() == ["one", "two"]
    committed = tail.finish_all()
    log.unlink()
    assert [tail.new(), tail.new(), tail.new()] == [[], [], []]
    (tmp_path / "new").write_text("three\nfour\n")
    (tmp_path / "new").rename(log)
    assert tail.new(1) == ["three"]
    log.unlink()
    with pytest.raises(InputChanged, match="was removed before its lines were done: keep what was rotated until"):
        tail.new()
    assert Tail(f"{tmp_path}/app.log", committed).new() == []


def test_a_file_that_is_removed_before_its_end_is_an_error(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\n" * 10)
    tail = Tail(f"{tmp_path}/app.log", block_bytes=8)
    assert tail.new(2) == ["one", "one"]
    tail.look(8)
    with log.open("a") as file:
        file.write("unfinished")
    tail.look()
    log.unlink()
    tail.look()
    with pytest.raises(InputChanged, match="was removed, or written anew, before it was read to its end"):
        tail.look()


def tail_with_a_line_left_in_the_first_file(folder: Path) -> Tail:
    """Follow ``a.log``, of which the line "four" is left, and ``b.log``, which is read to its end."""
    (folder / "a.log").write_text("one\n")
    (folder / "b.log").write_text("two\n")
    tail = Tail(f"{folder}/*.log")
    assert tail.new() == ["one", "two"]
    with (folder / "a.log").open("a") as file:
        file.write("three\nfour\n")
    assert tail.new(1) == ["three"]
    return tail


def test_a_file_that_is_removed_once_it_is_read_is_let_go_also_while_an_earlier_file_has_lines_left(
    tmp_path: Path,
) -> None:
    tail = tail_with_a_line_left_in_the_first_file(tmp_path)
    (tmp_path / "b.log").unlink()
    assert [tail.new(), tail.new(), tail.new(), tail.new()] == [["four"], [], [], []]


def test_a_new_file_with_the_inode_of_a_removed_one_does_not_end_a_run_that_has_not_listed_it_yet(
    tmp_path: Path,
) -> None:
    tail = tail_with_a_line_left_in_the_first_file(tmp_path)
    (tmp_path / "b.log").rename(tmp_path / "c.log")
    (tmp_path / "c.log").write_text("5\n")
    assert [tail.new(), tail.new(), tail.new()] == [["four", "5"], [], []]


def test_another_file_with_the_inode_of_one_that_is_gone_is_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "app.log.1").write_text("old\n")
    tail = Tail(f"{tmp_path}/app.log*")
    assert tail.new() == ["old"]
    # ext4 does this when the oldest file is removed and a new one is created: the new one gets the same inode.
    (tmp_path / "app.log.1").rename(tmp_path / "app.log")
    (tmp_path / "app.log").write_text("new\n")
    assert [tail.new(), tail.new()] == [["new"], []]


def test_a_restart_after_any_number_of_rotations_with_the_same_inodes_reads_each_line_once(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("")
    tail = Tail(f"{tmp_path}/app.log*")
    for day in range(12):
        lines = [f"day {day}, line {number}" for number in range(12 - day)]
        with log.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
        # A checkpoint in ZooKeeper has the partitions in the order of their names as text.
        before = dict(sorted(tail.driven.committed().items()))
        assert tail.new() == lines
        after = dict(sorted(tail.finish_all().items()))
        assert Tail(f"{tmp_path}/app.log*", before).new() == lines
        assert Tail(f"{tmp_path}/app.log*", after).new() == []
        rotate_keeping_two(tmp_path)
        assert [tail.new(), tail.new(), tail.new()] == [[], [], []]


def test_a_file_that_is_gone_never_takes_over_another_known_file_that_begins_like_it(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    tail = Tail(f"{tmp_path}/app.log*")
    for lines in ("", "one\ntwo\n", "three\n"):
        rotate(tmp_path)
        log.write_text(f"header\n{lines}")
        tail.look()
    committed = tail.finish_all()
    (tmp_path / "app.log.2").unlink()
    again = Tail(f"{tmp_path}/app.log*", committed)
    assert again.new() == []
    rotate(tmp_path)
    log.write_text("header\nfour\n")
    assert [again.new(), again.new()] == [["header", "four"], []]


def test_a_line_that_nothing_ends_of_a_file_that_was_renamed_between_two_runs_is_read_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\ntw")
    tail = Tail(str(log))
    tail.look()
    committed = tail.finish_all()
    rotate(tmp_path)
    again = Tail(str(log), committed)
    assert [again.new(), again.new()] == [["tw"], []]


def test_a_file_that_a_longer_copy_of_itself_replaced_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    tail = Tail(str(path))
    first = tail.look()
    (tmp_path / "new").write_text("one\ntwo\n")
    (tmp_path / "new").rename(path)
    assert tail.new() == ["two"]
    assert tail.read(first) == ["one"]


def test_a_record_of_a_file_that_a_longer_copy_has_just_replaced_is_read_again_before_the_next_listing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\n")
    tail = Tail(str(path))
    first = tail.look(2)
    slices = tail.driven.slices(first)
    (tmp_path / "new").write_text("one\ntwo\nthree\nfour\n")
    (tmp_path / "new").rename(path)
    with pytest.raises(InputChanged):
        list(slices[0].read())  # the task fails, and its records are replayed
    assert tail.read(first) == ["one", "two"]
    (tmp_path / "new").write_text("one\ntwo\nthree\nfour\nfive\n")
    (tmp_path / "new").rename(path)
    assert tail.driven.values(first) == [b"one", b"two"]
    assert [tail.new(), tail.new()] == [["three", "four", "five"], []]


def test_a_record_of_a_removed_file_is_never_read_from_a_new_file_with_its_inode(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\ntwo\n")
    tail = Tail(f"{tmp_path}/app.log")
    first = tail.look()
    rotate(tmp_path)
    assert tail.look() == []
    slices = tail.driven.slices(first)
    # ext4 does this when the oldest file is removed and a new one is created: the new one gets the same inode.
    (tmp_path / "app.log.1").rename(log)
    log.write_text("ONE\nTWO\nTHREE\n")
    with pytest.raises(InputChanged, match="was removed or written anew before its lines were done"):
        list(slices[0].read())
    with pytest.raises(InputChanged, match="was removed or written anew before its lines were done"):
        tail.read(first)
    assert tail.driven.values(first) == [None, None]
    tail.driven.finish(first[:1])
    with pytest.raises(CheckpointError, match=r"app.log.1 was read to line 1 only, and is not among"):
        Tail(f"{tmp_path}/app.log", tail.driven.committed())


def test_a_restart_knows_a_file_that_a_copy_replaced_and_that_was_renamed_in_a_later_run(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    for finished in ([0], [0, 1]):
        path.write_text("one\ntwo\n")
        tail = Tail(f"{path}*")
        tail.look()
        tail.driven.finish(finished)
        committed = tail.driven.committed()
        (tmp_path / "new").write_text("one\ntwo\n")
        (tmp_path / "new").rename(path)
        again = Tail(f"{path}*", committed)
        assert again.new() == ["one", "two"][len(finished) :]
        committed = again.driven.committed()
        path.rename(tmp_path / "a.log.1")
        path.write_text("three\n")
        assert Tail(f"{path}*", committed).new() == ["three", *["one", "two"][len(finished) :]]
        (tmp_path / "a.log.1").unlink()


def test_a_restart_knows_a_file_that_has_the_inode_of_a_removed_file_of_another_name(tmp_path: Path) -> None:
    (tmp_path / "b.log").write_text("one\n")
    tail = Tail(f"{tmp_path}/*.log")
    assert tail.new() == ["one"]
    (tmp_path / "b.log").rename(tmp_path / "a.log")
    (tmp_path / "a.log").write_text("two\nthree\n")
    assert tail.new() == ["two", "three"]
    tail.driven.finish([0, 1])
    assert Tail(f"{tmp_path}/*.log", tail.driven.committed()).new() == ["three"]
    assert Tail(f"{tmp_path}/*.log", tail.finish_all()).new() == []


def test_a_restart_takes_a_new_file_with_the_inode_of_a_renamed_and_removed_one_as_new(tmp_path: Path) -> None:
    log, spare = tmp_path / "app.log", tmp_path / "spare"
    log.write_text("one\n")
    tail = Tail(str(log))
    assert tail.new() == ["one"]
    tail.finish_all()
    rotate(tmp_path)
    log.write_text("")
    assert tail.new() == []
    committed = dict(tail.driven.committed())
    (tmp_path / "app.log.1").rename(spare)  # rotated again with `rotate 1`, and the inode is used again
    rotate(tmp_path)
    spare.write_text("new\n")
    spare.rename(log)
    again = Tail(str(log), committed)
    assert again.new() == ["new"]


@pytest.mark.parametrize("old", ["old\n", "one\n", ""])
@pytest.mark.parametrize("finished", [[0], [0, 1]])
def test_a_restart_knows_a_renamed_file_that_has_path_and_inode_of_a_removed_one(
    tmp_path: Path, old: str, finished: list[int]
) -> None:
    folder, spare = tmp_path / "logs", tmp_path / "spare"
    folder.mkdir()
    log = folder / "app.log"
    log.write_text(old)
    tail = Tail(f"{folder}/app.log*")
    tail.look()
    rotate(folder)
    tail.look()
    tail.finish_all()
    # As if app.log.1 was removed, and a new app.log got its inode.
    (folder / "app.log.1").rename(spare)
    assert [tail.new(), tail.new()] == [[], []]
    spare.write_text("one\ntwo\n")
    spare.rename(log)
    records = tail.look()
    assert tail.read(records) == ["one", "two"]
    tail.driven.finish([records[k] for k in finished])
    committed = tail.driven.committed()
    rotate(folder)
    with (folder / "app.log.1").open("a") as file:
        file.write("three\n")
    assert Tail(f"{folder}/app.log*", committed).new() == ["one", "two", "three"][len(finished) :]


def test_a_restart_knows_a_file_whose_copy_has_the_inode_of_a_removed_newer_one(tmp_path: Path) -> None:
    folder, spare = tmp_path / "logs", tmp_path / "spare"
    folder.mkdir()
    log = folder / "app.log"
    log.write_text("one\n")
    tail = Tail(f"{folder}/app.log*")
    tail.look()
    rotate(folder)
    log.write_text("new\n")
    tail.look()
    tail.finish_all()
    log.rename(spare)
    assert [tail.new(), tail.new()] == [[], []]
    spare.write_text("one\ntwo\n")
    spare.rename(folder / "app.log.1")
    records = tail.look()
    assert tail.read(records) == ["two"]
    committed = tail.driven.committed()
    assert Tail(f"{folder}/app.log*", committed).new() == ["two"]


def test_a_removed_file_with_open_records_goes_on_once_it_is_brought_back(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    for follow_s in (2.0, None):
        log.write_text("one\ntwo\nthree\nfour\n")
        driven = Driven(FileInput(str(log), TextParser(), follow_s=follow_s))
        driven.plan()
        driven.finish([0, 2])
        log.unlink()
        committed = dict(driven.committed())
        log.write_text("other\n" * 10)
        with pytest.raises(CheckpointError):
            Tail(str(log), committed)
        log.unlink()
        with pytest.raises(CheckpointError, match="was read to line 1 only, and is not among the files any more: brin"):
            Tail(str(log), committed)
        log.write_text("one\ntwo\nthree\nfour\nfive\n")
        again = Driven(FileInput(str(log), TextParser()), committed)
        assert again.values(again.drain()) == [b"two", b"four", b"five"]
        log.unlink()
        driven.finish([1, 3])
        assert Tail(str(log), driven.committed()).new() == []


def test_another_file_in_the_place_of_one_that_is_being_read_is_an_error_never_other_records(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\n")
    tail = Tail(str(path))
    first = tail.look(2)
    (tmp_path / "new").write_text("ONE\nTWO\nTHREE\n")
    (tmp_path / "new").rename(path)
    with pytest.raises(InputChanged, match="was removed before its lines were done"):
        tail.read(first)
    assert tail.driven.values(first) == [None, None]


def test_the_checkpoint_of_a_file_that_a_longer_copy_replaced_knows_each_done_record(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\n")
    tail = Tail(str(path))
    tail.look()
    (tmp_path / "new").write_text("one\ntwo\nthree\nfour\n")
    (tmp_path / "new").rename(path)
    assert tail.new() == ["four"]
    tail.driven.finish([1])
    assert Tail(str(path), tail.driven.committed()).new() == ["one", "three", "four"]


def test_a_copy_that_was_seen_under_another_name_before_it_replaced_a_file_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    tail = Tail(f"{tmp_path}/*")
    assert tail.new() == ["one"]
    (tmp_path / "a.txt.new").write_text("one\ntwo\n")
    assert tail.new() == ["one", "two"]  # the input cannot tell it from another file
    (tmp_path / "a.txt.new").rename(path)
    assert [tail.new(), tail.new(), tail.new()] == [[], [], []]
    with path.open("a") as file:
        file.write("three\n")
    assert [tail.new(), tail.new()] == [["three"], []]


def test_a_gz_that_is_being_written_is_waited_for_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = gzip.compress(b"one\ntwo\n")
    path = tmp_path / "a.gz"
    tail = Tail(f"{tmp_path}/*.gz")
    with caplog.at_level(logging.WARNING):
        for part in (b"", raw[:5], raw[:9], raw[:-1]):
            path.write_bytes(part)
            assert tail.look() == []
    _, record = caplog.records  # the first record says that nothing matches the paths yet
    assert record.message.startswith(f"{path} is no whole gz (it ends in the middle), and none of its lines was read:")
    path.write_bytes(raw)
    assert [tail.new(), tail.new()] == [["one", "two"], []]
    path.rename(tmp_path / "b.gz")
    assert [tail.new(), tail.read([0, 1])] == [[], ["one", "two"]]
    (tmp_path / "b.gz").write_bytes(raw + raw)
    with pytest.raises(InputChanged, match="a complete gz file must not change"):
        tail.look()


def test_paths_that_nothing_matches_yet_are_named_and_looked_for_at_their_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tail = Tail(f"{tmp_path}/*")
    assert [record.message for record in caplog.records] == [
        f"Files: nothing matches '{tmp_path}/*' yet; looking for it every 2 s"
    ]
    assert tail.new() == []
    (tmp_path / "a").write_text("one\n")
    assert not tail.input.plan(10, 2).parts
    assert tail.new() == ["one"]


def test_files_may_be_described_while_a_listing_adds_others(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("one\n")
    tail = Tail(f"{tmp_path}/*.log")
    tail.look()

    class Listing(dict[str, Ranges]):
        def get(self, *key: Any) -> Any:
            """Stands for the thread of the run, which lists the files in the middle of a description."""
            (tmp_path / f"{len(list(tmp_path.iterdir()))}.log").write_text("two\n")
            tail.look()
            return super().get(*key)

    (tmp_path / "b.log").write_text("two\n")
    tail.look()
    assert " of 4 files" in tail.input.describe(Listing())


def test_a_checkpoint_of_a_source_that_followed_is_taken_up_by_one_that_does_not(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\n")
    tail = Tail(f"{tmp_path}/app.log*")
    tail.look()
    rotate(tmp_path)
    log.write_text("two\n")
    tail.look()
    committed = tail.finish_all()
    with (tmp_path / "app.log.1").open("a") as file:
        file.write("one more\n")
    log.write_text("two\nthree")
    once = Driven(FileInput(f"{tmp_path}/app.log*", TextParser()), committed)
    assert sorted(once.values(once.drain())) == [b"one more", b"three"]


def test_a_source_that_does_not_follow_reads_a_new_file_under_the_name_of_a_renamed_one_once(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("one\n")
    tail = Tail(f"{tmp_path}/app.log*")
    tail.look()
    committed = tail.finish_all()
    rotate(tmp_path)
    log.write_text("two\n")
    for expected in ([b"two"], []):
        once = Driven(FileInput(f"{tmp_path}/app.log*", TextParser()), committed)
        records = once.drain()
        assert once.values(records) == expected
        once.finish(records)
        committed = dict(once.committed())


@pytest.mark.parametrize("given", [0, -1, True, "5 s", float("inf")])
def test_an_invalid_follow_interval_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"follow_s=.*give seconds, above 0"):
        Files("a", name="a", follow_s=given)


def test_a_source_that_follows_takes_what_comes_and_ends_when_it_is_told_to_stop(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.write("a.txt", "one")
    source = cluster.source(follow_s=2.0, checkpoint=tmp_path / "c")
    emitted: list[int] = []

    def process(batch: Batch) -> None:
        save_all(batch)
        emitted.append(batch.records)
        if batch.number == 1:
            cluster.write("b.txt", "two", "three")
        else:
            source.stop()

    summary = source.run(NO_SPARK, process)
    assert (emitted, summary.acked, summary.open) == ([1, 2], 3, 0)
    assert summary.checkpoint == "all that is there so far (2 files)"
    os.rename(tmp_path / "b.txt", tmp_path / "c.txt")
    cluster.write("d.txt", "four")
    again = cluster.source(checkpoint=tmp_path / "c").run(NO_SPARK, save_all)
    assert again.acked == 1


def test_a_run_without_new_lines_saves_where_its_files_are_now(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    path = tmp_path / "a.txt"
    cluster.write("a.txt", "one")
    source = cluster.source(follow_s=2.0, checkpoint=tmp_path / "c")

    def process(batch: Batch) -> None:
        save_all(batch)
        source.stop()

    assert source.run(NO_SPARK, process).acked == 1
    (tmp_path / "new").write_text("one\n")
    (tmp_path / "new").rename(path)
    assert cluster.source(checkpoint=tmp_path / "c").run(NO_SPARK, save_all).records == 0
    path.rename(tmp_path / "b.txt")
    assert cluster.source(checkpoint=tmp_path / "c").run(NO_SPARK, save_all).records == 0
