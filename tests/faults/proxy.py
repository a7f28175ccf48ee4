"""A small TCP proxy before one server, which can fall silent: what is sent then waits, as in a network that is cut."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Forwards to ``address``; ``self.address`` is where it listens itself. Thread-safe."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        # Towards the server, and back to the client.
        self._passes = threading.Event(), threading.Event()
        self.mend()
        self._is_closed = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """From now on nothing gets through, either way or in one direction."""
        for passes, is_cut in zip(self._passes, (to_server, to_client), strict=True):
            if is_cut:
                passes.clear()

    def mend(self) -> None:
        """All gets through again, also what was sent meanwhile."""
        for passes in self._passes:
            passes.set()

    def disconnect(self) -> None:
        """End the connections that there are. New ones may be made."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            _close(each)

    def close(self) -> None:
        self._is_closed = True
        _close(self._listener)
        self.disconnect()
        self.mend()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                continue
            try:
                far = socket.create_connection(self._target)
            except OSError:
                _close(near)
                continue
            self._sockets += [near, far]
            for source, sink, passes in ((near, far, self._passes[0]), (far, near, self._passes[1])):
                threading.Thread(target=_forward, args=(source, sink, passes), daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket, passes: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(1 << 16):
            passes.wait()
            sink.sendall(content)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
