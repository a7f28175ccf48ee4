"""One object of S3 in memory, with the calls of boto3's client that a checkpoint makes. Conditions are checked."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError


class MemoryS3:
    """``trouble`` is called with each write, and returns what goes wrong: "unanswered" (it is written, and no answer
    comes), a code of S3 (it is not written), or ""."""

    def __init__(self, trouble: Callable[[], str] = lambda: "") -> None:
        self.content: bytes | None = None
        self.trouble = trouble
        self.meta = SimpleNamespace(endpoint_url="memory:")

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.content or b"").hexdigest()}"'

    def get_object(self, **of: Any) -> dict[str, Any]:
        if self.content is None:
            raise error("NoSuchKey", 404)
        return {"Body": io.BytesIO(self.content), "ETag": self.etag}

    def put_object(self, **of: Any) -> dict[str, Any]:
        match, none_match = of.get("IfMatch"), of.get("IfNoneMatch")
        if match is not None and self.content is None:
            raise error("NoSuchKey", 404)
        if (match is not None and match != self.etag) or (none_match is not None and self.content is not None):
            raise error("PreconditionFailed", 412)
        trouble = self.trouble()
        if trouble not in ("", "unanswered"):
            raise error(trouble, 503)
        self.content = of["Body"].read()
        if trouble:
            raise error("InternalError", 500)
        return {"ETag": self.etag}


def error(code: str, status: int) -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "Call")
