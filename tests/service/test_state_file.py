"""The state file: written whole, read whole, served once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from acker_service.state_file import StateDir, StateError

ARRAYS = {
    "keys": np.arange(5, dtype=np.uint64),
    "flags": np.array([[1, 2], [3, 4]], np.uint8),
    "now": np.array(1.5),
    "none": np.empty(0, np.int32),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory in which a server has left ARRAYS."""
    write(tmp_path, ARRAYS)
    return tmp_path


def write(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    state_dir = StateDir(str(folder))
    state_dir.write(arrays)
    state_dir.close()


def complaint(folder: Path) -> str:
    state_dir = StateDir(str(folder))
    try:
        with pytest.raises(StateError) as caught:
            state_dir.read()
        return str(caught.value)
    finally:
        state_dir.close()


def assert_same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert list(left) == list(right)
    for name, array in left.items():
        assert (array.dtype, array.shape) == (right[name].dtype, right[name].shape)
        assert array.tobytes() == right[name].tobytes()


@given(
    st.dictionaries(
        st.text(max_size=8),
        hnp.arrays(st.sampled_from(["<u8", "<i4", "u1", "?", "<f8", "S3"]), hnp.array_shapes(min_dims=0, min_side=0)),
        max_size=4,
    )
)
def test_what_is_read_is_what_was_written(tmp_path_factory: pytest.TempPathFactory, arrays: dict) -> None:
    folder = tmp_path_factory.mktemp("state")
    write(folder, arrays)
    state_dir = StateDir(str(folder))
    assert_same(state_dir.read(), arrays)
    state_dir.close()


def test_what_is_read_may_be_written_to(folder: Path) -> None:
    state_dir = StateDir(str(folder))
    for array in state_dir.read().values():
        array[...] = 0
    state_dir.close()


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


def test_a_consumed_state_that_somebody_put_back_is_refused(folder: Path) -> None:
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


def test_a_state_of_another_format_is_told_apart_from_a_damaged_one(folder: Path) -> None:
    content = (folder / "acker.state").read_bytes()
    (folder / "acker.state").write_bytes(content.replace(b"acker-state 1\n", b"acker-state 2\n"))
    assert "has format 2, and this version of the acker reads format 1 only" in complaint(folder)
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
    with pytest.raises(StateError, match="another server has it"):
        StateDir(str(folder))
    state_dir.close()
    StateDir(str(folder)).close()


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="name a directory that can be written"):
        StateDir(str(tmp_path / "file"))


def test_a_write_that_is_cut_off_leaves_the_state_before_it(folder: Path) -> None:
    (folder / "acker.state.tmp").write_bytes(b"half of a stat")
    state_dir = StateDir(str(folder))
    assert_same(state_dir.read(), ARRAYS)
    state_dir.close()
