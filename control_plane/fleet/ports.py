"""What a fleet needs of others: its lease, its memory, and who its servers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from control_plane.core.endpoints import ListedServer
from control_plane.fleet.domain.lease import Lease
from control_plane.fleet.domain.memory import Measured, Wish
from control_plane.fleet.domain.report import FleetReport


class FleetMemory(Protocol):
    """What outlives processes of a fleet's models, and is the same for all that share it. Each method raises StoreUnavailable."""

    async def measured(self) -> Mapping[str, Measured]:
        """By model."""

    async def measure(self, changes: Mapping[str, Measured | None]) -> None:
        """The owner's alone; None: it is forgotten."""

    async def wishes(self) -> Mapping[str, Wish] | None:
        """By model; those that have none are as their folders say. None: since they were last read all have been lost, until some are
        written."""

    async def wish(self, changes: Mapping[str, Wish | None]) -> None:
        """Whichever process an administrator has told it; None: as its folder says."""

    async def close(self) -> None: ...


class LeaseStore(Protocol):
    """Where processes agree which of them owns their fleet: one record, changed only by who knows it as it is.

    Keeps no time: `fleet/domain/ownership` does. Each method raises StoreUnavailable; then it may have been done, or not.
    """

    async def look(self) -> Lease | None:
        """As it is now; None: there is none, or it has been lost."""

    async def take(self, seen: Lease | None, *, holder: str, ttl_s: float) -> Lease | None:
        """Put one with a higher token in place of `seen`; None: it is not as it was seen any more."""

    async def renew(self, lease: Lease) -> Lease | None:
        """The holder lives; None: somebody else has taken it, or it is gone."""

    async def release(self, lease: Lease) -> None:
        """The holder begins nothing more. Of one that somebody else has taken, nothing."""

    async def close(self) -> None: ...


class OwnerLine(Protocol):
    """How processes of one fleet tell its owner what they do, and ask it for models. Each method raises StoreUnavailable."""

    async def report(self, report: FleetReport) -> None:
        """To whoever is the owner; what nobody takes within seconds is forgotten."""

    async def take(self, *, timeout_s: float) -> list[FleetReport]:
        """What has been told, oldest first, as soon as there is any; empty when the time is over."""

    async def close(self) -> None: ...


class ServerList(Protocol):
    """The servers that others run for a fleet, as somebody lists them. It reads a file, so threads call it."""

    @property
    def name(self) -> str:
        """What people call it."""

    def read(self) -> Sequence[ListedServer]:
        """As it is now, one at least. Raises StartupError: what is wrong with it, and what would be right."""

    def has_changed(self) -> bool:
        """Since it was read; and it is not just being written."""


class FleetWorkers(Protocol):
    """This process's workers, as far as they take part in its fleet: `workers/fleet_for_workers`."""

    def relay(self, report: FleetReport) -> None:
        """Tell them what another process has reported."""

    async def run(self) -> None:
        """Tell them what changes until cancelled."""
