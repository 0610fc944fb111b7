"""Fixtures for commands against the admin API on a real port."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.unit.admin.admin_bench import Bench, Clock
from tests.wire.admin.admin import admin_server


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(authentication=True, clock=Clock(time.time()))


@pytest.fixture(scope="module")
def url(bench: Bench) -> Iterator[tuple[str, str]]:
    key = bench.make_key()
    with admin_server(bench) as found:
        yield found, key


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch, url: tuple[str, str]) -> tuple[str, str]:
    monkeypatch.setenv("TIDEGATE_API_KEY", url[1])
    return "--admin-url", url[0]


@pytest.fixture(scope="module")
def keyless_served() -> Iterator[tuple[Bench, str]]:
    bench = Bench()
    with admin_server(bench) as found:
        yield bench, found


@pytest.fixture
def keyless(keyless_served: tuple[Bench, str]) -> Bench:
    """An admin API that asks for no keys, and has no objects yet."""
    keyless_served[0].forget()
    return keyless_served[0]


@pytest.fixture
def at_keyless(keyless: Bench, keyless_served: tuple[Bench, str]) -> tuple[str, str]:
    return "--admin-url", keyless_served[1]
