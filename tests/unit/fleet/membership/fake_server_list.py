"""Fake list of a fleet's servers (`fleet/ports.ServerList`)."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.core.endpoints import ListedServer
from control_plane.core.errors import StartupError


@dataclass
class FakeServerList:
    """`fleet/ports.ServerList`."""

    servers: list[ListedServer] | StartupError
    name: str = "the list"
    changed: bool = False
    reads: int = 0

    def write(self, *servers: ListedServer) -> None:
        self.servers, self.changed = list(servers), True

    def read(self) -> list[ListedServer]:
        self.changed = False
        self.reads += 1
        if isinstance(self.servers, StartupError):
            raise self.servers
        return self.servers

    def has_changed(self) -> bool:
        return self.changed
