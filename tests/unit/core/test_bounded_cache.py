from __future__ import annotations

from control_plane.core.bounded_cache import MAX_BYTES, MAX_ENTRY_BYTES, BoundedCache


def test_what_is_small_is_kept() -> None:
    cache = BoundedCache[str, int]()
    cache.keep("a", 1, size_bytes=100)
    cache.keep("b", 2, size_bytes=100)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, 2, None)


def test_what_is_large_is_not() -> None:
    cache = BoundedCache[str, int]()
    cache.keep("a", 1, size_bytes=100)
    cache.keep("b", 2, size_bytes=MAX_ENTRY_BYTES)
    assert (cache.get("a"), cache.get("b")) == (1, None)


def test_all_together_are_bounded_and_the_newest_stays() -> None:
    cache, size_bytes = BoundedCache[int, int](), MAX_ENTRY_BYTES // 2
    for number in range(3 * MAX_BYTES // size_bytes):
        cache.keep(number, number, size_bytes=size_bytes)
        assert cache.get(number) == number
        assert len(cache._kept) * size_bytes <= MAX_BYTES


def test_nothing_at_all_still_counts() -> None:
    cache = BoundedCache[int, int]()
    for number in range(MAX_BYTES):
        cache.keep(number, number, size_bytes=0)
    assert len(cache._kept) < MAX_BYTES // 100
