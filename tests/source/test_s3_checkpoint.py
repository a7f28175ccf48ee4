"""The checkpoint in S3: written whole, and fenced. The later of two runs stops, and nothing is lost."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client.source import Batch, CheckpointError, Files, S3Checkpoint
from acker_client.source.checkpoints.checkpoint_file import CheckpointFile
from acker_client.source.records.input import Committed
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.stores import (
    CheckpointStore,
    Committer,
    IdentifiedCheckpointStore,
    SharedCheckpointStore,
    SignedCheckpointStore,
)
from acker_client.source.s3.connection import S3Object
from acker_client.source.storage.urls import Url, url_of
from tests.source.executors import NO_SPARK, Cluster, frame_of, save_all
from tests.source.memory_s3 import MemoryS3
from tests.source.s3_server import S3Server, nothing


@pytest.fixture
def server(s3_server: S3Server) -> S3Server:
    return s3_server


@pytest.fixture
def url(server: S3Server) -> str:
    return f"s3://{server.new_bucket()}/deep/orders.ckpt{server.query}"


@pytest.fixture(autouse=True)
def no_clients_of_other_tests() -> Iterator[None]:
    yield
    client_at.cache_clear()


def at(position: int, partition: str = "a") -> dict[str, Committed]:
    return {partition: Committed(Ranges.below(position), {"bytes": 10 * position})}


@cache
def client_at(url: str) -> Any:
    """Return one client for all stores at a URL of the server; making one takes a while."""
    return S3Object(parsed(url))._client


def parsed(url: str) -> Url:
    found = url_of(url)
    assert found is not None
    return found


def opened(url: str, pid: int = 1, *, source: str = "orders", retries: bool = True, **hooks: Any) -> S3Checkpoint:
    """Return a store as a run has it after it has begun. ``hooks``: its clocks and limit, by name."""
    store = with_hooks(S3Checkpoint(url, client=client_at(url)), **hooks)
    store.open(source, "files")
    store.load()
    store.sign(Committer(source, 7, "host", pid, retries))
    return store


def with_hooks(store: S3Checkpoint, **hooks: Any) -> S3Checkpoint:
    for name, hook in hooks.items():
        setattr(store, f"_{name}", hook)
    return store


def loaded(url: str, source: str = "orders", kind: str = "files") -> dict[str, Committed]:
    store = S3Checkpoint(url, client=client_at(url))
    store.open(source, kind)
    return store.load()


def test_the_last_saved_state_is_loaded_and_the_store_is_what_a_run_expects(url: str) -> None:
    store = opened(url)
    for port in (CheckpointStore, SignedCheckpointStore, IdentifiedCheckpointStore):
        assert isinstance(store, port)
    assert not isinstance(store, SharedCheckpointStore)
    assert loaded(url) == {}
    saved = {"ä": Committed(Ranges.from_runs([4, 2, 1]), {"bytes": 40}), "b": Committed()}
    store.save(at(3, "ä"))
    store.save(saved)
    assert loaded(url) == saved


def test_a_checkpoint_is_copied_from_a_file_and_back(url: str, server: S3Server, tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "orders.ckpt")
    file.open("orders", "files")
    file.save(at(3))
    bucket, key = url.partition("?")[0].removeprefix("s3://").split("/", 1)
    server.put(bucket, key, (tmp_path / "orders.ckpt").read_bytes())
    store = opened(url)
    assert loaded(url) == at(3)
    store.save(at(4))
    (tmp_path / "orders.ckpt").write_bytes(server.get(bucket, key))
    assert file.load() == at(4)
    file.close()


def test_an_identity_is_drawn_once_and_stays_with_what_the_object_held_before(url: str) -> None:
    store = opened(url)
    store.save(at(3))
    drawn = store.draw_identity()
    assert loaded(url) == at(3)
    again = opened(url)
    assert (again.identity(), again.draw_identity()) == (drawn, drawn)
    again.save(at(4))
    assert loaded(url) == at(4)


def test_an_identity_that_could_not_be_written_is_not_given_to_anything_else(url: str, server: S3Server) -> None:
    store = opened(url, limit_s=0.0)
    store.save(at(3))
    server.before = lambda method, path: (503, "SlowDown") if method == "PUT" else None
    for _ in range(2):
        with pytest.raises(CheckpointError, match="SlowDown"):
            store.draw_identity()
        assert store.identity() == ""
    server.before = nothing
    drawn = store.draw_identity()
    assert opened(url).identity() == drawn


def test_an_identity_is_drawn_before_the_first_write_too(url: str, caplog: pytest.LogCaptureFixture) -> None:
    opened(url).save(at(3))
    for source_url in (url, f"{url.partition('?')[0]}.new?{url.partition('?')[2]}"):
        store = S3Checkpoint(source_url, client=client_at(url))
        store.open("orders", "files")
        before = store.load()
        drawn = store.draw_identity()
        store.sign(Committer("orders", 7, "host", 1))
        assert (loaded(source_url), store.draw_identity()) == (before, drawn)
    assert not caplog.messages


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "is not a checkpoint of the acker, or is damaged: name another object"),
        (lambda text: text.replace('"done": [1]', '"done": [2]'), "digest does not fit"),
        (lambda text: text.replace('"version": 2', '"version": 9'), "version 9, and this acker reads versions up to 2"),
        (lambda text: text.replace('"orders"', '"clicks"'), r"of source 'clicks', not of 'orders' \(last written at"),
        (lambda text: text.replace('"files"', '"kafka"'), "of input 'kafka', not of 'files'"),
    ],
)
def test_a_damaged_or_foreign_object_is_refused_by_name(
    url: str, server: S3Server, damage: Callable[[str], str], says: str
) -> None:
    opened(url).save(at(1))
    bucket, key = url.partition("?")[0].removeprefix("s3://").split("/", 1)
    server.put(bucket, key, damage(server.get(bucket, key).decode()))
    with pytest.raises(CheckpointError, match=says) as refused:
        loaded(url)
    assert f"s3://{bucket}/{key}" in str(refused.value)


# -- two runs

SECOND = r"source 'orders' runs twice: another driver, host:1, began before this one .*This driver stops, and the other"


def test_of_two_runs_the_second_is_told_and_the_first_goes_on(url: str, caplog: pytest.LogCaptureFixture) -> None:
    first = opened(url, 1)
    first.save(at(1))
    second = opened(url, 2)
    first.save(at(2))
    (line,) = [line for line in caplog.messages if "runs twice" in line]
    assert "another driver, host:2, began after this one, and writes checkpoint s3://" in line
    for _ in range(2):
        with pytest.raises(CheckpointError, match=SECOND):
            second.save(at(9))
    assert loaded(url) == at(2)
    first.save(at(3))
    assert loaded(url) == at(3)


def test_a_second_run_that_has_written_meanwhile_is_told_at_its_next_write(url: str) -> None:
    first, second = opened(url, 1), opened(url, 2)
    second.save(at(5))
    first.save(at(1))
    with pytest.raises(CheckpointError, match=SECOND):
        second.save(at(6))
    assert loaded(url) == at(1)


def test_a_second_run_is_told_when_it_draws_an_identity(url: str, caplog: pytest.LogCaptureFixture) -> None:
    first, second = opened(url, 1), opened(url, 2)
    first.save(at(1))
    with pytest.raises(CheckpointError, match=SECOND):
        second.draw_identity()
    with pytest.raises(CheckpointError, match=SECOND):
        second.save(at(9))
    assert loaded(url) == at(1)
    assert "another driver, host:2, began after this one" in caplog.text
    third = opened(url, 3)
    first.draw_identity()
    with pytest.raises(CheckpointError, match=SECOND):
        third.save(at(9))
    assert loaded(url) == at(1)


def test_a_run_that_may_not_repeat_a_record_stops_if_another_one_went_on_from_its_checkpoint(url: str) -> None:
    first = opened(url, 1, retries=False)
    second = opened(url, 2, retries=False)
    second.save(at(5))
    with pytest.raises(CheckpointError, match=r"another driver, host:2, began after this one .*This driver stops"):
        first.save(at(6))
    second.save(at(7))
    assert loaded(url) == at(7)


def test_a_run_that_finds_another_write_before_its_first_is_told_at_its_start(url: str) -> None:
    first = opened(url, 1)
    second = S3Checkpoint(url)
    second.open("orders", "files")
    second.load()
    first.save(at(1))
    with pytest.raises(CheckpointError, match=SECOND):
        second.sign(Committer("orders", 8, "host", 2))


def test_a_restart_goes_on_at_once_after_a_run_that_died(url: str) -> None:
    for pid in range(5):
        store = opened(url, pid)
        assert loaded(url) == (at(pid) if pid else {})
        store.save(at(pid + 1))


TROUBLES = st.sampled_from(["", "", "", "unanswered", "SlowDown", "ConditionalRequestConflict"])


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["begin", "save", "save", "die"]), TROUBLES), max_size=20))
@settings(max_examples=300, deadline=None)
def test_whatever_runs_do_the_object_holds_what_one_of_them_did_and_only_an_earlier_run_stops_another(
    steps: list[tuple[int, str, str]],
) -> None:
    """Each run's state is what it found and what it did itself. So nothing that nobody did is ever in the object."""
    troubles: list[str] = []
    s3 = MemoryS3(lambda: troubles.pop() if troubles else "")
    alive: dict[int, tuple[S3Checkpoint, set[int]]] = {}
    overtaken: set[int] = set()
    done: set[int] = set()

    def numbers_in(store: S3Checkpoint) -> set[int]:
        return {int(name) for name in store.load()}

    for number, (run, step, trouble) in enumerate(steps):
        troubles = [trouble] if trouble else []
        if step == "begin" and run not in alive:
            store = with_hooks(S3Checkpoint("s3://b/c", client=s3), sleep=lambda seconds: None)
            store.open("orders", "files")
            found = numbers_in(store)
            assert found <= done
            store.sign(Committer("orders", 1, "host", run))
            alive[run] = store, found
            overtaken.discard(run)
        elif step == "save" and run in alive:
            store, own = alive[run]
            own.add(number)
            done.add(number)
            later = list(alive)[list(alive).index(run) + 1 :]
            if is_told(store, {str(each): Committed(Ranges.below(1), {}) for each in own}):
                assert run in overtaken, "a run was stopped although no earlier run has written since it began"
                del alive[run]
            else:
                other = S3Checkpoint("s3://b/c", client=s3)
                other.open("orders", "files")
                assert numbers_in(other) == own
                overtaken.update(later)
        elif step == "die":
            alive.pop(run, None)


