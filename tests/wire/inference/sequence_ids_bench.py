"""Requests of sequences by several tenants, and how Triton gets them."""

from __future__ import annotations

from tritonclient.grpc import service_pb2

from control_plane.inference.governance import Governance
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.wire.grpc_frontend import infer_message

TENANTS = {"acme": 1, "other": 2}


def governed() -> Governance:
    keys = tuple(api_key(number, "infer:*", tenant=tenant) for tenant, number in TENANTS.items())
    return governance(known_state(keys=keys, tenants=tuple(map(Tenant, TENANTS)), routes=(Route("r", "m"),)), authentication=True)


def message(id_: int | str, *, model: str = "m", elements: int = 1) -> bytes:
    request = service_pb2.ModelInferRequest.FromString(infer_message(model=model, content=bytes(4 * elements)))
    request.inputs[0].shape[0] = elements
    if isinstance(id_, str):
        request.parameters["sequence_id"].string_param = id_
    else:
        request.parameters["sequence_id"].int64_param = id_ - 2**64 if id_ >= 2**63 else id_
    serialised: bytes = request.SerializeToString()
    return serialised


def shown(tenant: str) -> tuple[tuple[str, str], ...]:
    return (("x-api-key", key_text(TENANTS[tenant])),)
