"""What every test gets: Hypothesis without a per-example deadline, as shared machines are slow; and the contract's count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.contract import ledger

settings.register_profile("default", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes that share the tests tells the first what it has compared."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["contract"] = ledger.counted()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    ledger.add(node.workeroutput["contract"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if ledger.compared:
        terminalreporter.section("contract with Triton")
        for line in ledger.lines():
            terminalreporter.write_line(line)
