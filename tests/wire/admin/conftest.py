"""A running admin API, and a client of it with a key."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.unit.admin.admin_bench import Bench
from tests.wire.admin.admin import admin_server


@pytest.fixture
def served() -> Iterator[tuple[Bench, httpx.Client, str]]:
    bench = Bench(authentication=True)
    key = bench.make_key()
    with (
        admin_server(bench) as url,
        httpx.Client(base_url=url, verify=False, headers={"authorization": f"Bearer {key}"}, timeout=20) as client,
    ):
        yield bench, client, key
