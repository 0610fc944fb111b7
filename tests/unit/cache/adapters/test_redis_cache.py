"""Parts of the Redis adapter that need no Redis; the others are tested in
tests/contract/cache/test_shared_cache*.py.
"""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from control_plane.cache.adapters.redis_cache import make_redis_cache
from control_plane.cache.adapters.redis_cache_connection import CacheConnection
from control_plane.cache.adapters.redis_cache_writes import CacheWrites
from control_plane.core.errors import StartupError
from control_plane.telemetry.shared_cache_counts import SharedCacheCounts


@pytest.mark.parametrize(
    ("url", "state_url"),
    [
        ("redis://h", "redis://h"),
        ("redis://:s3cret@h:6379/1", "redis://:other@h/0"),
        ("rediss://:s3cret@H:7/1", "redis://h:7"),
        ("redis://[::1]", "redis://[::1]:6379/2"),
    ],
)
def test_the_redis_that_holds_the_state_is_refused_whatever_the_database(url: str, state_url: str) -> None:
    with pytest.raises(
        StartupError, match=r"^--cache-url redis.* is the Redis of --state-url, .*: give the cache one of its own"
    ) as caught:
        make_redis_cache(SecretStr(url), state_url=SecretStr(state_url), max_value_bytes=1)
    assert "s3cret" not in repr(caught.value)


@pytest.mark.parametrize("state_url", [None, "redis://h:6380", "redis://other:6379"])
def test_another_one_is_taken_without_connecting(state_url: str | None) -> None:
    given = SecretStr(state_url) if state_url else None
    cache = make_redis_cache(SecretStr("redis://:s3cret@h"), state_url=given, max_value_bytes=1)
    assert cache.is_bypassed
    assert "s3cret" not in repr(cache)


@pytest.mark.parametrize("url", ["", "http://:s3cret@h", "redis://:s3cret@h/x", "redis://:s3cret@h?socket_timeout=1"])
def test_what_is_no_redis_is_refused_by_the_settings_name(url: str) -> None:
    with pytest.raises(StartupError, match=r"^--cache-url .*; expected redis://") as caught:
        make_redis_cache(SecretStr(url), state_url=None, max_value_bytes=1)
    assert "s3cret" not in repr(caught.value)


def test_what_waits_to_be_written_is_bounded_in_number_and_bytes() -> None:
    def dropped_of(count: int, size: int) -> int:
        counts = SharedCacheCounts()
        writes = CacheWrites(CacheConnection(SecretStr("redis://h")), counts, max_value_bytes=2**20)
        for _ in range(count):
            writes.put(b"k" * 32, b"x" * size, ttl_s=60.0)
        return counts.dropped

    assert dropped_of(10_000, 1) == 0
    assert dropped_of(10_005, 1) == 5
    assert dropped_of(32, 2**20) == 0
    assert dropped_of(35, 2**20) == 3
    assert dropped_of(1, 2**20 + 1) == 1


@pytest.mark.parametrize(
    ("exc", "says"),
    [
        (TimeoutError(), "it does not answer"),
        (OSError(111, "Connection refused"), "[Errno 111] Connection refused"),
        (ValueError("invalid literal for int(): 'somebody's answer'"), "it does not answer as Redis does (ValueError)"),
    ],
)
def test_what_the_log_says(exc: Exception, says: str) -> None:
    assert CacheConnection(SecretStr("redis://h")).describe(exc) == says
