"""Which calls are marked as work that models may interrupt for callers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from control_plane.admission.admission import Admission
from tests.unit.embeddings.embeddings_bench import Bench, with_bench


async def _is_preempted(model: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("enter", "is_marked"),
    [
        pytest.param(lambda admission: admission, False, id="callers"),
        pytest.param(lambda admission: admission.in_background(), False, id="in-the-background"),
        pytest.param(lambda admission: admission.in_background(_is_preempted), True, id="to-be-interrupted-for-callers"),
    ],
)
def test_what_is_to_be_interrupted_is_marked(enter: Callable[[Admission], Admission], is_marked: bool) -> None:
    async def test(bench: Bench) -> None:
        await bench.embed(b"a")
        (sent,) = (each for each in bench.upstream.http.requests if each.target.endswith(b"/infer"))
        assert (sent.header(b"tidegate-background") is not None) is is_marked

    with_bench(test, enter=enter)
