"""Ports of the node agent: the links between gateways and nodes, and what a node runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from control_plane.metering.domain.compute_units import ModelCost
from control_plane.models.domain.description import DescribedModel
from control_plane.node.domain.messages import Message


class Link(Protocol):
    """Authenticated connection between a gateway and a node: whole messages in both directions."""

    def send(self, message: Message) -> None:
        """Send a message without waiting; it is dropped if the connection is closed. A peer that does not read
        is cut off."""

    async def receive(self) -> Message | None:
        """Return the next message; None when the connection is closed. Raises WrongMessage."""

    def close(self) -> None:
        """Close the connection at once, with what was not sent yet."""

    async def flush(self, *, timeout_s: float) -> None:
        """Wait until what was sent has left this process, for at most so long."""


class GatewayLink(Link, Protocol):
    """A node's end of a link."""

    @property
    def fleet(self) -> str:
        """The fleet that the gateway belongs to."""

    @property
    def gateway(self) -> str:
        """Name of the gateway's process, for the log."""


class NodeLink(Link, Protocol):
    """A gateway's end of a link."""

    @property
    def incarnation(self) -> str:
        """Name of the node's run."""


class NodeConnector(Protocol):
    """Connector to one node."""

    @property
    def address(self) -> str:
        """`HOST:PORT` of the node."""

    async def connect(self, *, timeout_s: float) -> NodeLink:
        """Connect and authenticate both sides. Raises NodeRefused (by the node, or it is not the one that
        has the secret), OSError and TimeoutError (it is not there)."""


class NodeRefused(Exception):
    """The node and this gateway do not accept each other; the message says why."""


class NodeFiles(Protocol):
    """Models' files on a node's machine."""

    def read(self) -> tuple[Mapping[str, DescribedModel], Mapping[str, ModelCost]]:
        """Return descriptions and costs of all models; reads files, so it is called in threads."""

    def state(self) -> object:
        """Return a value that is another one once a model has come or gone; cheap, and called in threads."""

    def held(self, name: str) -> AbstractAsyncContextManager[None]:
        """Context manager: within the block the model's files are here and stay here. Raises
        ControlPlaneError, also if they show that Triton could not load it."""
