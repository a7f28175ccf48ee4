"""S3 on loopback: moto's server in threads of this process, over real HTTP. Tests see and break its calls.

``before`` is called with the method and the path of each call, in a thread of the server. It may replace an object, and
it may return (status, code) to fail the call. moto checks no credentials, and knows no regions of buckets.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self

# Keeps a client from looking for credentials and settings on this machine or its network.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}, as asked for</Message></Error>"

Before = Callable[[str, str], tuple[int, str] | None]


def nothing(method: str, path: str) -> None:
    """Let each call pass."""


def filesystem_at(url: str) -> Any:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    return S3FileSystem(
        access_key="testing",
        secret_key="testing",
        endpoint_override=url,
        region="us-east-1",
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=1),
    )


class S3Server:
    """Context manager for the server, with a client for the test itself."""

    def __init__(self) -> None:
        self.before: Before = nothing
        self.calls: list[tuple[str, str]] = []
        self.ranges: list[str] = []
        # moto checks the condition of a write and writes in two steps.
        self._writing = threading.Lock()

    def __enter__(self) -> Self:
        import logging

        import boto3
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.application: Any = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.client = boto3.Session("testing", "testing", region_name="us-east-1").client("s3", endpoint_url=self.url)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.client.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def query(self) -> str:
        """What a URL needs after it to name this server."""
        return f"?endpoint_override={self.url.removeprefix('http://')}&scheme=http&region=us-east-1"

    def new_bucket(self) -> str:
        # All servers of a process have moto's buckets in common.
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        return name

    def put(self, bucket: str, key: str, content: bytes | str) -> None:
        content = content.encode() if isinstance(content, str) else content
        self.client.put_object(Bucket=bucket, Key=key, Body=content)

    def get(self, bucket: str, key: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return content

    def keys(self, bucket: str) -> list[str]:
        return [each["Key"] for each in self.client.list_objects_v2(Bucket=bucket).get("Contents", [])]

    def filesystem(self) -> Any:
        """Return a filesystem of pyarrow at this server. It tries each call once."""
        return filesystem_at(self.url)

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.calls.append((method, path))
        self.ranges += [environ["HTTP_RANGE"]] if "HTTP_RANGE" in environ else []
        failure = self.before(method, path)
        if failure is None:
            with self._writing if method == "PUT" else nullcontext():
                return self.application(environ, start_response)
        status, code = failure
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = b"" if method == "HEAD" else ERROR.format(code=code).encode()
        start_response(f"{status} Trouble", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]
