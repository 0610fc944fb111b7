"""What every test gets: a loop where it is async, Hypothesis without deadlines, as shared machines are slow; and the contract's count.

Hypothesis draws the same examples each time, so that a test fails for what a change did; others are drawn with
`make test ARGS="--hypothesis-profile=search tests/unit"`.
"""

from __future__ import annotations

import functools
import gc
import inspect
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.aio import run, run_in_virtual_time
from tests.contract import ledger

settings.register_profile("default", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("search", settings.get_profile("default"), derandomize=False)
settings.load_profile("default")


BEGUN_FIRST = (
    "test_perf.py",
    "test_perf_fleet.py",
    "test_perf_models.py",
    "test_stopping.py",
    "test_rollouts.py",
    "test_two_gateways.py",
    "test_silence.py",
    "test_fuzz.py",
    "test_metering.py",
    "test_servers_file.py",
    "test_fleet.py",
    "test_life.py",
    "test_tls.py",
    "test_overload.py",
    "test_workers.py",
    "test_dead_stub.py",
    "test_fleet_failures.py",
    "test_rolling_restarts.py",
    "test_nodes.py",
    "test_response_cache.py",
    "test_examples.py",
    "test_tenant_limits.py",
    "test_like_26_11.py",
    "test_job_kill_points.py",
    "test_fleet_workers.py",
    "test_kubernetes_pods.py",
    "test_fleet_replicas.py",
    "test_tune.py",
    "test_readme.py",
    "test_job_workers.py",
    "test_model_builds.py",
)
"""The files that take longest, the longest first: a worker that begins one of them last is alone at it while the others have
nothing left to do."""

_TURNS = {name: turn for turn, name in enumerate(BEGUN_FIRST)}


gc.disable()  # of what is imported and collected nothing becomes garbage, and the collector would look at all of it again and again


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _TURNS.get(item.path.name, len(_TURNS)))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test on a loop of its own: uvloop, as in production, or one whose clock jumps to the next timer."""
    play = run_in_virtual_time if pyfuncitem.get_closest_marker("virtual_time") else run
    drawn = getattr(pyfuncitem.obj, "hypothesis", None)
    if drawn is not None and inspect.iscoroutinefunction(test := drawn.inner_test):
        drawn.inner_test = functools.wraps(test)(lambda *args, **kwargs: play(test(*args, **kwargs)))  # one loop for each example
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    play(pyfuncitem.obj(**arguments))
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes that share the tests tells the first what it has compared."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["contract"] = ledger.counted()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if hasattr(node, "workeroutput"):  # one that was killed tells nothing, and the others' report is wanted
        ledger.add(node.workeroutput["contract"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if ledger.compared:
        terminalreporter.section("contract with Triton")
        for line in ledger.lines():
            terminalreporter.write_line(line)
