from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from control_plane.domain.errors import StartupError
from control_plane.services.fingerprints import Fingerprints
from control_plane.services.fleet_models import FleetModels
from control_plane.services.models import ModelService
from control_plane.settings import load_settings
from control_plane.tritons import Tritons

TWO = "http://127.0.0.1:1,http://127.0.0.1:11"


def tritons(tmp_path: Path, **given: Any) -> Tritons:
    (tmp_path / "models").mkdir(exist_ok=True)
    settings = load_settings({"model_repository": [tmp_path / "models"], "state_dir": tmp_path / "state", **given})
    fingerprints = Fingerprints()
    return Tritons(settings, fingerprints, fingerprints)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        pytest.param({}, ["triton"], id="one"),
        pytest.param({"servers": 3}, ["triton-0", "triton-1", "triton-2"], id="several"),
        pytest.param({"memory_budget": "1GiB"}, ["triton"], id="one-with-a-budget"),
    ],
)
def test_servers_have_names(tmp_path: Path, given: dict[str, Any], names: list[str]) -> None:
    assert list(tritons(tmp_path, **given).servers.members) == names


def test_one_without_a_budget_is_no_fleet(tmp_path: Path) -> None:
    one = tritons(tmp_path)
    assert one.fleet is None
    assert isinstance(one.models, ModelService)


@pytest.mark.parametrize("given", [{"servers": 2}, {"memory_budget": "1GiB"}])
def test_more_or_a_budget_is(tmp_path: Path, given: dict[str, Any]) -> None:
    several = tritons(tmp_path, **given)
    assert several.fleet is not None
    assert isinstance(several.models, FleetModels)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"servers": 2, "triton_url": "http://127.0.0.1:1"}, "--servers is for embedded Tritons"),
        ({"model_parameter": "a:b=c", "triton_url": "http://127.0.0.1:1"}, "--model-parameter is for the embedded Triton"),
        ({"servers": 2, "workers": 2}, "do not go together yet"),
        ({"triton_url": TWO, "workers": 2}, "do not go together yet"),
        ({"memory_budget": "1GiB", "workers": 2}, "do not go together yet"),
        ({"triton_url": "http://127.0.0.1:1,http://127.0.0.1:1"}, "names a Triton twice"),
        ({"model_store": ["s3://key:secret@bucket/models"]}, "leave credentials"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(StartupError, match=reason) as refused:
        tritons(tmp_path, **given)
    assert "secret" not in str(refused.value)
