"""The only access to boto3. Decides what each answer and each error of AWS means to an input.

An input can handle four kinds of errors: ``Throttled`` (try again later), ``Unanswered`` (try again later, but not for
ever), ``Expired`` (get a new iterator) and ``NotThere`` (the sequence number or the shard does not exist). All others
become a ``SourceError`` that says what to do. Each call is tried once; the input decides when to try again. boto3 is
imported when a stream is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa

from acker_client.extras import missing
from acker_client.source.errors import SourceError

# The columns of a record, by the names that AWS gives its fields.
RECORD = pa.schema(
    [
        ("data", pa.binary()),
        ("partition_key", pa.string()),
        ("sequence_number", pa.string()),
        ("arrival_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
# AWS returns at most this many records, and at most 10 MiB, in one answer.
RECORDS_PER_CALL_MAX = 10_000

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30

_THROTTLED = {
    "ProvisionedThroughputExceededException",
    "LimitExceededException",
    "ThrottlingException",
    "Throttling",
    "RequestLimitExceeded",
    "KMSThrottlingException",
}
_TROUBLE = {
    "InternalFailure",
    "InternalServerError",
    "InternalFailureException",
    "ServiceUnavailable",
    "ResourceInUseException",
    "ExpiredNextTokenException",
}
_REFUSED = {"InvalidArgumentException", "ResourceNotFoundException", "ValidationException"}
_CREDENTIALS = {
    "UnrecognizedClientException",
    "InvalidSignatureException",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "IncompleteSignature",
    "ExpiredToken",
    "ExpiredTokenException",
    "SignatureDoesNotMatch",
}
_FORBIDDEN = {"AccessDeniedException", "AccessDenied", "KMSAccessDeniedException", "OptInRequired"}


class Throttled(Exception):
    """The shard or the account has no quota left for now, in calls or in bytes."""


class Unanswered(Exception):
    """There was no answer, or the service answered that it is unavailable."""


class Expired(Exception):
    """An iterator is older than five minutes."""


class NotThere(Exception):
    """The shard does not exist, or the sequence number is not in it."""


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """The identity of a stream.

    ``arn``: its full name. ``created_ms``: its creation in Unix milliseconds, which differs if a stream is created
    again under the same name. ``now``: the time of the service.
    """

    arn: str
    created_ms: int
    now: datetime


@dataclass(frozen=True, slots=True)
class ListedShard:
    """A shard in a listing. ``parents``: none, one (after a split) or two (after a merge). These may have aged out."""

    name: str
    parents: tuple[str, ...] = ()
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """A starting point in a shard: a ``kind`` of GetShardIterator, with the sequence number or time that it needs."""

    kind: str
    sequence_number: str | None = None
    timestamp: datetime | None = None

    @classmethod
    def at(cls, sequence_number: str) -> Begin:
        return cls("AT_SEQUENCE_NUMBER", sequence_number)

    @classmethod
    def after(cls, sequence_number: str) -> Begin:
        return cls("AFTER_SEQUENCE_NUMBER", sequence_number)

    @classmethod
    def since(cls, timestamp: datetime) -> Begin:
        return cls("AT_TIMESTAMP", timestamp=timestamp)


TRIM_HORIZON = Begin("TRIM_HORIZON")
LATEST = Begin("LATEST")


@dataclass(frozen=True, slots=True, eq=False)
class ReadAnswer:
    """The answer to a read.

    ``rows``: records in columns of ``RECORD``, in order. ``iterator``: the iterator for the next call; None at the end
    of a closed shard. ``behind_ms``: 0 if no newer record existed.
    """

    rows: pa.RecordBatch
    iterator: str | None
    behind_ms: int


class KinesisDoor(Protocol):
    """One stream. Every method raises ``Throttled``, ``Unanswered``, ``Expired``, ``NotThere`` or ``SourceError``."""

    def describe(self) -> StreamIdentity: ...
    def shards(self) -> Sequence[ListedShard]: ...
    def iterator(self, shard: str, begin: Begin) -> str: ...
    def read_records(self, iterator: str, records_max: int) -> ReadAnswer: ...


class BotoKinesis:
    """A stream at AWS, or at a replacement at ``endpoint_url``.

    ``stream``: a name or an ARN. ``session``: a ``boto3.Session``; None: the default session.
    """

    def __init__(self, stream: str, region: str | None, endpoint_url: str | None, session: Any = None) -> None:
        try:
            import boto3
            import botocore.config
            import botocore.exceptions
        except ImportError as error:
            raise missing("acker_client.source.Kinesis", "kinesis", error) from error
        self._errors = botocore.exceptions
        self._stream = stream
        self._name = {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}
        config = botocore.config.Config(
            connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries={"total_max_attempts": 1}
        )
        try:
            session = session or boto3.Session()
            self._client = session.client("kinesis", region_name=region, endpoint_url=endpoint_url, config=config)
        except (botocore.exceptions.BotoCoreError, ValueError) as error:
            raise self._refusal("open", error) from None
        self._where: str = self._client.meta.endpoint_url

    def describe(self) -> StreamIdentity:
        answer = self._call("describe_stream_summary", **self._name)
        found = answer["StreamDescriptionSummary"]
        created_ms = round(found["StreamCreationTimestamp"].timestamp() * 1000)
        return StreamIdentity(found["StreamARN"], created_ms, _clock_of(answer))

    def shards(self) -> list[ListedShard]:
        return [_shard(found) for page in self._pages() for found in page["Shards"]]

    def iterator(self, shard: str, begin: Begin) -> str:
        of: dict[str, Any] = {**self._name, "ShardId": shard, "ShardIteratorType": begin.kind}
        if begin.sequence_number is not None:
            of["StartingSequenceNumber"] = begin.sequence_number
        if begin.timestamp is not None:
            of["Timestamp"] = begin.timestamp
        iterator: str = self._call("get_shard_iterator", **of)["ShardIterator"]
        return iterator

    def read_records(self, iterator: str, records_max: int) -> ReadAnswer:
        # The iterator contains the stream. AWS accepts only an ARN in addition to it.
        of = {name: value for name, value in self._name.items() if name == "StreamARN"}
        limit = min(records_max, RECORDS_PER_CALL_MAX)
        answer = self._call("get_records", ShardIterator=iterator, Limit=limit, **of)
        return ReadAnswer(_rows(answer["Records"]), answer.get("NextShardIterator"), int(answer["MillisBehindLatest"]))

    def _pages(self) -> Iterator[Mapping[str, Any]]:
        page = self._call("list_shards", **self._name)
        yield page
        while token := page.get("NextToken"):
            page = self._call("list_shards", NextToken=token)
            yield page

    def _call(self, operation: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, operation)(**arguments)
        except self._errors.ClientError as error:
            raise self._meaning(operation, error) from None
        except (self._errors.HTTPClientError, self._errors.ConnectionError) as error:
            raise Unanswered(f"{self._where} does not answer ({error})") from None
        except self._errors.BotoCoreError as error:
            raise self._refusal(operation, error) from None

    def _meaning(self, operation: str, error: Any) -> Exception:
        """Return the exception to raise for an answer that is an error."""
        code, text = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
        message = f"{code}: {text}" if text else code
        if code in _THROTTLED:
            return Throttled(message)
        if code == "ExpiredIteratorException":
            return Expired(message)
        if code in _TROUBLE or error.response["ResponseMetadata"].get("HTTPStatusCode", 0) >= 500:
            return Unanswered(f"{self._where} is not well ({message.splitlines()[0][:200]})")
        if code == "ResourceNotFoundException" and operation in ("describe_stream_summary", "list_shards"):
            return SourceError(
                f"there is no stream {self._stream!r} at {self._where}: create it, or name another; region= and"
                " endpoint_url= say where to look"
            )
        if code in _REFUSED and operation in ("get_shard_iterator", "get_records"):
            return NotThere(message)
        if code in _CREDENTIALS:
            return SourceError(
                f"stream {self._stream!r}: {self._where} does not accept these credentials ({message}): renew"
                " them, and start again; nothing is lost"
            )
        if code in _FORBIDDEN:
            return SourceError(
                f"stream {self._stream!r}: no permission ({message}): allow this identity"
                " kinesis:DescribeStreamSummary, kinesis:ListShards, kinesis:GetShardIterator and kinesis:GetRecords on"
                " it, and kms:Decrypt with its key where it is encrypted"
            )
        return SourceError(f"stream {self._stream!r}: {self._where} refuses {operation} ({message})")

    def _refusal(self, operation: str, error: Exception) -> SourceError:
        """Return the error for a problem that boto3 finds before it sends a request."""
        known = (
            (self._errors.NoRegionError, "no region is set: give region='eu-central-1', or set AWS_DEFAULT_REGION"),
            (
                (self._errors.NoCredentialsError, self._errors.PartialCredentialsError),
                (
                    "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, write"
                    " ~/.aws/credentials, run where a role is attached, or give session=boto3.Session(...)"
                ),
            ),
            (self._errors.CredentialRetrievalError, f"credentials cannot be had ({error}): renew them"),
            (self._errors.ParamValidationError, f"it is not the name of a stream, or its ARN ({error})"),
        )
        for kind, to_do in known:
            if isinstance(error, kind):
                return SourceError(f"stream {self._stream!r}: {to_do}")
        return SourceError(
            f"stream {self._stream!r}: boto3 cannot {operation} it ({error}): check region=, endpoint_url= and session="
        )


def _shard(found: Mapping[str, Any]) -> ListedShard:
    parents = tuple(found[key] for key in ("ParentShardId", "AdjacentParentShardId") if found.get(key))
    return ListedShard(found["ShardId"], parents, "EndingSequenceNumber" in found["SequenceNumberRange"])


def _rows(records: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    columns = ("Data", "PartitionKey", "SequenceNumber", "ApproximateArrivalTimestamp")
    arrays = [
        pa.array([record.get(column) for record in records], field.type)
        for column, field in zip(columns, RECORD, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD)


def _clock_of(answer: Mapping[str, Any]) -> datetime:
    """Return the service's time from an answer's header."""
    from email.utils import parsedate_to_datetime

    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return parsedate_to_datetime(date) if date else datetime.now(UTC)
