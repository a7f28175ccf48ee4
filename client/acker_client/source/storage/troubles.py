"""Troubles: what an error of a store means, in one sentence that says what to do.

Decides by the error's text, since pyarrow has one exception for nearly all of them: whether the store is away for a
while (``OutOfReach``), or the program, its credentials or the store's content have to change (``SourceError``).
"""

from __future__ import annotations

import errno
import re

from acker_client.source.errors import InputChanged, SourceError
from acker_client.source.waiting import OutOfReach

# By the type name of a pyarrow filesystem: how to give it credentials, and how to say where it is.
_CREDENTIALS = {
    "s3": (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, write ~/.aws/credentials, run where a role is attached, or"
        " give filesystem=pyarrow.fs.S3FileSystem(...), on the driver and on every executor"
    ),
    "gcs": "set GOOGLE_APPLICATION_CREDENTIALS, or run where a service account is attached",
    "abfs": "set AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET, or run where an identity is attached",
    "hdfs": "log in (kinit), or give the user in the URL",
}
_WHERE = {"s3": "?region=, ?endpoint_override= or AWS_ENDPOINT_URL_S3"}

_AWAY = re.compile(
    r"NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT|THROTTLING"
    r"|HTTP status (?:429|50[0234])"
    r"|cloud::Status\((?:UNAVAILABLE|DEADLINE_EXCEEDED|INTERNAL|ABORTED|RESOURCE_EXHAUSTED)"
    # Azure's SDK puts the HTTP status first. There is none if no answer came.
    r"|Azure Error: \[\w*\] (?:429|50[0234]|(?!\d\d\d\b))"
    r"|Connection refused|ConnectException|SafeModeException|StandbyException"
)
_FORBIDDEN = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_SIGNATURE|UNRECOGNIZED_CLIENT"
    r"|INVALID_CLIENT_TOKEN_ID|MISSING_AUTHENTICATION_TOKEN|ExpiredToken|InvalidToken|REQUEST_EXPIRED"
    r"|HTTP status 40[13]|PERMISSION_DENIED|UNAUTHENTICATED|Azure Error: \[\w*\] 40[13]|AccessControlException"
)
_OF_STORE = re.compile(r"AWS Error|google::cloud|Azure Error|HDFS|hdfs")
# S3's library knows only the status of a reply whose content it cannot read.
_NO_OBJECT = re.compile(
    r"NO_SUCH_KEY|RESOURCE_NOT_FOUND during (?:Get|Head)Object|BlobNotFound|cloud::Status\(NOT_FOUND"
)
_NO_BUCKET = re.compile(r"NO_SUCH_BUCKET|Bucket '[^']*' not found|ContainerNotFound")
_REGION = re.compile(r"bucket is located in '(?P<region>[^']*)'")
_ELSEWHERE = re.compile(r"HTTP status 301|PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint")
_AWAY_NUMBERS = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH}
    | {errno.EPIPE, errno.EAGAIN}
)


def explain(error: Exception, type_name: str, base: str, shown: str) -> SourceError:
    """Return the error to raise. ``base``: the URL of the bucket; ``shown``: what was read, listed or written."""
    if isinstance(error, SourceError):
        return error
    text = " ".join(str(error).split())
    where = _WHERE.get(type_name, "the URL")
    if _is_away(error, text):
        return OutOfReach(f"{base} does not answer, or not well ({text}): check the network, and {where}")
    if isinstance(error, FileNotFoundError) or _NO_OBJECT.search(text):
        return InputChanged(f"{shown} cannot be read (it is not there): bring it back, or name another")
    if _NO_BUCKET.search(text):
        return no_bucket(type_name, base)
    if _REGION.search(text) or _ELSEWHERE.search(text):
        found = _REGION.search(text)
        where = f"region {found['region']!r}" if found else "another region"
        return SourceError(
            f"{base} is in {where}, and was asked for elsewhere ({text}): write ?region="
            f"{found['region'] if found else 'REGION'} after the URL, or set AWS_REGION"
        )
    if isinstance(error, PermissionError) or _FORBIDDEN.search(text):
        return SourceError(
            f"{shown}: no permission, or no valid credentials ({text}): {_CREDENTIALS.get(type_name, 'give some')};"
            " and allow this identity to list and read there"
        )
    return SourceError(f"{shown} cannot be used ({text}): check it, and {where}")


def is_of_store(error: Exception) -> bool:
    """Whether an error that pyarrow raises while it decodes a file is one of the store."""
    return _is_away(error, str(error)) or _OF_STORE.search(str(error)) is not None


def no_bucket(type_name: str, base: str) -> SourceError:
    """Return the error for a bucket that does not exist."""
    where = _WHERE.get(type_name, "the URL")
    return SourceError(f"there is no {base}: create it, or name another; {where} says where to look")


def cannot_connect(error: Exception, scheme: str, base: str) -> SourceError:
    """Return the error for a filesystem that could not even be made."""
    text = " ".join(str(error).split())
    if "libjvm" in text or "libhdfs" in text:
        return SourceError(
            f"{base}: pyarrow cannot load Hadoop's library ({text[:200]}): set JAVA_HOME and HADOOP_HOME, and CLASSPATH"
            " to what `hadoop classpath --glob` prints, on the driver and on every executor"
        )
    if "built without" in text or "not supported" in text.lower() or isinstance(error, ImportError):
        return SourceError(f"{base}: this pyarrow was built without {scheme} ({text}): install one that has it")
    if isinstance(error, ValueError):
        return SourceError(f"{base}: pyarrow does not take this URL ({text}): correct it, or give filesystem=...")
    return explain(error, scheme, base, base)


def _is_away(error: Exception, text: str) -> bool:
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return getattr(error, "errno", None) in _AWAY_NUMBERS or bool(_AWAY.search(text))
