from __future__ import annotations

import pytest

from control_plane.inference.domain.observation import Observation
from control_plane.rollout.domain.deaths import Deaths


def seen(digest: int, *, is_stable: bool = False, is_death: bool = True) -> Observation:
    return Observation("r", "id", is_stable, digest, is_death, 0.01, is_death)


STABLE = 10_000


@pytest.mark.parametrize(
    ("events", "is_cause"),
    [
        pytest.param([[1]], False, id="once is chance"),
        pytest.param([[1], [2]], True, id="twice"),
        pytest.param([[1], [1]], False, id="twice by the same contents: those may be the cause"),
        pytest.param([[1, STABLE, STABLE + 1], [STABLE + 2, 2]], True, id="with others' requests broken off, before or after its own"),
        pytest.param([[1, 2, 3, 4]], False, id="many of one death"),
        pytest.param([[1], [STABLE], [2]], False, id="one died without it"),
        pytest.param([[STABLE], [STABLE + 1]], False, id="of the present model"),
        pytest.param([[1], [STABLE], [2], [3], [4]], True, id="one without it, and four with"),
    ],
)
def test_who_is_the_cause(events: list[list[int]], is_cause: bool) -> None:
    deaths = Deaths()
    for number, broken_off in enumerate(events):
        for place, digest in enumerate(broken_off):
            deaths.add(seen(digest, is_stable=digest >= STABLE), 100.0 * number + 0.25 * place)
        deaths.add(seen(77, is_death=False), 100.0 * number + 1.0)
    assert bool(deaths.why) is is_cause
    assert not is_cause or "times a process has died under its requests" in deaths.why
