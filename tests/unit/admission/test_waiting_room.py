"""The bound on requests that wait for models, and on the bytes of their bodies."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.admission.waiting_room import Place, WaitingLimits, WaitingRoom
from control_plane.core.errors import LimitExceeded, Overloaded
from control_plane.telemetry.shed_reason import ShedReason

LIMITS = WaitingLimits(requests=4, requests_per_tenant=2, size_bytes=100, bytes_per_tenant=50)


def room() -> tuple[WaitingRoom, Counter[tuple[str, ShedReason]]]:
    sheds = Counter[tuple[str, ShedReason]]()
    return WaitingRoom(LIMITS, sheds), sheds


@pytest.mark.parametrize(
    ("before", "then", "refusal"),
    [
        pytest.param([], ("a", 10), None, id="empty"),
        pytest.param([], ("a", 1000), None, id="a body that no limit admits waits alone"),
        pytest.param([("a", 10)], ("a", 40), None, id="exactly its bytes"),
        pytest.param([("a", 10)], ("a", 41), LimitExceeded, id="the tenant's bytes"),
        pytest.param([("a", 1), ("a", 1)], ("a", 1), LimitExceeded, id="the tenant's requests"),
        pytest.param([("a", 1), ("a", 1)], ("b", 1), None, id="another's are not its own"),
        pytest.param([("a", 1), ("a", 1), ("b", 1), ("b", 1)], ("c", 1), Overloaded, id="all requests"),
        pytest.param([("a", 50), ("b", 45)], ("c", 6), Overloaded, id="all bytes"),
        pytest.param([("a", 1000)], ("b", 1), Overloaded, id="beside one that takes all"),
    ],
)
def test_who_may_wait(before: list[tuple[str, int]], then: tuple[str, int], refusal: type[Exception] | None) -> None:
    it, sheds = room()
    for tenant, size in before:
        it.enter(tenant, size, retry_after_s=1.0)
    if refusal is None:
        it.enter(*then, retry_after_s=7.0)
        assert not sheds
        return
    with pytest.raises(refusal, match=r"wait for models") as caught:
        it.enter(*then, retry_after_s=7.0)
    assert isinstance(caught.value, LimitExceeded | Overloaded)
    assert caught.value.retry_after_s == 7.0
    assert sheds == {(then[0], ShedReason.QUEUE_FULL): 1}
    assert (it.requests, it.size_bytes) == (len(before), sum(size for _, size in before)), "a refusal holds nothing"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60), st.booleans()), max_size=60))
def test_nothing_is_left_behind_whatever_the_order(steps: list[tuple[str, int, bool]]) -> None:
    it, _ = room()
    places: list[tuple[Place, int]] = []
    for tenant, size, leaves in steps:
        if leaves and places:
            places.pop(size % len(places))[0].leave()
            continue
        with suppress(LimitExceeded, Overloaded):
            places.append((it.enter(tenant, size, retry_after_s=1.0), size))
        assert it.requests == len(places) <= LIMITS.requests
        assert it.size_bytes == sum(each for _, each in places)
    for place, _ in places:
        place.leave()
    assert (it.requests, it.size_bytes) == (0, 0)
    assert not it._requests
    assert not it._bytes, "tenants that are gone must not pile up"


def test_one_that_is_shared_counts_once_until_the_last_has_left() -> None:
    it, _ = room()
    place = it.enter("a", 40, retry_after_s=1.0)
    assert [place.share() for _ in range(2)] == [True, True]
    assert (it.requests, it.size_bytes) == (1, 40)
    for _ in range(2):
        place.leave()
    assert it.requests == 1
    place.leave()
    assert (it.requests, it.size_bytes) == (0, 0)
    assert not place.share(), "it is another's by now"
