from __future__ import annotations

from control_plane.core.algorithms.bounded_cache import MAX_BYTES, MAX_ENTRY_BYTES, BoundedCache


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


def test_an_entry_too_many_costs_the_others_the_older_half_at_most() -> None:
    cache = BoundedCache[int, int].of_entries(8)
    for number in range(100):
        cache.keep(number, number)
        assert [cache.get(each) for each in range(max(0, number - 3), number + 1)] == list(range(max(0, number - 3), number + 1))
        assert len(cache._kept) <= 8


def test_what_is_forgotten_leaves_its_room_to_others() -> None:
    cache = BoundedCache[int, int].of_entries(8)
    for number in range(8):
        cache.keep(number, number)
    for _ in range(100):
        cache.forget(1)  # in the older generation
        cache.forget(7)  # in the younger
        cache.forget(99)
        cache.keep(7, 7)
    assert [cache.get(number) for number in range(8)] == [0, None, 2, 3, 4, 5, 6, 7]
    cache.clear()
    assert not cache.keys
    cache.keep(1, 2)
    assert cache.get(1) == 2


def test_nothing_at_all_still_counts() -> None:
    cache = BoundedCache[int, int]()
    for number in range(MAX_BYTES):
        cache.keep(number, number, size_bytes=0)
    assert len(cache._kept) < MAX_BYTES // 100
