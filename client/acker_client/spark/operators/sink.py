"""Sinks: the end of a tracked pipeline. Rows are acked once they are written.

A step in front of the user's write, in the same job, acks the rows. The client records what the user's function does
with its frame. When the batch is settled, ``commit_evidence.batch`` decides by this evidence whether the write was
done. A function that returns normally is not evidence, and neither are rows that were only read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

import numpy as np
from pyspark.sql import DataFrame

from acker_client.clean_up import CleanUp
from acker_client.pins import Pins
from acker_client.spark.anchoring.anchors import Rows
from acker_client.spark.anchoring.tally import Tally
from acker_client.spark.commit_evidence.batch import job_tag_of
from acker_client.spark.commit_evidence.following import follow
from acker_client.spark.commit_evidence.others import followed_too
from acker_client.spark.commit_evidence.witness import Trail
from acker_client.spark.driver.columns import user_schema
from acker_client.spark.operators.declared import checked_name
from acker_client.spark.plan_check import fusing, plan
from acker_client.spark.worker.chain import Step, TakeRows
from acker_client.spark.worker.content import hash_content

Args = ParamSpec("Args")
Owner = TypeVar("Owner")
Value = TypeVar("Value")


class Sink(Generic[Args, Value]):
    """A function that writes a frame, as the end of a pipeline. ``function`` is the user's, unchanged."""

    def __init__(
        self,
        function: Callable[Concatenate[DataFrame, Args], Value],
        name: str | None = None,
        cache: bool | None = None,
        owner: object = None,
    ) -> None:
        self.function = function
        given = name or getattr(function, "__name__", "") or type(function).__name__
        self.name = checked_name(function, given, "@sink")
        if inspect.isgeneratorfunction(function):
            raise TypeError(f"@sink: {self.name!r} yields, so a call of it writes nothing; write a plain function")
        self.__doc__ = function.__doc__
        self.__name__ = self.name
        self._cache = cache
        # A method is a different sink for each object.
        self._identity = (getattr(function, "__func__", function), owner)

    def __get__(self, instance: object, owner: type | None = None) -> Sink[Args, Value]:
        """Bind a sink that is declared as a method, where ``self`` comes before the rows."""
        if instance is None:
            return self
        bound: Any = self.function.__get__(instance, owner)
        return Sink(bound, self.name, self._cache, instance)

    def __call__(self, df: DataFrame, /, *args: Args.args, **kwargs: Args.kwargs) -> Value:
        """Run the function on ``df`` without its tracking columns, and return its result."""
        plan.refuse_other_frames(df, f"sink {self.name!r}")
        own = fusing.applied_to(df)
        self._keep_cached(df, own)
        upstream = plan.inspect(df, f"sink {self.name!r}")
        # Before the rows are marked, so that something else can take them if the sink is refused.
        self._check_batches(upstream.batches)
        upstream = plan.mark_consumed(df, upstream, self.name, kind="sink")
        applied = fusing.arriving(df, upstream) if own is None or df.is_cached else own
        chain = applied.then(self._step(applied.chain.settings.pins), is_tracked=False)
        schema, batches = user_schema(df), applied.batches
        # Only the same sink with the same arguments on the same rows may make up for an earlier failure.
        key = Call((self.name, *(node.tag for node in upstream.nodes)), (*self._identity, *args, kwargs), df)
        for other in batches[0].returned_sinks(self.name, key.over[1:]):
            if not plan.splits_alike(df, other.frame, upstream.partitioning, other.partitioning):
                plan.refuse_other_partitioning(df, f"sink {self.name!r}", other.nodes)
        evidence = batches[0].evidence_of(key, self.name)
        evidence.steps, evidence.frame, evidence.partitioning = key.over[1:], df, upstream.partitioning
        for batch in batches[1:]:
            batch.share(key, evidence, batches[0])
        rows, node = evidence.planned(
            lambda: fusing.plan_chain(applied.base, chain, "sink", self.name, schema, upstream.columns, batches),
        )
        is_changed = evidence.content is not None and not _are_alike(evidence.content, key.content())
        witness = evidence.begin_call(node, rows, is_changed=is_changed)
        trail = Trail(witness)
        context, tag = df.sparkSession.sparkContext, job_tag_of(node)
        with CleanUp() as undo:
            undo.add(partial(context.removeJobTag, tag))
            try:
                context.addJobTag(tag)
                with followed_too(trail):
                    value = self.function(follow(rows, trail), *args, **kwargs)
            except BaseException as error:
                evidence.content = key.content()
                evidence.end_call(node, error)
                raise
            evidence.end_call(node, None)
        return value

    def __repr__(self) -> str:
        return f"<sink {self.name!r}>"

    def _check_batches(self, batches: Sequence[Any]) -> None:
        """Raise ``NotHeld`` if one of the batches is not held."""
        for batch in batches:
            if not batch.held:
                raise batch.not_held(f"sink {self.name!r}")

    def _step(self, pins: Pins) -> Step:
        """Return the step that tasks of this sink run. ``pins``: the servers on which the rows' roots are placed."""
        return SinkStep(self.name)

    def _keep_cached(self, df: DataFrame, applied: fusing.AppliedChain | None) -> None:
        """Cache ``df`` for the batch if the user asked for it or an earlier batch evaluated it repeatedly."""
        if self._cache is False or df.is_cached:
            return
        batches: Any = applied.batches if applied else plan.inspect(df, f"sink {self.name!r}").batches
        if self._cache or any(batch.once.must_cache("sink", self.name) for batch in batches):
            batches[0].keep_cached(df)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """The key of a sink call.

    ``over``: the name of the sink, and the tags of the steps that made its rows. ``given``: the function, the object to
    which it is bound if it is a method, and all arguments except the rows, ``df``. Two calls are equal if their
    arguments are identical or equal, and their frames compute the same rows. The key holds references to the arguments,
    so that no new object can have the identity of a deleted one.
    """

    over: tuple[str, ...]
    given: tuple[object, ...]
    df: DataFrame

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Call)
            and self.over == other.over
            and _are_alike(self.given, other.given)
            and _are_same(self.df, other.df)
        )

    def __hash__(self) -> int:
        return hash(self.over)

    def content(self) -> list[object]:
        """Return what the arguments, and the object of a method, hold now. A part that cannot be pickled stands for
        itself, whatever it holds. Attributes of classes are left out."""
        _, owner, *args, kwargs = self.given
        named = sorted(cast(dict[str, object], kwargs).items())
        values = (getattr(owner, "__dict__", owner), *args, *(value for _, value in named))
        return [_hashed(part) for value in values for part in _parts(value)]


