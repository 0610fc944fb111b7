from __future__ import annotations

import pytest

from control_plane.core.model import ServedVariant
from control_plane.models.domain.served_variants import read_served_variants

REASON = "int8 (2.3 ms for 1x16 tokens), not fp32 (4.9 ms)"


@pytest.mark.parametrize(
    ("page", "found"),
    [
        pytest.param("", {}, id="nothing"),
        pytest.param(
            "# HELP tidegate_served_variant 1 for the variant that a model serves\n# TYPE tidegate_served_variant gauge\n"
            f'tidegate_served_variant{{model="m",reason="{REASON}",variant="int8",version="1"}} 1.000000\n'
            'nv_inference_count{model="m",version="1"} 7\n'
            'tidegate_served_variant{model="n",reason="fp32, as configured",variant="fp32",version="1"} 1.000000\n',
            {"m": ServedVariant("int8", REASON), "n": ServedVariant("fp32", "fp32, as configured")},
            id="as-triton-writes-it",
        ),
        pytest.param(
            r'tidegate_served_variant{model="m",reason="\"a\\b\"\nc, }",variant="int8"} 1',
            {"m": ServedVariant("int8", '"a\\b"\nc, }')},
            id="escaped",
        ),
        pytest.param('tidegate_served_variant{model="m",variant=""} 1', {}, id="a-model-without-variants"),
        pytest.param('tidegate_served_variant{variant="int8"} 1', {}, id="no-model"),
        pytest.param('tidegate_served_variant{model="m",variant="int8', {}, id="cut-short"),
        pytest.param("tidegate_served_variant{", {}, id="cut-shorter"),
        pytest.param('tidegate_served_variant{model="m",variant="int8"} soon', {}, id="no-number"),
        pytest.param('tidegate_served_variants{model="m",variant="int8"} 1', {}, id="another-metric"),
        pytest.param(
            'tidegate_served_variant{model="m",variant="int8"} 1795276799.75\n'
            'tidegate_served_variant{model="m",variant="fp32"} 1795276799.5',
            {"m": ServedVariant("int8", "")},
            id="while-it-is-loaded-anew",
        ),
    ],
)
def test_what_is_served_is_read_from_the_page(page: str, found: dict[str, ServedVariant]) -> None:
    assert read_served_variants(page.encode()) == found
