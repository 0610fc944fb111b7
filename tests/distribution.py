"""Pytest plugin that decides which of several processes (pytest-xdist) runs which tests; `conftest.py` registers it.

With `--dist each` a process collects, imports and compiles a share of the files, and runs no others: with pytest-xdist's other
ways each of them does that with every file. That suits many quick tests. With `--dist loadfile` processes take one file after the
other, the longest first, and files whose tests ask the same server are taken together: it is started once. That suits slow ones.
Of files whose tests start all that they need each test is taken by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import EachScheduling, LoadFileScheduling, Scheduling

BEGUN_FIRST = (
    "test_language_models.py",
    "test_rollouts.py",
    "test_hung_triton.py",
    "test_dead_stub.py",
    "test_examples.py",
    "test_model_builds.py",
    "test_kubernetes_pods.py",
    "test_events.py",
    "test_like_26_11.py",
    "test_regions.py",
    "test_overload.py",
    "test_metering.py",
    "test_fleet_workers.py",
    "test_tune.py",
    "test_rolling_restarts.py",
    "test_access.py",
    "test_two_gateways.py",
    "test_fleet_failures.py",
    "test_http.py",
    "test_job_workers.py",
    "test_job_kill_points.py",
    "test_stopping.py",
    "test_embedded_triton.py",
    "test_fleet.py",
    "test_attached_node.py",
    "test_fingerprints.py",
    "test_job_queue.py",
    "test_batches.py",
    "test_local_users.py",
    "test_sharding.py",
    "test_hedging.py",
    "test_fleet_replicas.py",
    "test_job_deliveries.py",
    "test_traces.py",
    "test_nodes.py",
    "test_response_cache.py",
    "test_workers.py",
    "test_servers_file.py",
    "test_leaders.py",
    "test_shared_cache_chaos.py",
    "test_life.py",
    "test_silence.py",
    "test_fuzz.py",
    "test_tls.py",
    "test_first_serve.py",
    "test_readme.py",
    "test_faults.py",
    "test_console.py",
    "test_perf_fleet.py",
    "test_perf.py",
    "test_perf_models.py",
)
"""The files that take longest, the longest first: a worker that begins one of them last is alone at it while the others have
nothing left to do."""

_TURNS = {name: turn for turn, name in enumerate(BEGUN_FIRST)}

_SERVERS = {
    "the contract's": (
        "contract/test_clients",
        "contract/grpc/test_grpc",
        "contract/test_header_forwarding",
        "contract/http/test_http",
        "contract/test_leaving",
    ),
    "the session's": (
        "e2e/admin/test_cli",
        "e2e/auth/test_access",
        "e2e/frontends/test_names",
        "e2e/frontends/test_openai",
        "e2e/jobs/test_jobs",
        "e2e/loads/test_models",
        "e2e/telemetry/test_metrics",
    ),
    "the session's, behind other gateways": ("e2e/admission/test_tenant_limits", "e2e/metering/test_metering"),
}
TOGETHER = {f"tests/{file}.py": server for server, files in _SERVERS.items() for file in files}
"""Files whose tests ask a server that is started once for each process, by which one they ask."""

SCENARIOS = {f"tests/e2e/perf/test_{name}.py" for name in ("perf", "perf_fleet", "perf_models")}
"""Files whose tests keep the CPUs busy, where most others wait for Triton."""

APART = {*SCENARIOS, "tests/e2e/app/test_stopping.py", "tests/e2e/triton/test_dead_stub.py", "tests/e2e/triton/test_hung_triton.py"}
"""Files whose tests share nothing, and which take so long that a process with one of them would be the last to end."""


IN_ONE_PROCESS = "python_backends"
"""Folder of files that import PyTorch and transformers, which takes a process as long as importing everything else three times."""


class Share:
    """Plugin of one process of several: it leaves all files but a part to the others.

    The first has those of `IN_ONE_PROCESS`, and of all others half as many as each other process.
    """

    def __init__(self, number: int, count: int) -> None:
        self._number = number
        self._turns = itertools.cycle([0, *range(1, count), *range(1, count)])

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """True for what is not to be collected; None leaves that to others."""
        if not collection_path.match("test_*.py"):
            return None
        turn = 0 if IN_ONE_PROCESS in collection_path.parts else next(self._turns)
        return turn != self._number or None


class _Shares(EachScheduling):
    """Processes with a share each, whose tests add up: pytest would count those of one."""

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        # Also of one that comes for another that died: if it died too, pytest-xdist would leave out what it had left, and not say so.
        self.node2collection[node] = list(collection)

    def schedule(self) -> None:
        if not self._started:
            session = self.config.pluginmanager.get_plugin("session")
            session.testscollected = sum(len(of_one) for of_one in self.node2collection.values())
        super().schedule()


class _Files(LoadFileScheduling):
    """Whole files, or those of one server together, or single tests of files whose tests share nothing.

    A process is given the next ones with its last test, which it begins once it knows what comes after it. pytest-xdist itself
    does that one test earlier; what is given too early waits behind a long test while another process has nothing to do.
    """

    def _reschedule(self, node: Any) -> None:
        if not self.workqueue or self._pending_of(self.assigned_work[node]) <= 1:
            super()._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return nodeid if file in APART else TOGETHER.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    scheduler = {"each": _Shares, "loadfile": _Files}.get(config.getoption("dist"))
    return None if scheduler is None else scheduler(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process which share is its own; one that comes for another that died has that one's specification, and its share."""
    if node.config.getoption("dist") == "each":
        specifications = node.nodemanager.specs
        place = [each is node.gateway.spec for each in specifications].index(True)
        node.workerinput["share"] = (place, len(specifications))


def pytest_configure(config: pytest.Config) -> None:
    """In a process that was told its share, collect that alone."""
    share = getattr(config, "workerinput", {}).get("share")
    if share is not None:
        config.pluginmanager.register(Share(*share))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _TURNS.get(item.path.name, len(_TURNS)))
    scenarios = [item for item in items if item.nodeid.split("::")[0] in SCENARIOS]
    items[:] = mixed(scenarios, [item for item in items if item not in scenarios])


def mixed(scenarios: Iterable[pytest.Item], others: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """One scenario after each file of the others, so that processes with either run beside each other."""
    left = iter(scenarios)
    for _, of_file in itertools.groupby(others, key=lambda item: item.path):
        yield from of_file
        yield from itertools.islice(left, 1)
    yield from left
