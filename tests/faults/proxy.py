"""A small TCP proxy in front of one server. While it is cut, bytes wait in it, as in a broken network."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Listens at ``self.address`` and forwards to ``address``. Thread-safe."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        # One event for each direction, to the server and to the client. Bytes pass while the event is set.
        self._passes = threading.Event(), threading.Event()
        self.mend()
        self._is_closed = False
        self._sockets: list[socket.socket] = []
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connections(self) -> int:
        """The number of open connections from clients."""
        return len(self._open)

    def cut(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Hold back all bytes from now on, in both directions or in one."""
        for passes, is_cut in zip(self._passes, (to_server, to_client), strict=True):
            if is_cut:
                passes.clear()

    def mend(self) -> None:
        """Let bytes through again, including those that were held back."""
        for passes in self._passes:
            passes.set()

    def disconnect(self) -> None:
        """Close all connections. Clients may make new ones."""
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
            self._open.add(near)
            for source, sink, passes in ((near, far, self._passes[0]), (far, near, self._passes[1])):
                threading.Thread(target=self._run, args=(near, source, sink, passes), daemon=True).start()

    def _run(self, near: socket.socket, source: socket.socket, sink: socket.socket, passes: threading.Event) -> None:
        _forward(source, sink, passes)
        self._open.discard(near)


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
