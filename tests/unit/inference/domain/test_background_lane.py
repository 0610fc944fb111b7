from __future__ import annotations

from typing import Any

import orjson
import pytest

from control_plane.core.errors import UpstreamFailed
from control_plane.inference.domain.background_lane import has_background_lane

SAYS_SO = {"background": {"string_value": "true"}}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param({"parameters": SAYS_SO, "instance_group": [{"kind": "KIND_CPU"}]}, True, id="on-a-cpu"),
        pytest.param({"parameters": SAYS_SO}, True, id="an-ensemble-has-no-instances"),
        pytest.param({"parameters": SAYS_SO, "instance_group": [{"kind": "KIND_CPU"}, {"kind": "KIND_GPU"}]}, False, id="some-on-a-gpu"),
        pytest.param({"parameters": {"background": {"string_value": "false"}}}, False, id="switched-off"),
        pytest.param({"parameters": {}}, False, id="says-nothing"),
        pytest.param({"name": "m"}, False, id="no-parameters"),
    ],
)
def test_a_model_whose_configuration_says_so_has_a_lane_if_nothing_of_it_is_on_a_gpu(config: dict[str, Any], expected: bool) -> None:
    assert has_background_lane(orjson.dumps(config)) is expected


@pytest.mark.parametrize(
    "text",
    [
        b"no json",
        b"[]",
        b'{"parameters":1}',
        b'{"parameters":{"background":"true"}}',
        b'{"parameters":{"background":{"string_value":"true"}},"instance_group":[1]}',
    ],
)
def test_what_is_no_configuration_is_told(text: bytes) -> None:
    with pytest.raises(UpstreamFailed, match="not a model's configuration"):
        has_background_lane(text)
