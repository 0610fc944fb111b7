"""Ports of a fleet: the leader's lease, the shared memory, the list of servers, and the channel to the leader.

The services of `fleet/` call them; `fleet/adapters` and `workers/` implement them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from control_plane.core.endpoints import ListedServer
from control_plane.core.held_memory import HeldMemory
from control_plane.fleet.domain.leadership.lease import Lease
from control_plane.fleet.domain.leadership.report import LoadReport
from control_plane.fleet.domain.memory import DesiredState, Measured
from control_plane.models.domain.description import DescribedModel


class PreparedLoad(Protocol):
    """Load for which everything is done but asking Triton."""

    @property
    def asked_s(self) -> float | None:
        """When Triton was asked, on the event loop's clock; None if it has not been."""

    async def load(self) -> None:
        """Ask Triton, without any await before, and return when the model is ready. Raises
        ControlPlaneError."""


class ServerInstance(Protocol):
    """One Triton of the fleet with its models and files, beside this process or on another host.

    Everything is about this one server; which model is loaded where is decided by the fleet.
    """

    def prepared(self, name: str) -> AbstractAsyncContextManager[PreparedLoad]:
        """Context manager of one load, as `ModelService.prepared`. Raises ControlPlaneError."""

    async def unload_now(self, name: str, *, unload_dependents: bool = False) -> None:
        """Return when Triton has accepted to unload the model, as `ModelService.unload_now`. Raises
        ControlPlaneError."""

    def replacing(self, models: Collection[str]) -> AbstractAsyncContextManager[None]:
        """Context manager around an unload and a load of models with a dead stub, as `DeadModels.replacing`.
        Raises ControlPlaneError."""

    async def held_memory(self) -> HeldMemory | None:
        """Return the memory that the server holds now, Triton's own included; None where it cannot be
        read."""

    def held_locally(self, name: str) -> AbstractAsyncContextManager[None]:
        """Context manager: within the block the model's files are at the server, and stay there, as far as
        the server itself fetches them. Raises ControlPlaneError."""

    def described(self) -> Mapping[str, DescribedModel] | None:
        """Return what the server itself knows of models in its folders and stores, by name; None where the
        fleet reads the folders."""


class FleetMemory(Protocol):
    """Shared store of what outlives processes: measurements and desired states of a fleet's models. Each
    method raises StoreUnavailable."""

    async def measured(self) -> Mapping[str, Measured]:
        """Return the measurements by model."""

    async def measure(self, changes: Mapping[str, Measured | None]) -> None:
        """Write measurements, None to forget a model. Only the leader calls this."""

    async def wishes(self) -> Mapping[str, DesiredState] | None:
        """Return the desired states by model; models without one are as their folders say.

        None: the store has lost all of them since they were last read, and has no new ones yet.
        """

    async def wish(self, changes: Mapping[str, DesiredState | None]) -> None:
        """Write desired states, None for what the folder says. Whichever process an administrator has told
        calls this."""

    async def close(self) -> None: ...


class LeaseStore(Protocol):
    """Store of the leader lease: one record, changed only by compare-and-set, so that processes agree on
    their fleet's leader.

    It keeps no time: `fleet/domain/leadership/election` does. Each method raises StoreUnavailable; then its change may
    have been made, or not.
    """

    async def read(self) -> Lease | None:
        """Return the lease as it is now; None if there is none, or it has been lost."""

    async def acquire(self, seen: Lease | None, *, holder: str, ttl_s: float) -> Lease | None:
        """Replace `seen` by a lease with a higher token, and return that; None if the lease is not as it was
        seen any more."""

    async def renew(self, lease: Lease) -> Lease | None:
        """Prove that the holder lives, and return the renewed lease; None if another process has taken it, or
        it is gone."""

    async def resume(self, lease: Lease) -> Lease | None:
        """Renew a lease that has expired for its holder; None unless it is still the holder's, and the store
        has lost no write since it answered the holder last (`Lease.run`)."""

    async def release(self, lease: Lease) -> None:
        """Mark the lease as released: its holder starts no more work. A lease that another process has taken
        is left alone."""

    async def close(self) -> None: ...


class LeaderChannel(Protocol):
    """Line to the leader: how the processes of a fleet send it load reports and requests for models. Each
    method raises StoreUnavailable."""

    async def report(self, report: LoadReport) -> None:
        """Send a report to whoever is the leader; one that nobody takes within seconds is dropped."""

    async def receive(self, *, timeout_s: float) -> list[LoadReport]:
        """Return the reports sent since, oldest first, as soon as there is any; empty when the timeout is
        over. Only the leader calls this."""

    async def close(self) -> None: ...


class ServerList(Protocol):
    """List of the attached Tritons of a fleet, which somebody else keeps. It reads a file, so it is called in
    threads."""

    @property
    def name(self) -> str:
        """The list's name in messages, such as its setting."""

    def read(self) -> Sequence[ListedServer]:
        """Return the servers listed now, at least one. Raises StartupError: what is wrong with the list, and
        what would be right."""

    def has_changed(self) -> bool:
        """Whether the list has changed since it was read, and is not just being written."""


class FleetWorkers(Protocol):
    """This process's worker processes, as far as they take part in its fleet: `workers/parent/fleet_publisher`."""

    def relay(self, report: LoadReport) -> None:
        """Pass on another process's load report to the workers."""

    async def run(self) -> None:
        """Tell the workers what changes, until cancelled."""
