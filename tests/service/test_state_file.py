"""The state file: refused unless it is complete, and used by one start only."""

from __future__ import annotations

import stat
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from acker_service.state.state_file import StateDir, StateError

Arrays = dict[str, np.ndarray]

ARRAYS: Arrays = {
    "keys": np.arange(5, dtype=np.uint64),
    "flags": np.array([[1, 2], [3, 4]], np.uint8),
    "now": np.array(1.5),
    "none": np.empty(0, np.int32),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory in which a server has left ARRAYS."""
    write(tmp_path, ARRAYS)
    return tmp_path


def write(folder: Path, *parts: Arrays) -> None:
    state_dir = StateDir(str(folder))
    state_dir.write([(f"part {n}", part) for n, part in enumerate(parts)])
    state_dir.close()


def read(folder: Path) -> list[Arrays]:
    state_dir = StateDir(str(folder))
    try:
        stored = state_dir.read()
        assert stored is not None
        parts = list(stored)
        assert [name for name, _ in parts] == [f"part {n}" for n in range(len(parts))]
        return [arrays for _, arrays in parts]
    finally:
        state_dir.close()


def complaint(folder: Path) -> str:
    state_dir = StateDir(str(folder))
    try:
        with pytest.raises(StateError) as caught:
            state_dir.read()
        return str(caught.value)
    finally:
        state_dir.close()


def assert_same(left: Arrays, right: Arrays) -> None:
    assert list(left) == list(right)
    for name, array in left.items():
        assert (array.dtype, array.shape) == (right[name].dtype, right[name].shape)
        assert array.tobytes() == right[name].tobytes()


@pytest.mark.slow
@given(
    st.lists(
        st.dictionaries(
            st.text(max_size=8),
            hnp.arrays(
                st.sampled_from(["<u8", "<i4", "u1", "?", "<f8", "S3"]), hnp.array_shapes(min_dims=0, min_side=0)
            ),
            max_size=4,
        ),
        max_size=3,
    )
)
def test_a_state_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, parts: list[Arrays]) -> None:
    folder = tmp_path_factory.mktemp("state")
    write(folder, *parts)
    for left, right in zip(read(folder), parts, strict=True):
        assert_same(left, right)


def test_a_state_is_written_and_read_part_by_part(tmp_path: Path) -> None:
    made: list[weakref.ref[Any]] = []

    class Counted(np.ndarray):
        """An array that can be counted."""

    def parts() -> Iterator[tuple[str, Arrays]]:
        for n in range(20):
            array = np.full(1000, n, np.uint64).view(Counted)
            made.append(weakref.ref(array))
            assert sum(each() is not None for each in made) <= 2
            yield f"part {n}", {"numbers": array}
            del array

    state_dir = StateDir(str(tmp_path))
    state_dir.write(parts())
    state_dir.close()
    assert [int(part["numbers"][0]) for part in read(tmp_path)] == list(range(20))


def test_a_state_that_was_read_is_writable(folder: Path) -> None:
    for part in read(folder):
        for array in part.values():
            array[...] = 0


def test_an_empty_directory_holds_no_state(tmp_path: Path) -> None:
    state_dir = StateDir(str(tmp_path / "new"))
    assert state_dir.read() is None
    state_dir.close()


def test_a_consumed_state_does_not_come_back(folder: Path) -> None:
    state_dir = StateDir(str(folder))
    state_dir.read()
    state_dir.consume()
    assert state_dir.read() is None
    state_dir.close()


@pytest.mark.parametrize("step", ["replace", "unlink"])
def test_a_server_that_is_killed_while_it_consumes_its_state_has_lost_it_and_the_next_one_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    state_dir = StateDir(str(folder))
    state_dir.mark_serving()
    assert state_dir.read() is not None
    # `consume` renames the state, replaces the ids, and unlinks the state last.
    monkeypatch.setattr("acker_service.state.state_file._replace" if step == "replace" else "pathlib.Path.unlink", kill)
    with pytest.raises(Killed):
        state_dir.consume()
    state_dir.close()
    following = StateDir(str(folder))
    assert following.read() is None
    assert following.was_lost
    following.close()


def test_a_consumed_state_that_was_restored_by_hand_is_refused(folder: Path) -> None:
    content = (folder / "acker.state").read_bytes()
    test_a_consumed_state_does_not_come_back(folder)
    (folder / "acker.state").write_bytes(content)
    said = complaint(folder)
    assert "consumed" in said
    assert "--discard-state" in said


def test_a_state_cut_short_at_any_length_is_refused(folder: Path) -> None:
    content = (folder / "acker.state").read_bytes()
    for length in range(len(content)):
        (folder / "acker.state").write_bytes(content[:length])
        said = complaint(folder)
        assert str(folder / "acker.state") in said
        assert "cut short" in said
        assert "--discard-state" in said


def test_a_state_with_any_byte_changed_or_added_is_refused(folder: Path) -> None:
    content = (folder / "acker.state").read_bytes()
    for index in range(len(content)):
        (folder / "acker.state").write_bytes(content[:index] + bytes([content[index] ^ 1]) + content[index + 1 :])
        assert "Nothing of it was used" in complaint(folder)
    (folder / "acker.state").write_bytes(content + b"x")
    assert "damaged" in complaint(folder)


def test_a_state_of_another_format_is_not_reported_as_damaged(folder: Path) -> None:
    content = (folder / "acker.state").read_bytes()
    (folder / "acker.state").write_bytes(content.replace(b"acker-state 2\n", b"acker-state 1\n"))
    assert "has format 1, and this version of the acker reads format 2 only" in complaint(folder)
    (folder / "acker.state").write_bytes(b"PK\3\4 something else altogether\n" * 9)
    assert "is not a state of the acker" in complaint(folder)


def test_discarding_puts_the_state_aside_and_starts_empty(folder: Path) -> None:
    (folder / "acker.state").write_bytes(b"damaged")
    state_dir = StateDir(str(folder))
    state_dir.discard()
    assert state_dir.read() is None
    assert (folder / "acker.discarded").read_bytes() == b"damaged"
    state_dir.close()


def test_two_servers_do_not_share_a_directory(folder: Path) -> None:
    state_dir = StateDir(str(folder))
    with pytest.raises(StateError, match="another server uses it"):
        StateDir(str(folder))
    state_dir.close()
    StateDir(str(folder)).close()


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="name a writable directory"):
        StateDir(str(tmp_path / "file"))


def test_a_write_that_is_cut_off_leaves_the_state_before_it(folder: Path) -> None:
    (folder / "acker.state.tmp").write_bytes(b"half of a stat")
    assert_same(read(folder)[0], ARRAYS)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_a_write_that_fails_leaves_no_file_behind(tmp_path: Path, error: Exception) -> None:
    def parts() -> Iterator[tuple[str, Arrays]]:
        yield "part 0", ARRAYS
        raise error

    state_dir = StateDir(str(tmp_path))
    with pytest.raises((StateError, MemoryError)):
        state_dir.write(parts())
    state_dir.close()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_only_the_owner_may_read_the_state_and_its_new_directory(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(mode=0o755)
    (tmp_path / "old" / "acker.state.tmp").touch(0o644)
    for folder, mode in ((tmp_path / "old", 0o755), (tmp_path / "new" / "state", 0o700)):
        write(folder, ARRAYS)
        assert stat.S_IMODE(folder.stat().st_mode) == mode
        assert stat.S_IMODE((folder / "acker.state").stat().st_mode) == 0o600
