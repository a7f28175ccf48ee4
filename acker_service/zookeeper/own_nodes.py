"""OwnNodes: the nodes in ZooKeeper that belong to this server.

Decides when a server may create its node: no other process may have its id or its address. Never waits or
retries: ``registry`` decides when each method runs, and what it means that another process has the id.
"""

from __future__ import annotations

from acker_service.core import members
from acker_service.core.members import Away, Registered
from acker_service.zookeeper.nodes import Nodes


class OwnNodes:
    """The nodes of ``server``. Methods raise what ``Nodes`` raises."""

    def __init__(self, nodes: Nodes, server: Registered) -> None:
        self._nodes, self._server = nodes, server
        # The zxid of the node in ids whose registration was completed.
        self._claimed_zxid: int | None = None

    def claim_id(self) -> None:
        """Create this server's node in ids if it is missing. Raises :class:`Rival` if its id or address is taken.

        If ZooKeeper fails before the last step, the next call completes the registration.
        """
        found = self._nodes.find(self._path("ids"))
        is_own = found is not None and self._is_own(found[0])
        if found is None or not is_own or found[1].ephemeralOwner != self._nodes.session:
            if is_own:
                # The node belongs to an earlier session of this process.
                self._nodes.delete(self._path("ids"))
            self._check_rivals()
            # An ensemble that has lost its data may give the same zxid again.
            self._claimed_zxid = None
            self._nodes.create(self._path("ids"), self._server.dump(), ephemeral=True)
            found = self._nodes.get(self._path("ids"))
        zxid = found[1].czxid
        if zxid == self._claimed_zxid:
            return
        try:
            # Two servers that register at once may have missed each other. The first server has the lower zxid and
            # stays.
            self._check_rivals(before=zxid)
        except Rival:
            self._nodes.delete(self._path("ids"))
            raise
        self._nodes.delete(self._path("away"))
        # Each registration gives this server's node in known a new version: see ``Registry._forget``.
        self.write_known()
        self._claimed_zxid = zxid

    def _check_rivals(self, before: float = float("inf")) -> None:
        """Raise :class:`Rival` if another server has this server's id or address.

        ``before``: a zxid. Only nodes that were created before it count.
        """
        for folder in ("ids", "draining"):
            found = self._nodes.contents(f"/servers/{folder}")
            servers, _ = members.loaded(
                Registered, {id: content for id, (content, stat) in found.items() if stat.czxid < before}
            )
            other = members.rival(self._server, servers)
            if other is not None:
                raise Rival(members.refusal(self._server, other), members.may_be_dead(self._server, other))

    def list_as_draining(self) -> None:
        """Create this server's node in draining if it is missing, and then delete its node in ids."""
        if self._nodes.find(self._path("draining")) is None:
            self._nodes.create(self._path("draining"), self._server.dump(), ephemeral=True)
        found = self._nodes.find(self._path("ids"))
        if found is not None and self._is_own(found[0]):
            self._nodes.delete(self._path("ids"))

    def write_known(self) -> None:
        """Write this server's node in known."""
        self._nodes.put(self._path("known"), self._server.dump())

    def remove(self, away: Away | None) -> None:
        """Delete this server's nodes. ``away``: the server will be back with its state, so list it as away first."""
        if away is not None:
            self._nodes.put(self._path("away"), away.dump())
        self._nodes.delete(self._path("known"))
        self._nodes.delete(self._path("ids"))

    def remove_away(self) -> None:
        """Delete this server's node in away."""
        self._nodes.delete(self._path("away"))

    def _is_own(self, content: bytes) -> bool:
        try:
            return Registered.load(str(self._server.id), content).incarnation == self._server.incarnation
        except ValueError:
            return False

    def _path(self, folder: str) -> str:
        return f"/servers/{folder}/{self._server.id}"


class Rival(Exception):
    """Another server has this server's id or address; the text is for the user."""

    def __init__(self, sentence: str, may_be_dead: bool) -> None:
        super().__init__(sentence)
        self.may_be_dead = may_be_dead
