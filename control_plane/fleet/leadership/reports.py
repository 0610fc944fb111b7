"""Load reports: processes that are not the leader make them, and the leader adds them to its view (as in Envoy's load reporting
service).

So the leader knows of replicas that only other processes use, and counts their requests in the value of a model. Both sides work
on `FleetState`. A process that forwards others' reports (a parent those of its workers) includes them in its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

from control_plane.fleet.domain.fleet import Replica, Server
from control_plane.fleet.domain.leadership.report import LoadReport, ReplicaUse, Wanted
from control_plane.fleet.view.reservations import RemoteReservations
from control_plane.fleet.view.state import FleetState
from control_plane.triton.servers import Servers

SILENCE_S = 3.0
"""Time after a process's last report from which its requests in flight count no more: a dozen reports are
missing by then."""


class ReportBuilder:
    """Builder of this process's load reports."""

    def __init__(self, state: FleetState, servers: Servers, *, process: str, without: ReportCollector | None = None) -> None:
        """`process` is a name that no other process has. What `without` has added to the view is left out, as
        its processes report it themselves."""
        self._state = state
        self._servers = servers
        self.process = process
        self._without = without
        self._wanted: dict[tuple[str, str | None], Wanted] = {}
        self._died = set[tuple[str, str]]()
        self._told_services: dict[str, float] = {}
        self._was_under_way = False

    def want(self, model: str, pool: str | None = None) -> None:
        """Ask for one more replica of a model in the next report."""
        self._wanted[model, pool] = Wanted(model, len(self._state.fleet.ready_replicas(model)), pool)

    def request_repair(self, server: str, model: str) -> None:
        """Tell in the next report that the stub of a server's replica has died."""
        if (upstream := self._servers.live.get(server)) is not None:
            self._died.add((upstream.endpoints.address, model))

    def drop(self) -> None:
        """Discard what has not been reported: this process is the leader, and there is nobody to report
        to."""
        self._state.take_uses()
        self._wanted.clear()
        self._died.clear()

    def make(self) -> LoadReport | None:
        """Return the report of everything since the last one; None if nothing has happened and nothing is in
        flight."""
        uses, replicas, wanted = self._state.take_uses(), self._uses(), tuple(self._wanted.values())
        services = self._services(uses.keys() | {model for used in replicas.values() for model in used})
        ejected, died = self._ejected(), tuple(self._died)
        # One empty report follows the last one with requests in flight, or the leader would count those until
        # `SILENCE_S`.
        is_over = self._was_under_way and not (replicas or ejected)
        if not (uses or replicas or wanted or ejected or died or is_over):
            return None
        self._died.clear()
        self._wanted, self._was_under_way = {}, bool(replicas or ejected)
        return LoadReport(self.process, uses, services, replicas, wanted, ejected, died)

    def _ejected(self) -> tuple[str, ...]:
        passed_on = self._state.ejection.by_others.values() if self._without is None else ()
        names = self._state.ejection.by_us.union(*passed_on)
        return tuple(upstream.endpoints.address for name, upstream in self._servers.live.items() if name in names)

    def _services(self, models: Iterable[str]) -> dict[str, float]:
        found = {}
        for model in models:
            facts = self._state.fleet.models.get(model)
            known_s = self._told_services.get(model, self._state.measurements.first_service_s(model))
            # Only what has changed since it was last reported: most models are idle.
            if facts is not None and facts.service_s != known_s:
                found[model] = self._told_services[model] = facts.service_s
        return found

    def _uses(self) -> dict[str, dict[str, ReplicaUse]]:
        servers = self._state.fleet.servers
        others = {} if self._without is None else self._without.uses()
        found = {upstream.endpoints.address: _used(servers[name], others) for name, upstream in self._servers.live.items()}
        return {address: used for address, used in found.items() if used}


