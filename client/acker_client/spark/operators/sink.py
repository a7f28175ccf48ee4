"""Sink: the end of a tracked pipeline: what it writes is acked once the write is done.

Decides that rows are acked by a pass-through in front of the user's write, in the write's own job, and that the frame
which the user's function gets is followed. Whether the function has done its work is the batch's to decide when it is
settled (``batch``, by evidence): neither a function that returns nor rows that were read prove a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import numpy as np
from pyspark.sql import DataFrame

from acker_client.clean_up import CleanUp
from acker_client.pins import Pins
from acker_client.spark.anchoring.anchors import Rows
from acker_client.spark.anchoring.tally import Tally
from acker_client.spark.commit_evidence.batch import NotHeld, job_tag_of
from acker_client.spark.commit_evidence.following import follow
from acker_client.spark.commit_evidence.others import followed_too
from acker_client.spark.commit_evidence.statements import watched
from acker_client.spark.commit_evidence.witness import Trail
from acker_client.spark.driver.columns import user_schema
from acker_client.spark.plan_check import fusing, plan
from acker_client.spark.worker.chain import Step, TakeRows

Args = ParamSpec("Args")
Owner = TypeVar("Owner")
Value = TypeVar("Value")


class Sink(Generic[Args, Value]):
    """A function that writes a frame, as the end of a pipeline. ``function`` is the user's, untouched."""

    def __init__(
        self,
        function: Callable[Concatenate[DataFrame, Args], Value],
        name: str | None = None,
        cache: bool | None = None,
        owner: object = None,
    ) -> None:
        self.function = function
        self.name: str = name or getattr(function, "__name__", "") or type(function).__name__
        self.__doc__ = function.__doc__
        self.__name__ = self.name
        self._cache = cache
        # A method is another sink for each object that it is a method of.
        self._is = (getattr(function, "__func__", function), owner)

    def __get__(self, instance: object, owner: type | None = None) -> Sink[Args, Value]:
        """A method is a sink as well: ``self`` comes before the rows."""
        if instance is None:
            return self
        bound: Any = self.function.__get__(instance, owner)
        return Sink(bound, self.name, self._cache, instance)

    def __call__(self, df: DataFrame, /, *args: Args.args, **kwargs: Args.kwargs) -> Value:
        """Run the function on ``df`` without its tracking columns; returns what it returns."""
        plan.refuse_other_frames(df, f"sink {self.name!r}")
        df = self._cached(df)
        upstream = plan.guard(df, self.name, kind="sink")
        applied = fusing.applied_to(df) or fusing.arriving(df, upstream)
        self._check_batches(applied.batches)
        chain = applied.chain.then(self._step(applied.chain.settings.pins), is_tracked=False)
        schema, batches = user_schema(df), applied.batches
        # The same sink with the same arguments on the same rows makes an earlier failure good; nothing else does.
        key = Call((self.name, *(node.tag for node in upstream.nodes)), (*self._is, *args, kwargs))
        evidence = batches[0].evidence_of(key, self.name)
        for batch in batches[1:]:
            batch.share(key, evidence, batches[0])
        rows, node = evidence.planned(
            df,
            lambda: fusing.plan_chain(applied.base, chain, "sink", self.name, schema, upstream.columns, batches),
        )
        witness = evidence.begin(node, rows)
        trail = Trail(witness)
        context, tag = df.sparkSession.sparkContext, job_tag_of(node)
        with CleanUp() as undo:
            undo.add(partial(context.removeJobTag, tag))
            try:
                context.addJobTag(tag)
                with watched(rows.sparkSession, trail), followed_too(trail):
                    value = self.function(follow(rows, trail), *args, **kwargs)
            except BaseException as error:
                evidence.end(node, error)
                raise
            evidence.end(node, None)
        return value

    def __repr__(self) -> str:
        return f"<sink {self.name!r}>"

    def _check_batches(self, batches: Sequence[Any]) -> None:
        """Raise :class:`NotHeld` for rows of a batch that is not held."""
        if any(not batch.held for batch in batches):
            raise NotHeld(f"sink {self.name!r}")

    def _step(self, pins: Pins) -> Step:
        """What its task does with the rows. ``pins``: where their roots live."""
        return SinkStep(self.name)

    def _cached(self, df: DataFrame) -> DataFrame:
        """``df``, cached for the batch where that was asked for, or where its rows were evaluated more than once."""
        if self._cache is False or df.is_cached:
            return df
        applied = fusing.applied_to(df)
        batches: Any = applied.batches if applied else plan.inspect(df, f"sink {self.name!r}").batches
        if self._cache or any(batch.once.must_cache("sink", self.name) for batch in batches):
            batches[0].keep_cached(df)
        return df


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of a sink over rows, as a key: ``over`` says which sink and rows, ``given`` what it is given besides.

    Two calls are one when what they are given is the same or equal. Holds all of it, so that nothing new can take the
    place of an object that is gone.
    """

    over: tuple[str, ...]
    given: tuple[object, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and self.over == other.over and _are_alike(self.given, other.given)

    def __hash__(self) -> int:
        return hash(self.over)


def _are_alike(ours: Sequence[object], theirs: Sequence[object]) -> bool:
    return len(ours) == len(theirs) and all(map(_is_alike, ours, theirs))


def _is_alike(ours: object, theirs: object) -> bool:
    try:
        return ours is theirs or (type(ours) is type(theirs) and bool(ours == theirs))
    except Exception:  # noqa: BLE001  # what compares element by element, as an array: not known to be the same
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

    Its rows count as done when an action that hands all of them on (a write, ``foreach``, ``foreachPartition``,
    ``collect``, an iterator that is read to its end) has succeeded in it, and none has failed after that. ``cache``:
    True caches its rows for the batch, so that they are computed once however often it reads them; False never does;
    unless given, they are cached from the batch on after one in which they were evaluated more than once.
    """
    if function is not None:
        return Sink(function, name, cache)
    return lambda function: Sink(function, name, cache)


@dataclass(frozen=True, slots=True)
class SinkStep:
    """Acks every row and hands it on."""

    name: str

    def start(self, tally: Tally) -> TakeRows:
        return partial(self._take, tally)

    def _take(self, tally: Tally, rows: Rows) -> Iterator[Rows]:
        tally.take(rows.anchors, np.zeros(len(rows.anchors.roots), np.uint64))
        yield rows
