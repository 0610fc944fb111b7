"""Fixtures for tests of the admin API that ask it in this process."""

from __future__ import annotations

import pytest

from tests.unit.admin.admin_bench import Bench


@pytest.fixture(scope="module")
def shared() -> Bench:
    """One bench for all tests of the module, since building the API takes longer than any of them."""
    return Bench()


@pytest.fixture
def bench(shared: Bench) -> Bench:
    shared.forget()
    return shared
