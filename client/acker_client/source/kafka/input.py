"""Lists the partitions of topics, and plans the next offsets. Runs in the driver.

A partition is named ``topic/0``, and a position is an offset. Decides where a partition begins (the checkpoint, the
group's commit, ``start``, ``first_poll``) and ends (``stop``), and when it is an error that a log ends before offsets
that were read, or that a topic has another id. Commits only the finished prefix to Kafka. A plan is empty while no
broker answers, or the schema registry does not, and leaves out a partition that has no leader.
Imports neither grpc nor pyspark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from acker_client.cluster.handed_on import HandedOn
from acker_client.source.errors import CheckpointError, InputChanged, SourceError
from acker_client.source.kafka.bounds import NO_BOUNDS, OffsetBounds
from acker_client.source.kafka.broker import (
    EARLIEST,
    LATEST,
    TOPIC_IDS_S,
    Broker,
)
from acker_client.source.kafka.commits import Commit, Commits
from acker_client.source.kafka.connection import Unreachable
from acker_client.source.kafka.decoder import decoder_of
from acker_client.source.kafka.keys import keys_of, shown_keys_of
from acker_client.source.kafka.names import At, KafkaConnection, Topics
from acker_client.source.kafka.offset_store import KafkaOffsets
from acker_client.source.kafka.reader import Readers, ends_before
from acker_client.source.kafka.reading_range import ReadingRange, beyond
from acker_client.source.kafka.schema_registry import registry_of
from acker_client.source.kafka.slices import (
    KafkaPart,
    KafkaSlice,
    are_there,
    originals_of,
    origins_of,
    taken_up_of,
)
from acker_client.source.kafka.topic_log import Allowance, TopicLog, log_skipped, shared_out
from acker_client.source.kafka.values import Decoding
from acker_client.source.records.balance import sliced
from acker_client.source.records.input import Chosen, Committed, Mark, Observed, OrderKeys, Original, Plan
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.stores import CheckpointStore
from acker_client.source.waiting import Outage

log = logging.getLogger("acker_client.source.kafka")

FIRST_POLLS = ("earliest", "latest", "uncommitted_earliest", "uncommitted_latest")
# How long a plan waits for a broker. Short, because replays wait for the plan.
PLAN_S = 5.0
# Brokers count as reachable for this long after an answer.
ANSWER_S = 1.0
# The same for the schema registry, of which most batches need nothing new.
REGISTRY_ANSWER_S = 10.0
# A log line names this many partitions without a leader.
AWAY_SHOWN = 5
# Brokers drop offsets that were not committed for some time (offsets.retention.minutes, by default a week), also those
# of a driver that runs. So all are committed again after this time; and after the second one if that failed.
RENEW_S, RENEW_AGAIN_S = 3600.0, 60.0
# How long the end of a run waits for its last commit.
CLOSE_S = 10.0


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The options of the input.

    ``source``: the name of the source. ``first_poll``: one of ``FIRST_POLLS``, or the time of the first record.
    ``start``: overrides ``first_poll`` where it is given. ``stop``: None for a source without an end. ``decoding``:
    None for values as bytes. ``is_ordered``: whether plans come with keys. ``commits``: whether the input commits the
    group's offsets; False if the checkpoint store does. ``waits_for_commits``: whether a plan waits until the offsets
    of the last one are committed.
    """

    source: str
    connection: KafkaConnection
    topics: Topics
    first_poll: str | datetime = "uncommitted_earliest"
    start: OffsetBounds = NO_BOUNDS
    stop: OffsetBounds | None = None
    skips_null: bool = False
    decoding: Decoding | None = None
    is_ordered: bool = False
    records_per_s: float | None = None
    refresh_s: float = 2.0
    commits: bool = True
    waits_for_commits: bool = True
    acks_upstream: bool = False


