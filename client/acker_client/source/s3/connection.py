"""Connection: the only access to boto3 for S3. One object, and conditional writes to it.

Decides what an error of the service means. Each call is tried once; the checkpoint decides when to try again. boto3 is
imported when a checkpoint is made.
"""

from __future__ import annotations

from typing import IO, Any

from acker_client.extras import missing
from acker_client.source.errors import CheckpointError
from acker_client.source.storage.urls import Url
from acker_client.source.waiting import OutOfReach

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60

_STALE = {"PreconditionFailed", "412", "NoSuchKey", "404"}
_GONE = {"NoSuchKey", "404"}
_AWAY = {
    "ConditionalRequestConflict",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "TooManyRequestsException",
}
_FORBIDDEN = {"AccessDenied", "403", "Forbidden", "AllAccessDisabled"}
_CREDENTIALS = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_ELSEWHERE = {"301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}


class Stale(Exception):
    """The object is not the one that a write was to replace."""


class S3Object:
    """The object at ``url``. Methods raise ``Stale``, ``OutOfReach`` or ``CheckpointError``.

    ``client``: a client of boto3 for S3; None: one of the default session, for the endpoint and region that the URL's
    query names.
    """

    def __init__(self, url: Url, client: Any = None) -> None:
        try:
            import boto3
            import botocore.config
            import botocore.exceptions
        except ImportError as error:
            raise missing("a checkpoint in S3", "s3", error) from error
        self._errors = botocore.exceptions
        self.url = url
        self._of = {"Bucket": url.authority.rpartition("@")[2], "Key": url.path}
        try:
            self._client = client or boto3.Session().client("s3", **_options_of(url, botocore.config.Config))
        except (botocore.exceptions.BotoCoreError, ValueError) as error:
            raise self._refusal(error) from None

    def get(self) -> tuple[bytes, str] | None:
        """Return the content and its ETag; None if there is no object."""
        try:
            answer = self._call("get_object", **self._of)
            return answer["Body"].read(), str(answer["ETag"])
        except Stale:
            return None
        except (self._errors.HTTPClientError, self._errors.ConnectionError) as error:
            raise self._away(error) from None

    def put(self, content: IO[bytes], replaces: str | None) -> str:
        """Write the object, and return its ETag. Raises ``Stale`` unless it replaces the object with that ETag, or,
        for None, unless there is no object."""
        condition = {"IfNoneMatch": "*"} if replaces is None else {"IfMatch": replaces}
        content.seek(0)
        return str(self._call("put_object", **self._of, **condition, Body=content)["ETag"])

    def _call(self, operation: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, operation)(**arguments)
        except self._errors.ClientError as error:
            raise self._meaning(operation, error) from None
        except (self._errors.HTTPClientError, self._errors.ConnectionError) as error:
            raise self._away(error) from None
        except self._errors.BotoCoreError as error:
            raise self._refusal(error) from None

    def _meaning(self, operation: str, error: Any) -> Exception:
        """Return the exception to raise for an answer that is an error."""
        answer = error.response
        code, text = str(answer["Error"].get("Code", "")), str(answer["Error"].get("Message", ""))
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        message = f"{code}: {text}" if text else code
        if code in (_GONE if operation == "get_object" else _STALE):
            return Stale(message)
        if code in _AWAY or status in (429, 500, 502, 503, 504):
            return self._away(message)
        if code == "NoSuchBucket":
            return self._error(
                f"there is no bucket {self._of['Bucket']!r}: create it, or name another; ?region=, ?endpoint_override="
                " or AWS_ENDPOINT_URL_S3 says where to look"
            )
        if code in _CREDENTIALS:
            return self._error(f"these credentials are not accepted ({message}): renew them")
        if code in _FORBIDDEN:
            return self._error(
                f"no permission ({message}): allow this identity s3:GetObject and s3:PutObject there, and s3:ListBucket"
                " on the bucket, so that a missing object is told from a forbidden one"
            )
        if code in _ELSEWHERE:
            return self._error(f"the bucket is in another region ({message}): write ?region=REGION after the URL")
        if code == "NotImplemented" or status == 501:
            return unfenced(self.url)
        return self._error(f"{operation} is refused ({message})")

    def _refusal(self, error: Exception) -> CheckpointError:
        """Return the error for a problem that boto3 finds before it sends a request."""
        if isinstance(error, self._errors.NoCredentialsError | self._errors.PartialCredentialsError):
            return self._error(
                "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, write ~/.aws/credentials,"
                " run where a role is attached, or give S3Checkpoint(..., client=boto3.client('s3', ...))"
            )
        if isinstance(error, self._errors.CredentialRetrievalError):
            return self._error(f"credentials cannot be had ({error}): renew them")
        return self._error(f"boto3 cannot use it ({error}): check the URL")

    def _away(self, why: object) -> OutOfReach:
        return OutOfReach(
            f"checkpoint {self.url.shown}: {self._client.meta.endpoint_url} does not answer, or not well ({why})"
        )

    def _error(self, why: str) -> CheckpointError:
        return CheckpointError(f"checkpoint {self.url.shown}: {why}")


def unfenced(url: Url) -> CheckpointError:
    """Return the error for a store that writes whatever the condition says."""
    return CheckpointError(
        f"checkpoint {url.shown}: this store does not check If-Match, so two drivers would overwrite each other's"
        " checkpoint unseen: use a store that does (S3 itself, a newer release of this one), or a file on a volume"
    )


def _options_of(url: Url, config: Any) -> dict[str, Any]:
    """Return the options of a client for a URL, whose query has the names that pyarrow knows."""
    query = dict(each.partition("=")[::2] for each in url.query.split("&") if each)
    retries = {"total_max_attempts": 1}
    options: dict[str, Any] = {
        "config": config(connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries=retries)
    }
    if endpoint := query.get("endpoint_override"):
        options["endpoint_url"] = endpoint if "://" in endpoint else f"{query.get('scheme', 'https')}://{endpoint}"
    if region := query.get("region"):
        options["region_name"] = region
    key, _, secret = url.authority.rpartition("@")[0].partition(":")
    return {**options, "aws_access_key_id": key, "aws_secret_access_key": secret} if key else options
