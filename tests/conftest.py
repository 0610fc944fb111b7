"""What every test gets: a loop where it is async, Hypothesis without deadlines, as shared machines are slow; and the contract's count.

Hypothesis draws the same examples each time, so that a test fails for what a change did; others, and more of them,
are drawn with `make test ARGS="--hypothesis-profile=search tests/unit"`.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from control_plane.host.memory.garbage import collect_no_garbage_in_forks
from tests.aio import run, run_in_virtual_time
from tests.contract import ledger

settings.register_profile("default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("search", settings.get_profile("default"), max_examples=200, derandomize=False)
settings.load_profile("default")


pytest_plugins = ("tests.distribution", "tests.hanging")

# Of what tests start, hundreds of processes import NumPy and multiply no matrices; buffers for each thread take a third of the import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# PyTorch's compiler believes the CPU's own list of instructions: it would compile a program to try them, for five seconds.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# As in `control_plane/__main__`: gRPC would stop its threads for each process that a test starts, and wait for them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")


collect_no_garbage_in_forks()  # tests leave channels of gRPC behind
gc.disable()  # of what is imported and collected nothing becomes garbage, and the collector would look at all of it again and again


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 20, 20)  # as rarely as in production; by default a ninth of the tests' time goes into looking for garbage


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