class KafkaInput:
    """Records of Kafka topics as a ``SharedInput``, ``PausableInput``, ``CommittingInput``, ``PartlyRemoteInput`` and
    ``ObservedInput``.

    ``broker``, ``clock``: for tests.
    """

    kind = "kafka"

    def __init__(
        self,
        options: KafkaOptions,
        *,
        broker: Callable[[KafkaConnection], Broker] = Broker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self._open_broker = broker
        self._readers = Readers()
        self._clock = clock
        self._broker: Broker | None = None
        self._range = ReadingRange(options.first_poll, options.start, options.stop, lambda: self._connected)
        self._checkpoint: CheckpointStore | None = None
        self._commits: Commits | None = None
        # The id of each topic, from the checkpoint or from the first answer of a broker.
        self._topic_ids: dict[str, str] = {}
        self._is_new = False
        self._logs: dict[At, TopicLog] = {}
        # Partitions that were assigned while no broker answered.
        self._unadmitted: dict[At, Committed] = {}
        # Partitions of the checkpoint that were not listed at the start, and have not been listed since.
        self._unlisted: dict[At, Committed] = {}
        self._is_shared = False
        # All partitions, by the last answer to ``partitions``; and since when some of them are not listed any more.
        self._known: list[At] = []
        self._unlisted_since_s: dict[At, float] = {}
        self._has_begun = False
        self._paused: frozenset[str] = frozenset()
        self._turn = 0
        self._refresh_due_s = 0.0
        self._pending: dict[At, Ranges] = {}
        # When all offsets are committed again, also unchanged ones.
        self._renew_due_s = float("inf")
        # Deleted partitions that no plan has told of yet.
        self._deleted: list[At] = []
        # Partitions whose keys could not be read. The outage lasts as long as there is one.
        self._keyless = set[At]()
        self._wrong_since_s: float | None = None
        self._answered_s = float("-inf")
        # Whether ``is_reachable`` has asked for the ends, right before the plan.
        self._are_ends_new = False
        self._outage = Outage(f"Kafka at {options.connection.servers}", clock)
        self._registry_answered_s = float("-inf")
        self._registry_outage = Outage("the schema registry", clock)

    # -- beginning and end

    def set_checkpoint(self, store: CheckpointStore) -> None:
        self._checkpoint = store
        if isinstance(store, KafkaOffsets):
            store.waits = self.options.waits_for_commits

    def start(self, committed: Mapping[str, Committed]) -> None:
        self._logs, self._pending, self._is_shared, self._has_begun = {}, {}, False, False
        self._topic_ids, self._unadmitted, self._deleted, self._is_new = {}, {}, [], not committed
        self._keyless, self._renew_due_s = set(), self._clock() + RENEW_S
        if self.options.decoding is not None:
            # Made here too, so that a schema that cannot be read is an error at the start.
            decoder_of(self.options.decoding).registry.check(self.options.decoding.registry.timeout_s)
        self._range.check(self._find_partitions())
        saved = {self._at_of(partition): each for partition, each in committed.items()}
        self._admit(saved)
        self._unlisted = {at: each for at, each in saved.items() if at not in self._logs}

    def partitions(self) -> list[str]:
        self._is_shared, self._is_new = True, False
        if not self._known:
            self._known = self._find_partitions()
        else:
            try:
                self._known = self._with_unlisted(self._find_partitions(PLAN_S))
            except SourceError as error:
                # The group keeps its shares meanwhile.
                self._wait_out(error)
        return [at.name for at in self._known]

    def assign(self, committed: Mapping[str, Committed]) -> None:
        self._is_shared, self._is_new = True, False
        self._unadmitted |= {self._at_of(partition): each for partition, each in committed.items()}
        try:
            self._admit_assigned()
        except Unreachable as error:
            self._outage.note(str(error))

    def revoke(self, partitions: Sequence[str]) -> None:
        self._is_shared = True
        self._commit_pending()
        self._forget([self._at_of(partition) for partition in partitions])

    def pause(self, partitions: Collection[str]) -> None:
        self._paused = frozenset(partitions)

    def close(self) -> None:
        """Make the last commits, and close the connections."""
        try:
            if self._broker is not None:
                self._close_broker(self._broker)
        finally:
            self._readers.close()

    def is_reachable(self) -> bool:
        if not self._logs:
            return True
        if not self._does_registry_answer():
            return False
        if self._clock() - self._answered_s > ANSWER_S:
            try:
                self._update_ends(self._clock())
            except Unreachable as error:
                self._outage.note(str(error))
                return False
            except SourceError:
                # The plan decides how long such an error may last.
                return True
            self._note_answer()
            self._are_ends_new = True
        return True

    def away(self) -> list[str]:
        return [at.name for at in self._listed if self._logs[at].is_away]

    # -- plans

    def plan(self, records_max: int, tasks: int) -> Plan[KafkaPart]:
        try:
            self._renew_commits()
            self._commit_pending()
            self._update_logs()
        except (CheckpointError, InputChanged):
            raise
        except SourceError as error:
            self._wait_out(error)
            return Plan(revoked=self._take_deleted())
        self._note_answer()
        revoked = self._take_deleted()
        if not self._does_registry_answer():
            return Plan(revoked=revoked)
        parts = self._share_out(records_max, tasks)
        try:
            keys = self._keys_of(parts)
        except InputChanged:
            raise
        except SourceError as error:
            self._take_back(parts)
            self._wait_out(error)
            return Plan(revoked=revoked)
        is_end = self.options.stop is not None and not parts and self._is_over
        return Plan(parts, is_end=is_end, revoked=revoked, keys=keys)

    def slices(self, chosen: Sequence[Chosen[KafkaPart]], tasks: int) -> list[KafkaSlice]:
        options = self.options

        def slice_of(start: int, stop: int, some: tuple[Chosen[KafkaPart], ...]) -> KafkaSlice:
            return KafkaSlice(start, stop, some, options.connection, options.skips_null, options.decoding)

        return sliced(chosen, tasks, slice_of)

    def origins(self, chosen: Sequence[Chosen[KafkaPart]]) -> pa.RecordBatch:
        return origins_of(chosen)

    def originals(self, chosen: Sequence[Chosen[KafkaPart]]) -> list[Original]:
        return originals_of(self._readers.of(self.options.connection), chosen, self.options.decoding)

    def keys(self, chosen: Sequence[Chosen[KafkaPart]]) -> list[Any]:
        return shown_keys_of(self._readers.of(self.options.connection), chosen)

    def are_there(self, chosen: Sequence[Chosen[KafkaPart]]) -> list[bool]:
        reader = self._readers.of(self.options.connection)
        return [is_there for each in chosen for is_there in are_there(reader, each)]

    @property
    def acks_upstream(self) -> bool:
        return self.options.acks_upstream

    def taken_up(self, chosen: Sequence[Chosen[KafkaPart]]) -> list[list[HandedOn]]:
        reader = self._readers.of(self.options.connection)
        return [handed for each in chosen for handed in taken_up_of(reader, each)]

    # -- progress

    def advance(self, partition: str, done: Ranges) -> None:
        at = self._at_of(partition)
        # If another source owns the partition now, that source commits.
        if at in self._logs:
            self._pending[at] = done
            each = self._logs[at]
            each.done, each.next = done, max(each.next, done.prefix)

    def mark(self, partition: str, done: Ranges) -> Mark:
        # Later starts refuse another topic of this name.
        id_ = self._topic_ids.get(self._at_of(partition).topic)
        return {} if id_ is None else {"topic_id": id_}

    def describe(self, done: Mapping[str, Ranges]) -> str:
        if not (self._has_begun or self._is_shared):
            return f"the partitions of {self.options.topics} are not listed yet"
        # Any thread may ask.
        logs = self._logs.copy()
        behind = sum(max(0, each.end - _reach(done, at, each)) for at, each in logs.items())
        count = len(logs)
        partitions = f"{count} {'partition' if count == 1 else 'partitions'} of {self.options.topics}"
        return f"{partitions}, {behind} {'offset' if behind == 1 else 'offsets'} behind the end"

    def observe(self) -> Mapping[str, Observed]:
        logs = self._logs.copy()
        return {
            at.name: Observed(at.topic, str(at.number), each.next, each.end, each.committed)
            for at, each in logs.items()
        }

    # -- internal

    def _share_out(self, records_max: int, tasks: int) -> list[KafkaPart]:
        """Plan the next offsets of all partitions, at most ``records_max``."""
        logs, now_s = list(self._logs.items()), self._clock()
        # Each plan begins with another partition. So each gets a turn if there are more partitions than records.
        self._turn = (self._turn + 1) % max(1, len(logs))
        backlogs = [0 if at.name in self._paused else self._plannable(each, now_s) for at, each in logs]
        shares = shared_out(backlogs[self._turn :] + backlogs[: self._turn], records_max)
        shares = shares[len(logs) - self._turn :] + shares[: len(logs) - self._turn]
        length_max = max(1, -(-sum(shares) // max(1, tasks)))
        for (_, each), share in zip(logs, shares, strict=True):
            if each.allowance is not None:
                each.allowance.spend(share)
        return [
            part for (at, each), share in zip(logs, shares, strict=True) for part in each.parts(at, share, length_max)
        ]

    def _plannable(self, each: TopicLog, now_s: float) -> int:
        return each.backlog if each.allowance is None else min(each.backlog, each.allowance.available(now_s))

    def _keys_of(self, parts: Sequence[KafkaPart]) -> list[OrderKeys]:
        if not self.options.is_ordered:
            return []
        # A short timeout, because the whole plan waits for it.
        connection = replace(self.options.connection, timeout_s=min(PLAN_S, self.options.connection.timeout_s))
        found: list[OrderKeys] = []
        for part in parts:
            self._keyless.add(part.at)
            found.append(keys_of(self._readers.of(connection), part))
            self._keyless.discard(part.at)
        return found

    def _take_back(self, parts: Sequence[KafkaPart]) -> None:
        """Undo the planning of ``parts``, the last that were planned."""
        for part in reversed(parts):
            each = self._logs[part.at]
            each.next = part.start
            if each.allowance is not None:
                each.allowance.spend(part.start - part.stop)

    def _does_registry_answer(self) -> bool:
        """Whether values can be decoded, as far as the schema registry is concerned. May wait ``PLAN_S``."""
        decoding, now_s = self.options.decoding, self._clock()
        if decoding is None or now_s - self._registry_answered_s <= REGISTRY_ANSWER_S:
            return True
        try:
            registry_of(decoding.registry).check(PLAN_S)
        except Unreachable as error:
            self._registry_outage.note(str(error))
            return False
        self._registry_answered_s = self._clock()
        self._registry_outage.note("")
        return True

    @property
    def _is_over(self) -> bool:
        """Whether each partition is planned up to its ``stop``. False for a group member that has no partition yet."""
        is_over = all(each.is_over for each in self._logs.values()) and not self._unadmitted
        return is_over and bool(self._logs or not self._is_shared)

    @property
    def _listed(self) -> list[At]:
        """The partitions whose topics exist."""
        return [at for at, each in self._logs.items() if each.missing_since_s is None]

    @property
    def _connected(self) -> Broker:
        if self._broker is None:
            self._broker = self._open_broker(self.options.connection)
        return self._broker

    @property
    def _own_commits(self) -> Commits:
        if self._commits is None:
            store = self._checkpoint
            is_in_kafka = isinstance(store, KafkaOffsets)
            self._commits = Commits(
                self._connected,
                self.options.source,
                None if is_in_kafka else store,
                store.run_id if isinstance(store, KafkaOffsets) else None,
            )
        return self._commits

    @property
    def _group(self) -> str:
        return self.options.connection.group

    def _at_of(self, partition: str) -> At:
        try:
            return At.named(partition)
        except ValueError as error:
            raise CheckpointError(f"the checkpoint is of another input: {error}") from None

    def _find_partitions(self, timeout_s: float | None = None) -> list[At]:
        found = self._connected.partitions(self.options.topics, timeout_s)
        return [At(topic, number) for topic, count in found.items() for number in range(count)]

    def _update_logs(self) -> None:
        """Look for new and deleted partitions if that is due, and update the ends of all logs."""
        self._admit_assigned()
        now_s = self._clock()
        is_due = now_s >= self._refresh_due_s or not self._has_begun
        if is_due and not self._is_shared:
            found = self._find_partitions(PLAN_S if self._has_begun else None)
            self._admit({at: self._unlisted.get(at, Committed()) for at in found if at not in self._logs})
            self._unlisted = {at: each for at, each in self._unlisted.items() if at not in self._logs}
            self._remove_deleted(set(found), now_s)
            if not found and not self._has_begun:
                to_do = " yet: waiting for one" if self.options.stop is None else ": there is nothing to read"
                log.warning("no topic fits %s%s", self.options.topics, to_do)
        if is_due:
            self._check_topic_ids({at.topic for at in self._listed})
            for at, low in self._connected.offsets(self._listed, EARLIEST, PLAN_S, some=True).items():
                self._skip_to(at, low)
            self._refresh_due_s = now_s + self.options.refresh_s
        if not self._are_ends_new or now_s - self._answered_s > ANSWER_S:
            self._update_ends(now_s)
        self._are_ends_new = False
        self._has_begun = True

    def _update_ends(self, now_s: float) -> None:
        """Ask for the ends of all logs. A partition without a leader keeps its end, and is not planned."""
        ends = self._connected.offsets(self._listed, LATEST, PLAN_S, some=True)
        for at in self._listed:
            self._logs[at].is_away = at not in ends
        for at, end in ends.items():
            self._note_end(at, self._logs[at], end, now_s)

    def _check_topic_ids(self, topics: Collection[str], wait_s: float = 0.0) -> None:
        """Ask for the ids of topics, and compare those that have arrived. Raises ``InputChanged`` for another id."""
        for topic, id_ in self._connected.topic_ids(topics, wait_s).items():
            known = self._topic_ids.setdefault(topic, id_)
            if known != id_:
                raise InputChanged(
                    f"Kafka: topic {topic!r} was deleted and created again: it had the id {known}, and has {id_} now."
                    " To read it from its beginning give another source name and group_id, and no old checkpoint"
                )

    def _admit_assigned(self) -> None:
        self._admit(self._unadmitted)
        self._unadmitted = {
            at: each for at, each in self._unadmitted.items() if at not in self._logs and self._is_shared_out(at)
        }

    def _is_shared_out(self, at: At) -> bool:
        """Whether the group of this source shares out a partition. A listing may miss it for a short time."""
        return self._is_shared and at in self._known

    def _with_unlisted(self, found: list[At]) -> list[At]:
        """Return the partitions that a group shares out: those of a listing, and those that are missing in it for a
        short time. See ``_remove_deleted``."""
        now_s, there = self._clock(), set(found)
        missing = {at: self._unlisted_since_s.get(at, now_s) for at in self._known if at not in there}
        self._unlisted_since_s = {
            at: since_s for at, since_s in missing.items() if now_s - since_s < self.options.connection.timeout_s
        }
        # The group takes a deleted one away some time later. Until then no question to brokers may name it.
        self._note_missing(there, now_s)
        for at in sorted((missing.keys() - self._unlisted_since_s.keys()) & self._logs.keys()):
            _log_deleted(at)
        return sorted({*found, *self._unlisted_since_s}) if self._unlisted_since_s else found

    def _skip_to(self, at: At, low: int) -> None:
        """Skip offsets that retention has deleted before they were planned. ``low``: where the log begins."""
        each = self._logs[at]
        if each.next < low <= each.end:
            log_skipped(at, each.done, each.next, low)
            each.next = low

    def _remove_deleted(self, found: set[At], now_s: float) -> None:
        """Remove partitions of topics that have not been listed for a while.

        Waits because a broker that has just started may not know all topics at once.
        """
        self._note_missing(found, now_s)
        gone = [
            at
            for at, each in self._logs.items()
            if each.missing_since_s is not None and now_s - each.missing_since_s >= self.options.connection.timeout_s
        ]
        for at in gone:
            _log_deleted(at)
        self._forget(gone)
        self._deleted += gone

    def _note_missing(self, found: Collection[At], now_s: float) -> None:
        """Note which partitions a listing has missed. They are not planned, and brokers are not asked about them."""
        for at, each in self._logs.items():
            since_s = now_s if each.missing_since_s is None else each.missing_since_s
            each.missing_since_s = None if at in found else since_s

    def _forget(self, gone: Sequence[At]) -> None:
        for at in gone:
            for kept in (self._logs, self._unadmitted, self._pending):
                kept.pop(at, None)
        self._connected.forget_commits(gone)
        self._keyless -= set(gone)

    def _take_deleted(self) -> list[str]:
        deleted, self._deleted = self._deleted, []
        return [at.name for at in deleted]

    def _note_end(self, at: At, each: TopicLog, end: int, now_s: float) -> None:
        if end >= each.next:
            each.end, each.short_since_s = end, None
            return
        # While a partition gets a new leader, its end may be behind for a moment.
        each.short_since_s = now_s if each.short_since_s is None else each.short_since_s
        if now_s - each.short_since_s >= self.options.connection.timeout_s:
            raise InputChanged(ends_before(at, each.next, end))

    def _admit(self, committed: Mapping[At, Committed]) -> None:
        """Add partitions to the plan, each from the offset at which it goes on."""
        if not committed:
            return
        there = set(self._find_partitions())
        wanted = [at for at in committed if at in there]
        for at in committed:
            if at not in there and not self._is_shared_out(at):
                self._refuse_gone(at, committed[at].done.prefix)
        topics = {at.topic for at in wanted}
        commits = self._own_commits.load(sorted(at for at in there if at.topic in topics), is_new=self._is_new)
        saved = [(at.topic, committed[at].mark.get("topic_id")) for at in wanted]
        self._compare_topic_ids(
            topics, [*saved, *((at.topic, each.own.topic_id) for at, each in commits.items() if each.own is not None)]
        )
        low, high = self._connected.offsets(wanted, EARLIEST), self._connected.offsets(wanted, LATEST)
        own = {at for at, each in commits.items() if each.own is not None}
        known = {at.topic for at in own} | {at.topic for at, each in committed.items() if each.done.prefix}
        firsts = self._range.firsts([at for at in wanted if not self._is_added(at, known)], low, high)
        stops = self._range.stops(wanted, low, high)
        logs, chosen_now = dict[At, TopicLog](), dict[At, Ranges]()
        for at in wanted:
            done, commit = committed[at].done, commits.get(at)
            first = self._first(at, committed[at], commit, at.topic in known, firsts.get(at, low[at]))
            if first > high[at]:
                has_begun = bool(done.prefix or at in own)
                raise InputChanged(ends_before(at, first, high[at])) if has_begun else beyond(at, first, high[at])
            log_skipped(at, done, first, low[at])
            first = max(first, low[at])
            logs[at] = TopicLog(first, high[at], stops.get(at), done.union(Ranges.below(first)))
            if self.options.records_per_s is not None:
                logs[at].allowance = Allowance(self.options.records_per_s, self._clock())
            if self.options.commits and commit is not None:
                logs[at].committed = commit.offset
            if at not in own or (self.options.commits and not self._is_shared):
                chosen_now[at] = Ranges.below(first)
        # Must come before the partitions are added: if it fails, the next plan begins them from new commits.
        self._check_unchanged(chosen_now)
        self._logs = dict(sorted((self._logs | logs).items()))
        self._commit_now(chosen_now)

    def _compare_topic_ids(self, topics: set[str], saved_ids: Iterable[tuple[str, object]]) -> None:
        """Refuse a topic that has another id than in the checkpoint or the commits. Without an answer, later plans
        compare the ids."""
        for topic, saved in saved_ids:
            if isinstance(saved, str) and saved and self._topic_ids.setdefault(topic, saved) != saved:
                raise InputChanged(
                    f"the checkpoint of topic {topic!r} has two ids of it ({self._topic_ids[topic]} and {saved}):"
                    " the topic was deleted and created again while it was read; give another source name and group_id,"
                    " and no old checkpoint"
                )
        # Waits only if an id is known: brokers without ids would never answer with one.
        self._check_topic_ids(topics, TOPIC_IDS_S if topics & self._topic_ids.keys() else 0.0)

    def _refuse_gone(self, at: At, prefix: int) -> None:
        """Refuse a partition that was read before and does not exist. Only topics of a pattern may be deleted."""
        if not self.options.topics.fits(at.topic):
            raise CheckpointError(
                f"{at.name} was read to offset {prefix}, and its topic is not among those of this source now"
                f" ({self.options.topics}): name it too, or give another checkpoint"
            )
        if self.options.topics.names:
            raise CheckpointError(
                f"{at.name} was read to offset {prefix}, and does not exist any more: was topic {at.topic!r} deleted?"
                " Bring it back, or give another source name and group_id, and no old checkpoint"
            )
        _log_deleted(at)

    def _is_added(self, at: At, known: set[str]) -> bool:
        """Whether a partition was added while its topic was being read. It is then read from its first record, unless
        ``start`` names it."""
        is_added = at.topic in known or (self._has_begun and not self._is_shared)
        return is_added and not self.options.start.names(at)

    def _first(self, at: At, committed: Committed, commit: Commit | None, is_known: bool, first: int) -> int:
        """Return the offset to go on from: after the records that this source has done, else as ``first_poll`` says.

        ``is_known``: this source has read the topic before. It then does not begin at the commit of another program:
        that program has replaced this source's commit, and may have skipped records that this source has not done.
        """
        prefix = committed.done.prefix
        if commit is not None and commit.own is not None:
            if 0 < prefix < commit.offset:
                log.warning(
                    "%s: the checkpoint is at offset %d, and this source has committed %d to Kafka: going on there",
                    at.name,
                    prefix,
                    commit.offset,
                )
            return max(prefix, commit.offset)
        if prefix:
            return prefix
        takes_any = self._range.takes_commits_of_others(at)
        return commit.offset if commit is not None and takes_any and not is_known else first

    def _check_unchanged(self, partitions: Collection[At]) -> None:
        """Check that no other run, and not ``acker offsets``, has committed since these commits were read, because the
        first commit would undo that. Raises ``CheckpointError``."""
        if self.options.commits and not self._is_shared and partitions:
            is_start = not self._has_begun
            self._own_commits.check_runs(partitions, None if is_start else PLAN_S, is_start=is_start)

    def _commit_now(self, done: Mapping[At, Ranges]) -> None:
        """Commit first offsets at once, so that a restart before the first finished batch begins at the same ones, and
        so that a driver that begins later finds this one."""
        if not done:
            return
        self._commit(done)
        if not self._was_committed(done, self._connected.confirm(PLAN_S)):
            # The next plan tries again.
            self._pending = {**done, **self._pending}
        elif isinstance(self._checkpoint, KafkaOffsets):
            begun = {at.name: Committed(each, self.mark(at.name, each)) for at, each in done.items()}
            self._checkpoint.note_begun(begun)

    def _commit_pending(self) -> None:
        if self.options.commits and self._pending:
            if not self._is_shared:
                for at in self._own_commits.check_runs(self._logs, PLAN_S):
                    self._pending.setdefault(at, self._logs[at].done)
            self._commit(self._pending)
            why = self._connected.confirm(PLAN_S) if self.options.waits_for_commits else ""
            if not self._was_committed(self._pending, why):
                # The next plan tries again. Only a restart without a checkpoint depends on it.
                return
        self._pending = {}
        self._connected.serve()

    def _renew_commits(self) -> None:
        """Commit all offsets again if that is due. In a group too: ZooKeeper says nothing of a partition from which no
        record was read, and its next owner begins at the offset in Kafka."""
        now_s = self._clock()
        if now_s < self._renew_due_s:
            return
        self._renew_due_s = now_s + RENEW_S
        if self.options.commits:
            self._pending = {at: each.done for at, each in self._logs.items()} | self._pending
        elif isinstance(self._checkpoint, KafkaOffsets):
            marks = {at.name: self.mark(at.name, each.done) for at, each in self._logs.items()}
            if not self._checkpoint.renew(marks, PLAN_S):
                self._renew_due_s = now_s + RENEW_AGAIN_S

    def _commit_end(self) -> None:
        """Commit once more what is done, with the note that this run is over. In a group another source may have the
        partitions by now."""
        if self.options.commits and self._logs and not self._is_shared:
            self._own_commits.check_runs(self._logs, PLAN_S)
            self._commit({at: each.done for at, each in self._logs.items()}, is_over=True)

    def _close_broker(self, broker: Broker) -> None:
        try:
            self._commit_pending()
            self._commit_end()
            why = broker.confirm(CLOSE_S)
        except SourceError as error:
            why = str(error)
        if why:
            log.warning("the last offsets of group %r were not committed to Kafka: %s", self._group, why)
        broker.close()
        self._broker = self._commits = None

    def _commit(self, done: Mapping[At, Ranges], *, is_over: bool = False) -> None:
        """Begin to commit."""
        prefixes = {at: Ranges.below(each.prefix) for at, each in done.items()}
        ids = self._topic_ids
        self._connected.commit(
            {
                at: self._own_commits.commit_of(each, is_over=is_over, topic_id=ids.get(at.topic, ""))
                for at, each in prefixes.items()
            }
        )

    def _was_committed(self, done: Mapping[At, Ranges], why_not: str) -> bool:
        if self.options.commits and not why_not:
            for at in self._logs.keys() & done.keys():
                self._logs[at].committed = done[at].prefix
        return not why_not

    def _wait_out(self, error: SourceError) -> None:
        """Raise ``error`` unless waiting may help.

        An unreachable broker may come back. Other errors may come from a broker that has just started, so they are
        raised only if they persist.
        """
        now_s = self._clock()
        self._wrong_since_s = now_s if self._wrong_since_s is None else self._wrong_since_s
        is_new = isinstance(error, Unreachable) or now_s - self._wrong_since_s < self.options.connection.timeout_s
        if not (is_new and self._has_begun):
            raise error
        if isinstance(error, Unreachable):
            self._wrong_since_s = None
        self._outage.note(str(error))

    def _note_answer(self) -> None:
        self._answered_s = self._clock()
        if not self._keyless:
            self._wrong_since_s = None
            away = ", ".join(self.away()[:AWAY_SHOWN])
            servers = self.options.connection.servers
            self._outage.note(f"Kafka: no broker at {servers} has answered for {away}" if away else "")


def _log_deleted(at: At) -> None:
    log.error("LOST: %s was deleted; what was not done of it is gone", at.name)


def _reach(done: Mapping[str, Ranges], at: At, each: TopicLog) -> int:
    """Return the offset below which nothing is left to do."""
    ranges = done.get(at.name)
    return max(each.done.prefix, 0 if ranges is None else ranges.prefix)
