"""Sequences of two tenants who choose the same ids, at a real Triton: each has its own, whichever worker and protocol."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tritonclient.grpc

from control_plane.objects.domain.tenant import Tenant
from tests.contract.conftest import MODELS
from tests.e2e import raw_http
from tests.e2e.accounts import make_key
from tests.e2e.conftest import Start
from tests.e2e.tidegate import COMPLETE, Tidegate

SEQUENCES: dict[str, int | str] = {"accumulate": 7, "accumulate_text": "seven"}


class Tenants:
    """Callers of one gateway, who add to sums that their sequences hold."""

    def __init__(self, gateway: Tidegate, keys: dict[str, str]) -> None:
        self._gateway = gateway
        self._keys = keys

    def over_http(self, tenant: str, model: str, value: int, **flags: bool) -> int | str:
        """The sum so far, or the error."""
        tensor = {"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [value]}
        body = json.dumps({"inputs": [tensor], "parameters": {"sequence_id": SEQUENCES[model], **flags}}).encode()
        fields = [("x-api-key", self._keys[tenant])]
        raw = raw_http.exchange(self._gateway.port("http"), "POST", f"/v2/models/{model}/infer", body, fields)
        if raw_http.status(raw) != 200:
            return raw_http.error(raw)
        outputs = {each["name"]: each["data"] for each in json.loads(raw.partition(b"\r\n\r\n")[2])["outputs"]}
        return int(outputs["SUM"][0])

    def over_grpc(self, tenant: str, model: str, value: int, **flags: bool) -> int:
        with tritonclient.grpc.InferenceServerClient(self._gateway.address("grpc")) as client:
            tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
            tensor.set_data_from_numpy(np.array([[value]], np.int32))
            headers = {"x-api-key": self._keys[tenant]}
            answer = client.infer(model, [tensor], sequence_id=SEQUENCES[model], headers=headers, **flags)
            return int(answer.as_numpy("SUM").item())


def test_two_tenants_with_one_id_have_a_sequence_each(start: Start, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    keys = {name: make_key(None, state, Tenant(name), scope="infer:*") for name in ("acme", "other")}
    loads = [part for model in SEQUENCES for part in ("--load", model)]
    gateway = start(state, "--authentication", "--workers", "2", "--model-repository", str(MODELS), COMPLETE, *loads)
    tenants = Tenants(gateway, keys)
    for model in SEQUENCES:
        assert tenants.over_http("acme", model, 1, sequence_start=True) == 1
        assert tenants.over_http("other", model, 100, sequence_start=True) == 100
        assert tenants.over_grpc("acme", model, 2) == 3
        assert tenants.over_grpc("other", model, 200, sequence_end=True) == 300
        assert tenants.over_http("acme", model, 3) == 6
        assert "must specify the START flag" in str(tenants.over_http("other", model, 1))
        assert tenants.over_http("acme", model, 4, sequence_end=True) == 10
    assert gateway.stop() == 0, gateway.said()
