"""The report of `perf.gateway`: throughput, added latency and CPU of each peer, and Tidegate's beside nginx's and a Python proxy's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from perf.measurement import report
from perf.measurement.markdown import figure, table
from perf.measurement.report import Target
from perf.measurement.runs import GeneratedRun

STRAIGHT, NGINX, OURS, WITH_KEYS = "straight", "nginx", "tidegate", "tidegate-keys"
OVER_SOCKETS = "tidegate-unix"
_SOCKET_P50_MS = 1.0
PYTHON_PROXY = {"http": "starlette-aiohttp", "grpc": "grpc-aio"}
"""The faster of two."""
_SHOWN = (OURS, WITH_KEYS, NGINX)


@dataclass(frozen=True, slots=True)
class Case:
    protocol: str
    tensor_bytes: int
    connections: int
    peer: str

    @property
    def load(self) -> str:
        return f"{self.protocol}, {size_of(self.tensor_bytes)}, {self.connections} connection{'s' * (self.connections > 1)}"

    def of(self, peer: str) -> Case:
        return replace(self, peer=peer)


@dataclass(frozen=True, slots=True)
class _Limit:
    """Limit on what Tidegate adds or carries, against a peer; wanted with the smallest tensor."""

    what: str
    key: str
    peer: str
    limit: float
    at_least: bool
    of_one: bool = False
    """Whether the promise is of one connection only: with more, latency is mostly waiting for a core."""


_LIMITS: Mapping[str, Sequence[_Limit]] = {
    "http": (
        _Limit("throughput / nginx's", "throughput_of_nginx", NGINX, 0.6, at_least=True),
        _Limit("added p50 / nginx's", "added_of_nginx", NGINX, 1.5, at_least=False),
        _Limit("CPU a request / nginx's", "cpu_of_nginx", NGINX, 2.0, at_least=False),
        _Limit("throughput / Starlette's", "throughput_of_python", "starlette-aiohttp", 5.0, at_least=True),
    ),
    "grpc": (
        _Limit("added p50, us", "added_us", STRAIGHT, 150.0, at_least=False, of_one=True),
        _Limit("added p50 / grpc.aio's", "added_of_python", "grpc-aio", 1 / 3, at_least=False),
    ),
}


class Report(report.Report):
    name, title, case, run, plot = "gateway", "One hop beside nginx and Python proxies", Case, GeneratedRun, "svg"
    programs = ("wrk", "nginx", "h2load", "nghttpd")

    def figures(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for case in self._ours():
            for limit in _LIMITS[case.protocol]:
                value = self._value(case, limit)
                if value is not None:
                    found[_key(case, limit)] = value
            found[f"{case.protocol}_{case.tensor_bytes}_{case.connections}_cpu_us"] = self.median(case).cpu_us
        return found | {_socket_key(case): self.median(case).p50_ms for case in self._over_sockets()}

    def targets(self) -> Sequence[Target]:
        return [
            Target(_key(case, limit), f"{case.load}: {limit.what}", limit.limit, limit.at_least)
            for case in self._ours()
            for limit in _LIMITS[case.protocol]
            if case.tensor_bytes == min(self.names("tensor_bytes")) and (case.connections == 1 or not limit.of_one)
        ] + [
            Target(_socket_key(case), f"{case.load}: p50 over a Unix socket, ms", _SOCKET_P50_MS, at_least=False)
            for case in self._over_sockets()
            if case.tensor_bytes == min(self.names("tensor_bytes")) and case.connections == 1
        ]

    def summary(self) -> str:
        head = ("", "throughput / nginx's", "added p50 us", "CPU us per request")
        order = f"In the last two columns: {', '.join(_SHOWN)}, the Python proxy."
        return f"{order}\n\n" + table(head, [self._row(case) for case in self._ours()])

    def details(self) -> str:
        head = ("", "peer", "requests/s", "p50 ms", "p99 ms", "added p50 us", "CPU us/request", "errors")
        rows = [(case.load, case.peer, *self._figures_of(case)) for case in self.runs]
        return "## Every case\n\n" + table(head, rows)

    def added_us(self, case: Case) -> float:
        """What a peer adds to the p50 of the same round's straight one."""
        return self.over_rounds(case, case.of(STRAIGHT), lambda own, straight: 1e3 * (own.p50_ms - straight.p50_ms))

    def _ours(self) -> list[Case]:
        return [case for case in self.runs if case.peer == OURS]

    def _over_sockets(self) -> list[Case]:
        return [case for case in self.runs if case.peer == OVER_SOCKETS]

    def _row(self, case: Case) -> tuple[str, ...]:
        peers = [case.of(peer) for peer in (*_SHOWN, PYTHON_PROXY[case.protocol])]
        share = self._throughput_of(case, NGINX)
        added = ", ".join(figure(self.added_us(each)) or "-" for each in peers)
        cpu = ", ".join(figure(self.median(each).cpu_us) if each in self.runs else "-" for each in peers)
        return case.load, figure(share), added, cpu

    def _figures_of(self, case: Case) -> tuple[str, ...]:
        run, is_straight = self.median(case), case.peer == STRAIGHT
        added, cpu = ("", "") if is_straight else (figure(self.added_us(case)), figure(run.cpu_us))
        return *map(figure, (run.requests_per_s, run.p50_ms, run.p99_ms)), added, cpu, f"{run.errors:g}"

    def _value(self, case: Case, limit: _Limit) -> float | None:
        """None when the peer was not measured, or seemed to add nothing: its straight run was disturbed then, and a ratio is none."""
        if case.of(limit.peer) not in self.runs:
            return None
        if limit.key.startswith("throughput"):
            return self._throughput_of(case, limit.peer)
        if limit.key.startswith("cpu"):
            return self.over_rounds(case, case.of(limit.peer), lambda own, other: own.cpu_us / other.cpu_us)
        if limit.peer == STRAIGHT:
            return self.added_us(case)
        others_us = self.added_us(case.of(limit.peer))
        return self.added_us(case) / others_us if others_us > 0 else None

    def _throughput_of(self, case: Case, peer: str) -> float:
        return self.over_rounds(case, case.of(peer), lambda own, other: own.requests_per_s / other.requests_per_s)


def size_of(tensor_bytes: int) -> str:
    return f"{tensor_bytes / 2**20:g} MB" if tensor_bytes >= 2**20 else f"{tensor_bytes / 2**10:g} KB"


def _socket_key(case: Case) -> str:
    return f"{case.protocol}_{case.tensor_bytes}_{case.connections}_socket_p50_ms"


def _key(case: Case, limit: _Limit) -> str:
    return f"{case.protocol}_{case.tensor_bytes}_{case.connections}_{limit.key}"
