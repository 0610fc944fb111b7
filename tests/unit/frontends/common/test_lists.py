from __future__ import annotations

import orjson

from control_plane.core.algorithms.steps import finish
from control_plane.frontends.common.lists import list_steps


def test_a_long_list_is_rendered_with_pauses_and_as_it_would_be_at_once() -> None:
    assert len(list(list_steps(range(10_000), lambda number: {"id": number}))) >= 50
    for count in (0, 1, 1001):
        whole = orjson.dumps({"data": [{"id": number} for number in range(count)]})
        assert orjson.dumps({"data": finish(list_steps(range(count), lambda number: {"id": number}))}) == whole