def is_told(store: S3Checkpoint, committed: dict[str, Committed]) -> bool:
    """Save, and return whether the store says that its source runs twice."""
    try:
        store.save(committed)
    except CheckpointError as error:
        if "runs twice" not in str(error):
            raise
        return True
    return False


def test_an_object_that_is_removed_while_its_source_runs_is_written_anew(
    url: str, server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(url)
    store.save(at(1))
    bucket, key = url.partition("?")[0].removeprefix("s3://").split("/", 1)
    server.client.delete_object(Bucket=bucket, Key=key)
    store.save(at(2))
    assert loaded(url) == at(2)
    assert any("was removed while its source runs: it is written anew" in line for line in caplog.messages)


# -- trouble


def failing(server: S3Server, *failures: tuple[int, str] | None) -> None:
    """Let the next calls fail, each with one of ``failures``; None lets a call pass."""
    left = iter(failures)
    server.before = lambda method, path: next(left, None)


def test_a_write_that_succeeded_without_an_answer_is_no_second_driver(url: str, server: S3Server) -> None:
    store = opened(url)
    application = server.application

    def unanswered(environ: dict[str, Any], start_response: Any) -> Any:
        """Write the object, and answer that something went wrong."""
        server.application = application
        list(application(environ, lambda *_: None))
        start_response("500 Trouble", [("Content-Length", "0")])
        return [b""]

    server.application = unanswered
    store.save(at(1))
    assert loaded(url) == at(1)
    store.save(at(2))
    assert loaded(url) == at(2)


def test_troubles_that_pass_are_outlasted(url: str, server: S3Server) -> None:
    store = opened(url)
    failing(server, (503, "SlowDown"), (500, "InternalError"), (409, "ConditionalRequestConflict"))
    store.save(at(1))
    failing(server, (503, "SlowDown"))
    assert loaded(url) == at(1)


def test_an_outage_that_lasts_ends_the_run_and_the_old_checkpoint_stands(
    url: str, server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(url, limit_s=0.0)
    store.save(at(1))
    server.before = lambda method, path: (503, "SlowDown")
    says = r"checkpoint s3://.*/deep/orders\.ckpt: http://.* does not answer, or not well \(SlowDown: .*\), for 0 s: .*"
    with pytest.raises(CheckpointError, match=says + "Nothing is lost: the previous checkpoint still holds"):
        store.save(at(2))
    server.before = nothing
    assert loaded(url) == at(1)


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        ((403, "AccessDenied"), "no permission .*: allow this identity s3:GetObject and s3:PutObject there"),
        ((403, "InvalidAccessKeyId"), "these credentials are not accepted .*: renew them"),
        ((400, "ExpiredToken"), "these credentials are not accepted"),
        ((400, "AuthorizationHeaderMalformed"), r"the bucket is in another region .*: write \?region=REGION after the"),
        ((418, "Teapot"), r"get_object is refused \(Teapot"),
    ],
)
def test_what_s3_refuses_is_one_sentence_that_says_what_to_do(
    url: str, server: S3Server, failure: tuple[int, str], says: str
) -> None:
    server.before = lambda method, path: failure
    with pytest.raises(CheckpointError, match=rf"checkpoint s3://bucket-\w+/deep/orders\.ckpt: {says}"):
        loaded(url)


