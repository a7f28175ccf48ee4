"""The checkpoint file: written whole or not at all, and refused if it is damaged or belongs to another source."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acker_client.source import Files, SourceError
from acker_client.source.checkpoints import checkpoint_file as checkpoint_module
from acker_client.source.checkpoints.checkpoint_file import CheckpointFile
from acker_client.source.checkpoints.content import digest_of
from acker_client.source.errors import CheckpointError
from acker_client.source.records.input import Committed
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.stores import Committer
from tests.source.disks import forbidden, full, room_for


@pytest.fixture
def checkpoint(tmp_path: Path) -> CheckpointFile:
    store = CheckpointFile(tmp_path / "orders.ckpt")
    store.source, store.kind = "orders", "files"
    return store


def test_the_last_saved_state_is_loaded(checkpoint: CheckpointFile) -> None:
    assert checkpoint.load() == {}
    checkpoint.save({"ä": Committed(Ranges.below(3), {"bytes": 30})})
    saved = {"ä": Committed(Ranges.from_runs([4, 2, 1]), {"bytes": 40}), "b": Committed()}
    checkpoint.save(saved)
    assert checkpoint.load() == saved


def linked_checkpoint(folder: Path) -> tuple[Path, Path]:
    """Return a link, and the file that it leads to, which does not exist yet."""
    link, volume = folder / "orders.ckpt", folder / "volume"
    volume.mkdir()
    link.symlink_to(volume / "orders.ckpt")
    return link, volume / "orders.ckpt"


def test_a_checkpoint_behind_a_link_is_locked_and_replaced_where_the_link_leads(tmp_path: Path) -> None:
    link, saved = linked_checkpoint(tmp_path)
    linked, direct = CheckpointFile(link), CheckpointFile(saved)
    linked.open("orders", "files")
    with pytest.raises(CheckpointError, match="is in use by another running source"):
        direct.open("orders", "files")
    linked.save(at(3))
    assert (link.is_symlink(), direct.load()) == (True, at(3))
    linked.close()


@pytest.mark.parametrize("pattern", ["*", "volume/*"])
def test_neither_a_checkpoint_nor_the_link_to_it_is_read_as_input(tmp_path: Path, pattern: str) -> None:
    link, saved = linked_checkpoint(tmp_path)
    saved.touch()
    files = Files(f"{tmp_path}/{pattern}", name="orders", checkpoint=link)
    with pytest.raises(SourceError, match=r"orders\.ckpt.* is written by this source"):
        files.input()[0].start({})


@pytest.mark.parametrize("ending", ["", ".lock", ".new"])
def test_dead_letters_go_to_no_file_of_the_checkpoint_behind_a_link(tmp_path: Path, ending: str) -> None:
    link, saved = linked_checkpoint(tmp_path)
    linked = tmp_path / "dead.jsonl"
    linked.symlink_to(f"{saved}{ending}")
    for dead_letters in (f"{saved}{ending}", linked):
        with pytest.raises(ValueError, match="dead_letters and checkpoint are the same file"):
            Files("in/*", name="orders", checkpoint=link, dead_letters=dead_letters)


def at(position: int) -> dict[str, Committed]:
    return {"a": Committed(Ranges.below(position))}


def test_a_checkpoint_of_the_version_before_is_still_read(checkpoint: CheckpointFile) -> None:
    progress = {"files": [{"path": "/a", "lines": 3, "bytes": 30, "complete": True, "mark": "00ff"}]}
    saved = {"format": "acker-checkpoint", "version": 1, "source": "orders", "input": "files", "progress": progress}
    checkpoint.path.write_text(json.dumps({**saved, "digest": digest_of(progress)}, indent=1))
    mark = {"bytes": 30, "complete": True, "digest": "00ff"}
    assert checkpoint.load() == {"/a": Committed(Ranges.below(3), mark)}


def test_an_identity_is_drawn_once_and_stays_with_what_the_file_held_before(checkpoint: CheckpointFile) -> None:
    checkpoint.save(at(3))
    assert "identity" not in json.loads(checkpoint.path.read_text())
    assert (checkpoint.load(), checkpoint.identity()) == (at(3), "")
    drawn = checkpoint.draw_identity()
    again = CheckpointFile(checkpoint.path)
    again.source, again.kind = "orders", "files"
    # It is in the file before anything else names it.
    assert (again.load(), again.identity(), again.draw_identity()) == (at(3), drawn, drawn)
    again.save(at(4))
    assert (checkpoint.load(), checkpoint.identity()) == (at(4), drawn)
    other = CheckpointFile(checkpoint.path.with_name("other.ckpt"))
    assert other.draw_identity() not in ("", drawn)


def test_an_identity_that_could_not_be_written_is_not_given_to_anything_else(checkpoint: CheckpointFile) -> None:
    checkpoint.save(at(1))
    draft = full(checkpoint.path.with_name(checkpoint.path.name + ".new"))
    for _ in range(2):
        with pytest.raises(CheckpointError, match="No space left"):
            checkpoint.draw_identity()
        assert checkpoint.identity() == ""
    draft.unlink()
    drawn = checkpoint.draw_identity()
    assert json.loads(checkpoint.path.read_text())["identity"] == drawn


def test_a_checkpoint_without_done_positions_is_refused(checkpoint: CheckpointFile) -> None:
    wrong: list[Any] = [[{"partition": "a", "done": [1, 2], "mark": {}}], [{}], "no"]
    for partitions in wrong:
        saved = {"format": "acker-checkpoint", "version": 2, "source": "orders", "input": "files"}
        saved |= {"partitions": partitions, "digest": digest_of(partitions)}
        checkpoint.path.write_text(json.dumps(saved))
        with pytest.raises(CheckpointError, match="does not say how far each partition is done"):
            checkpoint.load()


class Crash(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("step", ["write", "fsync", "replace", "fsync of the directory"])
def test_a_crash_at_any_point_of_a_save_leaves_the_old_or_the_new_checkpoint_whole(
    checkpoint: CheckpointFile, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    checkpoint.save(at(1))
    with monkeypatch.context() as patch:
        _crash_at(step, patch)
        with pytest.raises(Crash):
            checkpoint.save(at(2))
    assert checkpoint.load() == (at(2) if step == "fsync of the directory" else at(1))
    checkpoint.save(at(3))
    assert checkpoint.load() == at(3)


def _crash_at(step: str, patch: pytest.MonkeyPatch) -> None:
    syncs = 0
    fsync = os.fsync

    def crash(*_: object) -> None:
        raise Crash

    def crash_in_second(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs == 2:
            raise Crash
        fsync(descriptor)

    if step == "write":
        patch.setattr(checkpoint_module, "content_of", crash)
    elif step == "fsync":
        patch.setattr(os, "fsync", crash)
    elif step == "replace":
        patch.setattr(os, "replace", crash)
    else:
        patch.setattr(os, "fsync", crash_in_second)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "is not a checkpoint of the acker, or is damaged"),
        (lambda text: "", "is not a checkpoint"),
        (lambda text: "[1]", "is not a checkpoint"),
        (lambda text: "[" * 100_000, "is not a checkpoint"),
        (lambda text: text.replace('"version": 2', '"version": [2]'), r"has version \[2\]"),
        (lambda text: "\xff\x00", "is not a checkpoint"),
        (lambda text: text.replace('"done": [1]', '"done": [2]'), "digest does not fit"),
        (
            lambda text: text.replace('"version": 2', '"version": 9'),
            "version 9, and this acker reads versions up to 2: start",
        ),
        (lambda text: text.replace('"orders"', '"clicks"'), "of source 'clicks', not of 'orders'"),
        (lambda text: text.replace('"files"', '"kafka"'), "of input 'kafka', not of 'files'"),
    ],
)
def test_a_damaged_or_foreign_checkpoint_is_refused_by_name(
    checkpoint: CheckpointFile, damage: Callable[[str], str], says: str
) -> None:
    checkpoint.save(at(1))
    checkpoint.path.write_text(damage(checkpoint.path.read_text()))
    with pytest.raises(CheckpointError, match=says) as refused:
        checkpoint.load()
    assert str(checkpoint.path) in str(refused.value)


def test_a_checkpoint_of_another_source_is_refused_with_its_writer_and_time(tmp_path: Path) -> None:
    checkpoint = CheckpointFile(tmp_path / "x.ckpt", wall=lambda: 1_800_000_000.4)
    checkpoint.open("orders", "files")
    checkpoint.sign(Committer("orders", 7, "host-1", 4711))
    checkpoint.save(at(1))
    assert checkpoint.load() == at(1)
    by = {"source": "orders", "session": 7, "host": "host-1", "pid": 4711, "time": "2027-01-15T08:00:00+00:00"}
    assert json.loads(checkpoint.path.read_text())["by"] == by
    checkpoint.close()
    other = CheckpointFile(checkpoint.path)
    other.open("clicks", "files")
    says = (
        r"of source 'orders', not of 'clicks' \(last written at 2027-.*\+00:00 by process 4711 on host-1\): give every"
    )
    with pytest.raises(CheckpointError, match=says):
        other.load()
    other.close()


def test_two_sources_cannot_hold_one_checkpoint(checkpoint: CheckpointFile) -> None:
    other = CheckpointFile(checkpoint.path)
    checkpoint.open("orders", "files")
    with pytest.raises(CheckpointError, match="in use by another running source"):
        other.open("orders", "files")
    checkpoint.close()
    other.open("orders", "files")
    other.close()


def test_a_checkpoint_in_a_missing_directory_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "x.ckpt"
    with pytest.raises(CheckpointError, match=rf"its lock {path}\.lock cannot be opened .*: create its directory"):
        CheckpointFile(path).open("a", "files")


def test_a_checkpoint_on_a_full_disk_is_named_and_the_one_before_it_stands(checkpoint: CheckpointFile) -> None:
    checkpoint.save(at(1))
    draft = full(checkpoint.path.with_name(checkpoint.path.name + ".new"))
    with pytest.raises(CheckpointError, match=rf"{checkpoint.path} cannot be written \(No space left.*\): make room"):
        checkpoint.save(at(2))
    draft.unlink()
    assert checkpoint.load() == at(1)
    checkpoint.save(at(3))
    assert checkpoint.load() == at(3)


def test_a_checkpoint_that_is_cut_short_by_a_limit_leaves_the_one_before_it(checkpoint: CheckpointFile) -> None:
    checkpoint.save(at(1))
    with (
        room_for(60),
        pytest.raises(CheckpointError, match=rf"{checkpoint.path} cannot be written \(File too large\): make room"),
    ):
        checkpoint.save(at(2))
    assert checkpoint.load() == at(1)


def test_a_forbidden_checkpoint_is_named_whether_it_is_locked_read_or_written(tmp_path: Path) -> None:
    folder = tmp_path / "forbidden"
    folder.mkdir()
    checkpoint = CheckpointFile(folder / "x.ckpt")
    right = r"\(Permission denied\): give this user the right"
    with forbidden(folder):
        with pytest.raises(CheckpointError, match=rf"its lock {checkpoint.path}\.lock cannot be opened {right}"):
            checkpoint.open("orders", "files")
        with pytest.raises(CheckpointError, match=rf"{checkpoint.path} cannot be written {right}"):
            checkpoint.save(at(1))
    checkpoint.save(at(1))
    checkpoint.path.chmod(0)
    with forbidden(folder), pytest.raises(CheckpointError, match=rf"{checkpoint.path} cannot be read {right}"):
        checkpoint.load()
    checkpoint.path.chmod(0o600)


def test_a_lock_that_fails_is_not_reported_as_another_source(
    checkpoint: CheckpointFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(CheckpointError, match=r"cannot be taken \(No locks available\): .*that has locks"):
        checkpoint.open("orders", "files")
