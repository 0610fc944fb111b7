from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from control_plane.core.errors import StartupError
from control_plane.host.cpu_affinity import allowed_cpus, pin_worker, require_cpus


@pytest.fixture(autouse=True)
def _affinity_restored() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def test_a_cpu_that_is_not_there_is_named_with_those_that_are() -> None:
    own = allowed_cpus()
    with pytest.raises(StartupError, match=rf"--gateway-cpus: CPU 4095,4096 cannot be used here; these can: {own[0]}"):
        require_cpus((own[0], 4095, 4096), setting="--gateway-cpus")


def test_fewer_than_workers_are_refused_but_none_given_is_no_choice() -> None:
    own = allowed_cpus()
    with pytest.raises(StartupError, match=f"{len(own) + 1} workers need a CPU each"):
        require_cpus(own, setting="--gateway-cpus", at_least=len(own) + 1)
    require_cpus(own, setting="--gateway-cpus", at_least=len(own))
    require_cpus((), setting="--gateway-cpus", at_least=100)


def test_a_worker_keeps_to_its_share() -> None:
    own = allowed_cpus()
    pin_worker(own, len(own) - 1, len(own))
    assert allowed_cpus() == (own[-1],)


def test_without_a_list_it_keeps_to_nothing() -> None:
    own = allowed_cpus()
    pin_worker((), 0, 1)
    assert allowed_cpus() == own
