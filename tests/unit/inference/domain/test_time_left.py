"""Which configurations say that their model wants to know how much time a request has left."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from control_plane.core.errors import UpstreamFailed
from control_plane.inference.domain.time_left import wants_time_left


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param({"parameters": {"time_left": {"string_value": "true"}}}, True, id="says-so"),
        pytest.param({"parameters": {"time_left": {"string_value": "false"}}}, False, id="switched-off"),
        pytest.param({"parameters": {"background": {"string_value": "true"}}}, False, id="says-something-else"),
        pytest.param({"name": "m"}, False, id="no-parameters"),
    ],
)
def test_a_model_is_told_if_its_configuration_says_so(config: dict[str, Any], expected: bool) -> None:
    assert wants_time_left(orjson.dumps(config)) is expected


@pytest.mark.parametrize("text", [b"no json", b"[]", b'{"parameters":[1]}', b'{"parameters":{"time_left":"true"}}'])
def test_what_is_no_configuration_is_told(text: bytes) -> None:
    with pytest.raises(UpstreamFailed, match="not a model's configuration"):
        wants_time_left(text)