class ReportCollector:
    """Collector of other processes' load reports: it adds what they have in flight to this process's view of
    the fleet."""

    def __init__(
        self,
        state: FleetState,
        servers: Servers,
        *,
        want: Callable[[Wanted], None],
        on_report: Callable[[LoadReport], None] = lambda report: None,
        repair: Callable[[str, str], None] = lambda server, model: None,
        passes_on: bool = True,
    ) -> None:
        """`want` has a model loaded, `repair` a server's replica loaded anew, and `on_report` is called with
        every report.

        With `passes_on`, the requests reported here count as this process's own in what it reports to the
        leader.
        """
        self._state = state
        self._servers = servers
        self._want = want
        self._on_report = on_report
        self._repair = repair
        self._passes_on = passes_on
        self._reservations: dict[str, list[RemoteReservations]] = {}
        self._heard_s: dict[str, float] = {}

    def apply(self, report: LoadReport) -> None:
        """Apply a report, in place of the last one of the same process."""
        for model, count in report.uses.items():
            if model in self._state.fleet.models:
                self._state.count_requests(model, count, is_to_be_reported=self._passes_on)
        for model, service_s in report.services.items():
            self._state.measurements.note_service_time(model, service_s, report.uses.get(model, 1))
        # A report replaces the last one; `uses` and `services` above are counted once and stay.
        self._withdraw(report.process)
        # Reports name servers by address; an address that this process does not list is skipped.
        names = {upstream.endpoints.address: name for name, upstream in self._servers.live.items()}
        self._reservations[report.process] = list(self._reserve(report, names))
        self._state.ejection.by_others[report.process] = frozenset(names[each] for each in report.ejected if each in names)
        self._heard_s[report.process] = self._state.now_s()
        for wanted in report.wanted:
            self._want(wanted)
        for address, model in report.died:
            if address in names:
                self._repair(names[address], model)
        self._on_report(report)
        self._state.released()

    def uses(self) -> dict[Replica, ReplicaUse]:
        """Return what all other processes together have in flight, by replica."""
        found: dict[Replica, ReplicaUse] = {}
        for each in chain.from_iterable(self._reservations.values()):
            known = found.get(each.replica, _NONE)
            found[each.replica] = ReplicaUse(known.in_flight + each.use.in_flight, known.sequences + each.use.sequences)
        return found

    def expire(self) -> None:
        """Withdraw the reports of processes that have been silent for too long."""
        before_s = self._state.now_s() - SILENCE_S
        for process in [process for process, heard_s in self._heard_s.items() if heard_s < before_s]:
            self._withdraw(process)

    def drop(self) -> None:
        """Withdraw all reports: the processes report to another leader now."""
        for process in list(self._heard_s):
            self._withdraw(process)

    def _reserve(self, report: LoadReport, names: Mapping[str, str]) -> Iterator[RemoteReservations]:
        """Add the report's requests in flight to the replicas that this process knows."""
        for address, uses in report.replicas.items():
            server = self._state.fleet.servers.get(names.get(address, ""))
            for model, use in uses.items():
                if server is not None and (replica := server.replicas.get(model)) is not None:
                    facts, now_s = self._state.fleet.models.get(model), self._state.now_s()
                    yield RemoteReservations(server, replica, use, service_s=0.0 if facts is None else facts.service_s, now_s=now_s)

    def _withdraw(self, process: str) -> None:
        """Take a process's report back."""
        for reservations in self._reservations.pop(process, ()):
            reservations.release()
        self._heard_s.pop(process, None)
        self._state.ejection.by_others.pop(process, None)
        self._state.released()


def _used(server: Server, others: Mapping[Replica, ReplicaUse]) -> dict[str, ReplicaUse]:
    found = {}
    for replica in server.replicas.values():
        if not (replica.in_flight or replica.sequences):
            continue  # as nearly all of thousands are, four times a second
        without = others.get(replica, _NONE)
        use = ReplicaUse(replica.in_flight - without.in_flight, replica.sequences - without.sequences)
        if use != _NONE:
            found[replica.model] = use
    return found


_NONE = ReplicaUse()