def _are_same(ours: DataFrame, theirs: DataFrame) -> bool:
    # `sameSemantics` ignores the names of columns.
    return ours is theirs or (ours.schema == theirs.schema and bool(ours._jdf.sameSemantics(theirs._jdf)))


def _are_alike(ours: Sequence[object], theirs: Sequence[object]) -> bool:
    return len(ours) == len(theirs) and all(map(_is_alike, ours, theirs))


def _parts(value: object) -> list[object]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return [*value] if isinstance(value, (list, tuple)) else [value]


def _hashed(value: object) -> object:
    try:
        return hash_content(value)
    except Exception:  # noqa: BLE001  # pickling an object may raise anything
        return value


def _is_alike(ours: object, theirs: object) -> bool:
    try:
        return ours is theirs or (type(ours) is type(theirs) and bool(ours == theirs))
    except Exception:  # noqa: BLE001  # arrays compare element by element; treat them as different
        return False


@overload
def sink(
    function: Callable[Concatenate[DataFrame, Args], Value], /, *, name: str | None = None, cache: bool | None = None
) -> Sink[Args, Value]: ...


@overload
def sink(
    function: Callable[Concatenate[Owner, DataFrame, Args], Value],
    /,
    *,
    name: str | None = None,
    cache: bool | None = None,
) -> Sink[Args, Value]: ...


@overload
def sink(
    *, name: str | None = None, cache: bool | None = None
) -> Callable[[Callable[Concatenate[DataFrame, Args], Value]], Sink[Args, Value]]: ...


def sink(function: Any = None, /, *, name: str | None = None, cache: bool | None = None) -> Any:
    """Make a sink of ``function(rows, ...)``, which writes the frame ``rows``; ``@sink`` or ``@sink(name=...)``.

    The rows count as done when one action in the function has delivered all of them, and no later action has failed.
    Actions that deliver are a write, ``foreach``, ``foreachPartition``, ``collect``, and an iterator that is read to
    its end. ``cache``: True caches the rows for the batch, so that they are computed once however often the sink reads
    them. False never caches them. By default they are cached if an earlier batch evaluated them more than once.
    """
    if function is not None:
        return Sink(function, name, cache)
    return lambda function: Sink(function, name, cache)


@dataclass(frozen=True, slots=True)
class SinkStep:
    """Acks every row and passes it on."""

    name: str

    def start(self, tally: Tally) -> TakeRows:
        return partial(self._take_rows, tally)

    def _take_rows(self, tally: Tally, rows: Rows) -> Iterator[Rows]:
        tally.consume(rows.anchors, np.zeros(len(rows.anchors.roots), np.uint64))
        yield rows
