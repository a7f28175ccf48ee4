"""A schema registry for tests, over real HTTP: schemas by subject, version and id. It checks no compatibility."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit


class SchemaRegistryServer:
    """A registry. ``status``: the answer to every request unless it is 0. ``requests``: the paths of requests."""

    def __init__(self, port: int = 0) -> None:
        self.status = 0
        self.requests: list[str] = []
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        self._port = port
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Serve, with the schemas that it had, at the port that it had."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                status, answer = registry.answer(self.path, body)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *values: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        """Return the status and the content of an answer."""
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        with self._lock:
            self.requests.append(path)
            if self.status:
                return self.status, {"error_code": self.status, "message": "the test says so"}
            match parts:
                case ["config"]:
                    return 200, {"compatibilityLevel": "NONE"}
                case ["schemas", "ids", number] if int(number) <= len(self._schemas):
                    return 200, self._schemas[int(number) - 1]
                case ["subjects", subject, "versions"] if body is not None:
                    return 200, {"id": self._register(subject, body)}
                case ["subjects", subject] if body is not None:
                    id_ = self._register(subject, body)
                    version = self._subjects[subject].index(id_) + 1
                    return 200, {"subject": subject, "id": id_, "version": version, **self._schemas[id_ - 1]}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _register(self, subject: str, body: dict[str, Any]) -> int:
        schema = {key: body[key] for key in ("schema", "schemaType", "references") if body.get(key)}
        if schema not in self._schemas:
            self._schemas.append(schema)
        id_ = self._schemas.index(schema) + 1
        versions = self._subjects.setdefault(subject, [])
        if id_ not in versions:
            versions.append(id_)
        return id_