def test_a_missing_bucket_missing_credentials_and_an_unreachable_endpoint_are_named(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match="there is no bucket 'nowhere': create it, or name another"):
        loaded(f"s3://nowhere/c{server.query}")
    unreachable = S3Checkpoint("s3://b/c?endpoint_override=127.0.0.1:1&scheme=http&region=x")
    with_hooks(unreachable, limit_s=0.0)
    unreachable.open("orders", "files")
    with pytest.raises(CheckpointError, match=r"http://127\.0\.0\.1:1 does not answer.*Could not connect"):
        unreachable.load()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(CheckpointError, match="there are no credentials: set AWS_ACCESS_KEY_ID"):
        loaded(f"s3://b/c{server.query}")


def test_a_store_that_does_not_check_conditions_is_refused_at_the_start(url: str, server: S3Server) -> None:
    store = opened(url)
    store.save(at(1))
    application = server.application

    def careless(environ: dict[str, Any], start_response: Any) -> Any:
        environ.pop("HTTP_IF_MATCH", None)
        environ.pop("HTTP_IF_NONE_MATCH", None)
        return application(environ, start_response)

    server.application = careless
    try:
        with pytest.raises(CheckpointError, match="this store does not check If-Match, so two drivers would overwrite"):
            opened(url)
        assert loaded(url) == at(1)
    finally:
        server.application = application
    failing(server, None, (501, "NotImplemented"))
    with pytest.raises(CheckpointError, match="this store does not check If-Match"):
        opened(url)


