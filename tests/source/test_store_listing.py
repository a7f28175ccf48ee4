"""Listing objects: patterns mean what they mean for local files, and a million objects fit into memory."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import PyFileSystem

from acker_client.source.errors import SourceError
from acker_client.source.storage.listing import find_objects, objects_below
from acker_client.source.storage.objects import Objects
from acker_client.source.storage.store import Store
from acker_client.source.storage.urls import instead_of_url, local_path, url_of
from tests.source.stores import Listed, names_in, refuse_folder, store_over

names = st.sampled_from(["a", "a", "b.txt", "ab.txt", ".hidden", ".h", "a[1]", "é.txt", "x?y", "**", "deep.d", "A"])
segments = st.sampled_from(
    [
        "a",
        "b.txt",
        "*",
        "**",
        "**",
        "**",
        "*.txt",
        "?",
        "a*",
        ".h*",
        ".*",
        "[ab]*",
        "[!a]*",
        "a[[]1]",
        "x[?]y",
        "deep.d",
        "é*",
    ]
)


def tree(folder: Path, paths: list[list[str]]) -> None:
    """Make empty files at the paths. A path that would be both a file and a folder is left out."""
    for path in paths:
        file = folder.joinpath(*path)
        if not any(parent.is_file() for parent in file.parents) and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()


@pytest.mark.slow
@given(
    st.lists(st.lists(names, min_size=1, max_size=4), max_size=12),
    st.lists(segments, min_size=1, max_size=4),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_a_pattern_finds_the_objects_that_glob_finds_in_a_local_tree_of_the_same_names(
    tmp_path_factory: pytest.TempPathFactory, paths: list[list[str]], pattern: list[str], is_flat: bool
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    tree(folder, paths)
    wanted = "/".join(pattern)
    local = folder / wanted
    # As for local files, something that has the name of a pattern is taken as it stands.
    found = [str(local)] if local.exists() else glob.glob(str(local), recursive=True)
    expected = sorted({os.path.relpath(each, folder) for each in found if os.path.isfile(each)})
    store = store_over(folder, is_flat=is_flat)
    objects = find_objects(store, [wanted], asker="Files", in_folder=refuse_folder, may_be_none=True)
    assert names_in(objects) == expected
    assert [int(size) for size in objects.sizes] == [0] * len(expected)


def test_patterns_are_listed_in_the_order_given_and_no_object_twice(tmp_path: Path) -> None:
    tree(tmp_path, [["b.txt"], ["a.txt"], ["deep", "c.txt"]])
    patterns = ["b.txt", "**/*.txt", "a.txt"]
    found = find_objects(store_over(tmp_path), patterns, asker="Files", in_folder=refuse_folder)
    assert names_in(found) == ["b.txt", "a.txt", "deep/c.txt"]


def test_a_pattern_that_nothing_matches_is_named_unless_objects_are_followed(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"Files: nothing matches 'in/\*\.txt'"):
        find_objects(store_over(tmp_path), ["in/*.txt"], asker="Files", in_folder=refuse_folder)
    found = find_objects(store_over(tmp_path), ["in/*.txt"], asker="Files", in_folder=refuse_folder, may_be_none=True)
    assert names_in(found) == []


@given(st.lists(st.lists(names, min_size=1, max_size=4), max_size=12), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_folder_has_the_objects_that_a_walk_finds(
    tmp_path_factory: pytest.TempPathFactory, paths: list[list[str]], is_flat: bool
) -> None:
    folder = tmp_path_factory.mktemp("walk")
    tree(folder / "in", [["a"], *paths])
    expected = []
    for at, below, files in os.walk(folder / "in"):
        below[:] = [name for name in below if not name.startswith(".")]
        expected += [os.path.relpath(os.path.join(at, name), folder) for name in files if name != "b.txt"]

    def into(at: str, name: str) -> bool:
        return not name.startswith(".")

    found = objects_below(store_over(folder, is_flat=is_flat), "in", lambda name: name != "b.txt", into)
    assert names_in(found) == sorted(expected)


@given(st.lists(st.tuples(names, st.integers(0, 2)), unique_by=lambda each: each[0]), st.data())
def test_two_listings_differ_in_the_objects_that_are_new_gone_or_changed(
    before: list[tuple[str, int]], data: st.DataObject
) -> None:
    after = data.draw(st.lists(st.tuples(names, st.integers(0, 2)), unique_by=lambda each: each[0]))
    known, listed = (Objects.of([(name, size, size) for name, size in each]) for each in (before, after))
    old, new = dict(before), dict(after)
    assert names_in(listed.without(known)) == [name for name in new if name not in old]
    places = listed.places_of_all(known)
    assert [bool(place < 0) for place in places] == [name not in new for name in old]
    assert known.differ(listed, places).tolist() == [name in new and new[name] != size for name, size in old.items()]
    assert listed.places_of(old).tolist() == places.tolist()
    assert names_in(known.sorted()) == sorted(old, key=str.encode)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("s3://bucket/a/b?.txt", ("s3", "bucket", "a/b?.txt", "", "s3://bucket/a/b?.txt")),
        ("S3A://bucket/a", ("s3", "bucket", "a", "", "s3://bucket/a")),
        ("s3:/bucket/a", ("s3", "bucket", "a", "", "s3://bucket/a")),
        ("s3://bucket", ("s3", "bucket", "", "", "s3://bucket/")),
        ("s3://k:s@bucket/a?region=x&scheme=http", ("s3", "k:s@bucket", "a", "region=x&scheme=http", "s3://bucket/a")),
        ("s3://b/a?x=*.txt", ("s3", "b", "a?x=*.txt", "", "s3://b/a?x=*.txt")),
        ("gcs://bucket/a", ("gs", "bucket", "a", "", "gs://bucket/a")),
        ("abfs://c@acc.dfs.core.windows.net/a", ("abfs", "c@acc.dfs.core.windows.net", "a", "", None)),
        ("hdfs://host:8020/a/b", ("hdfs", "host:8020", "a/b", "", "hdfs://host:8020/a/b")),
        ("hdfs:///a/b", ("hdfs", "", "a/b", "", "hdfs:///a/b")),
    ],
)
def test_urls_of_stores_are_told_from_patterns(text: str, parsed: tuple[str, str, str, str, str | None]) -> None:
    url = url_of(text)
    assert url is not None
    assert (url.scheme, url.authority, url.path, url.query) == parsed[:4]
    assert url.shown == (parsed[4] or text)
    assert instead_of_url(text) == ""


@pytest.mark.parametrize("path", ["/a/b", "a/*.txt", "C:/a", "a:b/c", "file:///a/b", "ftp://h/a", "dbfs:/mnt/a"])
def test_other_paths_are_no_urls_of_stores(path: str) -> None:
    assert url_of(path) is None
    assert local_path(path) == ("/a/b" if path.startswith("file") else path)
    assert bool(instead_of_url(path)) == path.startswith(("ftp", "dbfs"))


MEASURE = """
import resource, sys
from tests.source.stores import Listed, refuse_folder
from pyarrow.fs import PyFileSystem
from acker_client.source.storage.listing import find_objects
from acker_client.source.storage.store import Store

def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

store, before = Store(PyFileSystem(Listed(int(sys.argv[1])))), peak()
found = find_objects(store, ["in/*.jsonl"], asker="Files", in_folder=refuse_folder)
kept = (found.names.nbytes + found.sizes.nbytes + found.modified_ns.nbytes) >> 20
print(len(found), kept, peak() - before)
"""


@pytest.mark.long
def test_a_million_objects_in_one_folder_take_little_memory_while_they_are_listed_and_less_afterwards() -> None:
    run = subprocess.run([sys.executable, "-c", MEASURE, "1000000"], capture_output=True, text=True, check=True)
    count, kept_mb, peak_mb = map(int, run.stdout.split())
    print(run.stdout)
    assert count == 1_000_000
    assert kept_mb < 100
    assert peak_mb < 1000


def test_a_listing_keeps_no_object_of_python_for_each_object(tmp_path: Path) -> None:
    found = find_objects(Store(PyFileSystem(Listed(1000))), ["in/*"], asker="Files", in_folder=refuse_folder)
    assert (found.names.nbytes + found.sizes.nbytes + found.modified_ns.nbytes) / len(found) < 100
