"""ClusterConfig: the node `config`, which says which cluster the chroot belongs to, and names the incarnation of the
ensemble.

Decides whether this server belongs to the cluster of a chroot, when a chroot is new, and when the ensemble has lost
data and so begins a later incarnation. Never touches nodes of servers, apart from the folders that hold them.
"""

from __future__ import annotations

import contextlib
import time
import uuid

from acker_service.core import members
from acker_service.zookeeper.nodes import NodeExistsError, Nodes


class RegistryError(Exception):
    """The server cannot join its cluster; the text says what to do."""


class ClusterConfig:
    """The `config` of the chroot ``place``. Methods raise what ``Nodes`` raises."""

    def __init__(self, nodes: Nodes, place: str) -> None:
        self._nodes, self._place = nodes, place
        # The `config` that this server accepted last; b"" before the first.
        self._accepted = b""

    @property
    def ensemble(self) -> int:
        """The incarnation of the ensemble that was accepted last; 0 before the first."""
        return members.ensemble_of(self._accepted)

    def is_unchanged(self) -> bool:
        """Whether ZooKeeper still has the `config` that was accepted last."""
        return bool(self._nodes.get("/config")[0] == self._accepted)

    def agree(self, *, is_due: bool) -> bool:
        """Check that the chroot belongs to this server's cluster, and create the nodes if it belongs to no cluster.

        If the chroot is empty, or has another `config` whose ensemble is not later, ZooKeeper has lost data of this
        cluster. The cluster then continues in a later incarnation of the ensemble. Returns whether the ensemble has
        lost data since the last call. Raises :class:`RegistryError` if the chroot belongs to another cluster.

        ``is_due``: check everything, even if `config` has not changed.
        """
        nodes, place = self._nodes, self._place
        found = nodes.find("/config", watched=True)
        if found is not None and self._accepted == found[0] != b"" and not is_due:
            return False
        nodes.ensure("")
        # Must come before looking for `config`, since another server may create nodes at any time.
        children = nodes.children("")[0]
        if nodes.find("/config") is None:
            trouble = members.foreign(children)
            if trouble:
                raise RegistryError(f"{place}: {trouble}")
            cluster = members.cluster_of(self._accepted) or uuid.uuid4().hex
            with contextlib.suppress(NodeExistsError):
                nodes.create("/config", members.new_config(cluster, self._next_ensemble()))
        config, stat = nodes.get("/config", watched=True)
        trouble, renewed = members.disagreement(config), members.renewed(config)
        if renewed is None:
            raise RegistryError(f"{place}: {trouble}")
        for folder in ("ids", "draining", "away", "known"):
            nodes.ensure(f"/servers/{folder}")
        if trouble and (nodes.children("/servers/ids")[0] or nodes.children("/servers/draining")[0]):
            raise RegistryError(f"{place}: {trouble}")
        if not members.follows(config, self._accepted):
            renewed = members.renewed(config, self._next_ensemble()) or config
        if trouble or not members.follows(config, self._accepted):
            nodes.replace("/config", renewed, stat.version)
            config = renewed
        has_lost_data = bool(self._accepted) and config != self._accepted
        self._accepted = config
        return has_lost_data

    def begin_next_ensemble(self) -> None:
        """Write a later incarnation of the ensemble, unless another server has changed `config` before."""
        config, stat = self._nodes.get("/config")
        renewed = members.renewed(config, self._next_ensemble())
        if config == self._accepted and renewed is not None:
            self._nodes.replace("/config", renewed, stat.version)

    def _next_ensemble(self) -> int:
        return members.next_ensemble(self.ensemble, int(time.time() * 1000))