def test_credentials_in_a_url_are_used_and_never_shown(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    bucket = server.new_bucket()
    store = opened(f"s3://testing:verysecret@{bucket}/c{server.query}")
    store.save(at(1))
    assert str(store) == f"s3://{bucket}/c"
    server.before = lambda method, path: (403, "AccessDenied")
    with pytest.raises(CheckpointError) as refused:
        store.save(at(2))
    assert "verysecret" not in str(refused.value)


# -- whole sources


@pytest.mark.long
def test_a_source_goes_on_where_its_checkpoint_in_s3_says(url: str, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.write("a.txt", "one", "two")
    assert cluster.source(checkpoint=url).run(NO_SPARK, save_all).acked == 2
    cluster.write("b.txt", "three")
    assert cluster.source(checkpoint=url).run(NO_SPARK, save_all).acked == 1
    assert cluster.source(checkpoint=url).run(NO_SPARK, save_all).records == 0


@pytest.mark.long
def test_of_two_sources_by_mistake_the_second_stops_nothing_is_lost_and_the_first_goes_on(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    cluster = Cluster(tmp_path)
    cluster.write("a.txt", *(str(k) for k in range(40)))
    written: dict[str, list[str]] = {"first": [], "second": []}
    second = cluster.source(checkpoint=url, batch_records=7).batches(NO_SPARK)

    def process(who: str, batch: Batch) -> None:
        rows = frame_of(batch).rows()
        written[who] += [row.value for row in rows]
        frame_of(batch).ack(rows)

    def of_first(batch: Batch) -> None:
        process("first", batch)
        if batch.number == 2:
            process("second", next(second))

    first = cluster.source(checkpoint=url, batch_records=10)
    assert first.run(NO_SPARK, of_first).acked == 40
    with pytest.raises(CheckpointError, match=r"source 'lines' runs twice: another driver, .* began before this one"):
        process("second", next(second))
    assert written["first"] == [str(k) for k in range(40)]
    assert cluster.source(checkpoint=url).run(NO_SPARK, save_all).records == 0
    assert sum("runs twice" in line for line in caplog.messages) >= 1


def test_a_checkpoint_is_never_part_of_the_input(server: S3Server, url: str) -> None:
    bucket = url.partition("?")[0].removeprefix("s3://").split("/", 1)[0]
    server.put(bucket, "deep/a.txt", "one\n")
    source = Files(f"s3://{bucket}/deep/*{server.query}", name="orders", checkpoint=url)
    opened(url)
    input_, _ = source.input()
    from acker_client.source import SourceError

    with pytest.raises(SourceError, match=r"deep/orders\.ckpt' is written by this source: keep it out of the paths"):
        input_.start({})


@pytest.mark.parametrize("url", ["gs://b/c", "s3://b", "s3:///c", "c", "/c"])
def test_a_url_that_names_no_object_of_s3_is_refused(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"S3Checkpoint\(.*\): give the URL of an object, like s3://bucket/orders\.ckpt"
    ):
        S3Checkpoint(url)


def test_who_wrote_a_checkpoint_and_when_is_in_it(server: S3Server, url: str) -> None:
    opened(url, 4711, wall=lambda: 1_800_000_000.4)
    bucket, key = url.partition("?")[0].removeprefix("s3://").split("/", 1)
    saved = json.loads(server.get(bucket, key))
    by = {"source": "orders", "session": 7, "host": "host", "pid": 4711, "time": "2027-01-15T08:00:00+00:00"}
    assert (saved["by"], saved["run"][0]) == (by, 1)
