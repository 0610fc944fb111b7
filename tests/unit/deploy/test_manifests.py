"""Which of rendered manifests start a pod beside the one that it replaces, and so need its GPUs twice."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.manifests import surging_gpus
from tests.unit.deploy.gpu_deployment import on_gpus


@pytest.mark.parametrize("strategy", [None, {"maxSurge": 1}, {"maxSurge": "25%"}, {}])
def test_updates_that_start_a_pod_first_need_a_gpu_more(strategy: dict[str, Any] | None) -> None:
    assert list(surging_gpus(on_gpus(strategy))) == [("deployment/triton", "nvidia.com/gpu", 4)]


@pytest.mark.parametrize("strategy", [{"maxSurge": 0}, {"maxSurge": "0%"}])
def test_updates_in_place_need_none(strategy: dict[str, Any]) -> None:
    assert list(surging_gpus(on_gpus(strategy))) == []
