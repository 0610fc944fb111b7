"""What processes of one fleet tell each other of their requests: made in those that are not its owner, added up in the one that is.

So a copy that only others use is in use for the owner, too, and their requests count in what models are worth. Both sides work on
`FleetState`'s picture: a process that passes others' reports on (a parent its workers') reports them with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from control_plane.fleet.domain.fleet import Copy, Server
from control_plane.fleet.domain.report import CopyUse, FleetReport, Wanted
from control_plane.fleet.view.state import FleetState
from control_plane.triton.servers import Servers

SILENCE_S = 3.0
"""Of a process, after which what it had under way counts no more: a dozen of its reports are missing."""


class OwnReport:
    """What this process has to tell."""

    def __init__(self, state: FleetState, servers: Servers, *, process: str, without: OthersReports | None = None) -> None:
        """`process` is a name that no other has. What `without` has added to the picture others tell themselves."""
        self._state = state
        self._servers = servers
        self.process = process
        self._without = without
        self._wanted: dict[tuple[str, str | None], Wanted] = {}
        self._died = set[tuple[str, str]]()
        self._told_services: dict[str, float] = {}
        self._was_under_way = False

    def want(self, model: str, pool: str | None = None) -> None:
        """Ask for another copy of it with the next report."""
        self._wanted[model, pool] = Wanted(model, self._state.fleet.ready_copies(model), pool)

    def tell_died(self, server: str, model: str) -> None:
        """With the next report."""
        if (upstream := self._servers.live.get(server)) is not None:
            self._died.add((upstream.endpoints.place, model))

    def drop(self) -> None:
        """This process owns the fleet: there is nobody to tell."""
        self._state.uses.clear()
        self._wanted.clear()
        self._died.clear()

    def make(self) -> FleetReport | None:
        """Everything since the one before; None: nothing has happened, and nothing is under way."""
        uses, copies, wanted = dict(self._state.uses), self._copies(), tuple(self._wanted.values())
        services = self._services(uses.keys() | {model for used in copies.values() for model in used})
        ejected, died = self._ejected(), tuple(self._died)
        is_over = self._was_under_way and not (copies or ejected)
        if not (uses or copies or wanted or ejected or died or is_over):
            return None
        self._state.uses.clear()
        self._died.clear()
        self._wanted, self._was_under_way = {}, bool(copies or ejected)
        return FleetReport(self.process, uses, services, copies, wanted, ejected, died)

    def _ejected(self) -> tuple[str, ...]:
        passed_on = self._state.ejected_elsewhere.values() if self._without is None else ()
        names = self._state.ejected_here.union(*passed_on)
        return tuple(upstream.endpoints.place for name, upstream in self._servers.live.items() if name in names)

    def _services(self, models: Iterable[str]) -> dict[str, float]:
        found = {}
        for model in models:
            facts = self._state.fleet.models.get(model)
            known_s = self._told_services.get(model, self._state.measurements.first_service_s(model))
            if facts is not None and facts.service_s != known_s:
                found[model] = self._told_services[model] = facts.service_s
        return found

    def _copies(self) -> dict[str, dict[str, CopyUse]]:
        servers = self._state.fleet.servers
        others = {} if self._without is None else self._without.uses()
        found = {upstream.endpoints.place: _used(servers[name], others) for name, upstream in self._servers.live.items()}
        return {address: used for address, used in found.items() if used}


@dataclass(slots=True, eq=False)
class _Share:
    """A process's part of what is under way at one copy."""

    server: Server
    copy: Copy
    use: CopyUse
    work_s: float


class OthersReports:
    """What other processes have told, as part of this one's picture of the fleet."""

    def __init__(
        self,
        state: FleetState,
        servers: Servers,
        *,
        want: Callable[[Wanted], None],
        on_report: Callable[[FleetReport], None] = lambda report: None,
        revive: Callable[[str, str], None] = lambda server, model: None,
        passes_on: bool = True,
    ) -> None:
        """`want` has a model loaded, `revive` a server's copy of one loaded anew; `on_report` hears every report. What it `passes_on`
        counts as this process's, too, in what that tells."""
        self._state = state
        self._servers = servers
        self._want = want
        self._on_report = on_report
        self._revive = revive
        self._passes_on = passes_on
        self._shares: dict[str, list[_Share]] = {}
        self._heard_s: dict[str, float] = {}

    def take(self, report: FleetReport) -> None:
        """It counts from now on, in place of the process's one before."""
        for model, count in report.uses.items():
            if model in self._state.fleet.models:
                self._state.used(model, count, is_to_be_told=self._passes_on)
        for model, service_s in report.services.items():
            self._state.measurements.told_service(model, service_s, report.uses.get(model, 1))
        self._withdraw(report.process)
        names = {upstream.endpoints.place: name for name, upstream in self._servers.live.items()}
        self._shares[report.process] = self._added(report, names)
        self._state.ejected_elsewhere[report.process] = frozenset(names[each] for each in report.ejected if each in names)
        self._heard_s[report.process] = self._state.now_s()
        for wanted in report.wanted:
            self._want(wanted)
        for address, model in report.died:
            if address in names:
                self._revive(names[address], model)
        self._on_report(report)
        self._state.released()

    def uses(self) -> dict[Copy, CopyUse]:
        """What they have under way, in all."""
        found: dict[Copy, CopyUse] = {}
        for shares in self._shares.values():
            for share in shares:
                known = found.get(share.copy, CopyUse())
                found[share.copy] = CopyUse(known.in_flight + share.use.in_flight, known.sequences + share.use.sequences)
        return found

    def expire(self) -> None:
        """Count no longer what processes had under way that say nothing any more."""
        before_s = self._state.now_s() - SILENCE_S
        for process in [process for process, heard_s in self._heard_s.items() if heard_s < before_s]:
            self._withdraw(process)

    def drop(self) -> None:
        """They are told to another process now."""
        for process in list(self._heard_s):
            self._withdraw(process)

    def _added(self, report: FleetReport, names: Mapping[str, str]) -> list[_Share]:
        shares = []
        for address, uses in report.copies.items():
            server = self._state.fleet.servers.get(names.get(address, ""))
            for model, use in uses.items():
                copy = None if server is None else server.copies.get(model)
                if server is not None and copy is not None:
                    shares.append(self._add(server, copy, use))
        return shares

    def _add(self, server: Server, copy: Copy, use: CopyUse) -> _Share:
        facts = self._state.fleet.models.get(copy.model)
        work_s = 0.0 if facts is None else facts.service_s * use.in_flight
        copy.in_flight += use.in_flight
        copy.in_flight_elsewhere += use.in_flight
        copy.sequences += use.sequences
        copy.last_used_s = self._state.now_s()
        server.work_s += work_s
        return _Share(server, copy, use, work_s)

    def _withdraw(self, process: str) -> None:
        """From the very copies that they were added to: another of that model may be there by now."""
        for share in self._shares.pop(process, ()):
            share.copy.in_flight -= share.use.in_flight
            share.copy.in_flight_elsewhere -= share.use.in_flight
            share.copy.sequences -= share.use.sequences
            share.server.work_s = max(0.0, share.server.work_s - share.work_s)
        self._heard_s.pop(process, None)
        self._state.ejected_elsewhere.pop(process, None)
        self._state.released()


def _used(server: Server, others: Mapping[Copy, CopyUse]) -> dict[str, CopyUse]:
    found = {}
    for copy in server.copies.values():
        without = others.get(copy, _NONE)
        use = CopyUse(copy.in_flight - without.in_flight, copy.sequences - without.sequences)
        if use != _NONE:
            found[copy.model] = use
    return found


_NONE = CopyUse()
