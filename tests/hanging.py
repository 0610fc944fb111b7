"""Pytest plugin that ends the process of a test that hangs, with the stacks of its threads; `conftest.py` registers it.

pytest-timeout's alarm fails a test that takes too long, unless it waits in C: in uvloop's loop, at the end of a loop or in a fork,
where nothing runs Python's signal handlers. Such a test would hold up all others until whoever runs them gives up. pytest's own
`faulthandler_timeout` is one for all tests, and some may take six times as long as most.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator

import pytest

_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(sys.stderr.fileno())  # later it is that of the test, whose output ends with it


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_stderr])


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    faulthandler.dump_traceback_later(1.0 + 1.1 * _limit_s(item), file=item.config.stash[_stderr], exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _limit_s(item: pytest.Item) -> float:
    """Seconds that a test may take, with its fixtures, as pytest-timeout understands it."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker else item.config.getini("timeout"))
